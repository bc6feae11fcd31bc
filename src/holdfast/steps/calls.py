"""``step``, ``sleep``, ``wait_for_event``, ``approval``, ``gather``, checkpoints: the async and the sync class."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, Unpack, overload

from holdfast.engine.job import Claim
from holdfast.engine.names import check_name
from holdfast.engine.payload import encode
from holdfast.engine.retry import Retry, as_policy
from holdfast.engine.steps import RESERVED, check_step_name
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidSetting, StaleLease
from holdfast.steps.approvals import Asking, Decision, decision
from holdfast.steps.driver import Plan, running
from holdfast.steps.program import Durably
from holdfast.steps.values import AppEvent, is_async, label_of
from holdfast.stores.flow import Flow
from holdfast.stores.session import Session
from holdfast.worker.shutdown import Suspended

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F")


class Here:
    """Carries calls out from the handler's own thread."""

    def __init__(self, plan: Plan, loop: asyncio.AbstractEventLoop) -> None:
        self.plan = plan
        self._loop = loop

    def drive(self, call: Durably, run: Callable[[], Any] | None = None) -> Any:
        return self.plan.durable.drive_here(call, self._loop, run)

    def ask(self, work: Coroutine[Any, Any, T]) -> T:
        return self.plan.durable.ask(self._loop, work)


class BlockingSteps:
    """Steps with a policy and a time limit of their own: ``ctx.using(timeout=30).step("charge", charge, 7)``."""

    def __init__(self, here: Here, retry: Retry | None = None, timeout: float | None = None) -> None:
        self._here = here
        self._retry = retry
        self._timeout = timeout

    @overload
    def step(self, name: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def step(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return self.later(name, function, *args, **kwargs)()

    @overload
    def later(
        self, name: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Callable[[], T]: ...
    @overload
    def later(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Callable[[], T]: ...
    def later(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Callable[[], Any]:
        """The step, not yet run: for ``ctx.gather``."""
        call, key = self._here.plan.step(name, function, self._retry)
        return partial(self._here.drive, call, partial(self._run, key, function, args, kwargs))

    def _run(self, key: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        token = running.set(key)
        try:
            if is_async(function) or self._timeout is None:
                answer = function(*args, **kwargs)
            else:
                # In another thread, which is left to itself when the time is up.
                work = partial(copy_context().run, partial(function, *args, **kwargs))
                running_there = self._here.plan.durable.lent.threads.run(label_of(function), work)
                answer = self._here.ask(self._limited(running_there))
            return asyncio.run(self._limited(answer)) if inspect.iscoroutine(answer) else answer
        finally:
            running.reset(token)

    async def _limited(self, work: Awaitable[T]) -> T:
        async with asyncio.timeout(self._timeout):
            return await work


class BlockingCalls:
    """What ``SyncContext`` has of durable calls; they are explained at ``AwaitedCalls``."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def here(self) -> Here: ...

    @overload
    def step(self, name: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def step(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call the function once and remember what it returned: ``ref = ctx.step("charge", charge, invoice)``."""
        return BlockingSteps(self.here).step(name, function, *args, **kwargs)

    @overload
    def later(
        self, name: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Callable[[], T]: ...
    @overload
    def later(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Callable[[], T]: ...
    def later(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Callable[[], Any]:
        """A step for ``ctx.gather``: ``ctx.gather(ctx.later("a", f), ctx.later("b", g))``."""
        return BlockingSteps(self.here).later(name, function, *args, **kwargs)

    def using(self, *, retry: Retry | None = None, timeout: Duration | None = None) -> BlockingSteps:
        limit = None if timeout is None else seconds(timeout, "timeout")
        return BlockingSteps(self.here, None if retry is None else as_policy(retry), limit)

    def sleep(self, delay: Duration, name: str = "sleep") -> None:
        self.here.drive(self.here.plan.sleep(delay, None, name))

    def sleep_until(self, moment: datetime, name: str = "sleep") -> None:
        self.here.drive(self.here.plan.sleep(None, moment, name))

    def wait_for_event(
        self,
        name: str,
        *,
        match: Mapping[str, Any] | None = None,
        timeout: Duration | None = None,
        since: Duration | None = None,
    ) -> AppEvent:
        event: AppEvent = self.here.drive(self.here.plan.event(name, match, timeout, since))
        return event

    @overload
    def approval(self, name: str, *, summary: str, form: type[F], **options: Unpack[Asking]) -> Decision[F]: ...
    @overload
    def approval(
        self, name: str, *, summary: str, form: Mapping[str, Any] | None = None, **options: Unpack[Asking]
    ) -> Decision[Any]: ...
    def approval(self, name: str, *, summary: str, form: Any = None, **options: Unpack[Asking]) -> Decision[Any]:
        return decision(self.here.drive(self.here.plan.approval(name, summary, form, options)), form)

    def patched(self, name: str) -> bool:
        return self.here.ask(self.here.plan.durable.remember()).patched(check_step_name(name))

    def gather(self, *calls: Callable[[], T]) -> list[T]:
        """Several steps at once, each in a thread: ``ctx.later`` makes them."""
        if not all(map(callable, calls)):
            raise InvalidSetting(
                "gather takes steps that have not been run yet",
                code="not_callable",
                fix='ctx.gather(ctx.later("a", f), ctx.later("b", g)).',
            )
        threads = self.here.plan.durable.lent.threads

        async def all_of_them() -> list[Any]:
            runs = [
                threads.run("step", partial(context.run, call)) for context, call in zip(contexts, calls, strict=True)
            ]
            return await asyncio.gather(*runs, return_exceptions=True)

        contexts = [copy_context() for _ in calls]
        results: list[Any] = self.here.ask(all_of_them())
        errors = [result for result in results if isinstance(result, BaseException)]
        for error in sorted(errors, key=lambda error: isinstance(error, Suspended)):
            if not isinstance(error, Suspended):
                self.here.plan.durable.suspended = None
            raise error
        return results


class AwaitedSteps:
    """Steps with a policy and a time limit of their own: ``await ctx.using(timeout=30).step("charge", charge, 7)``."""

    def __init__(self, plan: Plan, retry: Retry | None = None, timeout: float | None = None) -> None:
        self._plan = plan
        self._retry = retry
        self._timeout = timeout

    @overload
    def step(
        self, name: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(
        self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        call, key = self._plan.step(name, function, self._retry)
        return self._plan.durable.drive(call, partial(self._run, key, function, args, kwargs))

    async def _run(self, key: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        token = running.set(key)
        try:
            if self._timeout is None:
                return await self._call(function, args, kwargs)
            async with asyncio.timeout(self._timeout):
                return await self._call(function, args, kwargs)
        finally:
            running.reset(token)

    async def _call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if is_async(function):
            return await function(*args, **kwargs)
        # It may block, and the loop is not for that. The context variables go with it.
        threads = self._plan.durable.lent.threads
        answer = await threads.run(label_of(function), partial(function, *args, **kwargs))
        return await answer if inspect.iscoroutine(answer) else answer


class AwaitedCalls:
    """What ``Context`` has of durable calls. The handler runs from its top each time it goes on; what is done is
    remembered, and not done again."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def plan(self) -> Plan: ...

    @overload
    def step(
        self, name: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(
        self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Call the function once and remember what it returned: ``ref = await ctx.step("charge", charge, invoice)``.

        A crash while it runs repeats this step and nothing before it. What it returns is kept as JSON.
        """
        return AwaitedSteps(self.plan).step(name, function, *args, **kwargs)

    def using(self, *, retry: Retry | None = None, timeout: Duration | None = None) -> AwaitedSteps:
        """Steps that are tried again by a policy of their own, or have a time limit of their own."""
        limit = None if timeout is None else seconds(timeout, "timeout")
        return AwaitedSteps(self.plan, None if retry is None else as_policy(retry), limit)

    def sleep(self, delay: Duration, name: str = "sleep") -> Coroutine[Any, Any, None]:
        """Go on later. Meanwhile the job holds no slot, no connection and no memory."""
        return self.plan.durable.drive(self.plan.sleep(delay, None, name))

    def sleep_until(self, moment: datetime, name: str = "sleep") -> Coroutine[Any, Any, None]:
        return self.plan.durable.drive(self.plan.sleep(None, moment, name))

    def wait_for_event(
        self,
        name: str,
        *,
        match: Mapping[str, Any] | None = None,
        timeout: Duration | None = None,
        since: Duration | None = None,
    ) -> Coroutine[Any, Any, AppEvent]:
        """Go on when ``app.send_event(name, …)`` tells of an event that has what ``match`` asks for.

        One sent since the job was enqueued counts, also before this call; ``since`` looks back further. Each event is
        had once by a job. ``EventTimeout`` when none came in time.
        """
        return self.plan.durable.drive(self.plan.event(name, match, timeout, since))

    @overload
    def approval(
        self, name: str, *, summary: str, form: type[F], **options: Unpack[Asking]
    ) -> Coroutine[Any, Any, Decision[F]]: ...
    @overload
    def approval(
        self, name: str, *, summary: str, form: Mapping[str, Any] | None = None, **options: Unpack[Asking]
    ) -> Coroutine[Any, Any, Decision[Any]]: ...
    def approval(
        self, name: str, *, summary: str, form: Any = None, **options: Unpack[Asking]
    ) -> Coroutine[Any, Any, Decision[Any]]:
        """Ask people, and go on with their decision. Denied, the job ends as failed, unless ``on_deny="resume"``."""
        return self._decided(self.plan.durable.drive(self.plan.approval(name, summary, form, options)), form)

    async def _decided(self, asking: Coroutine[Any, Any, Any], form: Any) -> Decision[Any]:
        return decision(await asking, form)

    async def patched(self, name: str) -> bool:
        """Whether to go the new way, in a handler whose steps have changed: True for jobs that had not come here yet.

        ``if await ctx.patched("check stock first"): …`` keeps jobs that are under way on the old path.
        """
        return (await self.plan.durable.remember()).patched(check_step_name(name))

    async def gather(self, *calls: Awaitable[T]) -> list[T]:
        """Several steps at once. All of them end, and are remembered, before the first error among them is raised."""
        results = await asyncio.gather(*calls, return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        # What failed is told before what waits: there is nothing to wait for then.
        for error in sorted(errors, key=lambda error: isinstance(error, Suspended)):
            if not isinstance(error, Suspended):
                self.plan.durable.suspended = None
            raise error
        return results  # type: ignore[return-value]


CHECKPOINT_LIMIT: Final = 1_048_576


@dataclass(frozen=True, slots=True)
class _Saved:
    claim: Claim
    client: Session

    def _save(self, value: Any, name: str) -> Flow[bool]:
        if check_name(name, "checkpoint") == RESERVED:
            raise InvalidSetting(f"the name {RESERVED!r} is ctx.progress's own", code="reserved_name")
        text, claim = encode(value, limit=CHECKPOINT_LIMIT, what="checkpoint"), self.claim
        text = self.client.vault.seal(text, what="checkpoint", tenant=claim.tenant, job_id=claim.id, place=name)
        # Under the lease the job was claimed with, whose scope may be every tenant.
        return self.client.store.steps.save_checkpoint(
            claim.id, claim.lease, claim.attempt, name, text, self.client.scope
        )

    def _load(self) -> Flow[dict[str, Any]]:
        return self.client.store.jobs.checkpoints(self.claim.id, self.claim.tenant)

    def _found(self, kept: dict[str, Any], name: str, default: Any) -> Any:
        if name not in kept:
            return default
        claim = self.claim
        return self.client.vault.open_kept(
            kept[name], what="checkpoint", tenant=claim.tenant, job_id=claim.id, place=name
        )

    def _kept(self, kept: bool) -> None:
        if not kept:
            raise StaleLease(f"job {self.claim.id} is no longer in this worker's hands")


class Checkpoints(_Saved):
    """``await ctx.checkpoint.save({"row": 4711})``"""

    __slots__ = ()

    async def save(self, value: Any, name: str = "progress") -> None:
        """Keep a value where a later attempt finds it; the same name again replaces it."""
        self._kept(await self.client.arun(self._save(value, name)))

    async def load(self, name: str = "progress", default: Any = None) -> Any:
        """What was saved under this name, in this attempt or an earlier one."""
        return self._found(await self.client.arun(self._load()), name, default)


class SyncCheckpoints(_Saved):
    """``ctx.checkpoint.save({"row": 4711})``, in a handler that is no coroutine."""

    __slots__ = ()

    def save(self, value: Any, name: str = "progress") -> None:
        self._kept(self.client.run(self._save(value, name)))

    def load(self, name: str = "progress", default: Any = None) -> Any:
        return self._found(self.client.run(self._load()), name, default)

"""The durable calls of a context (``step``, ``sleep``, ``wait_for_event``, ``approval``, ``gather``) and its
checkpoints, in their sync and async form."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

from holdfast.engine.names import check_name
from holdfast.engine.retry import Retry, as_policy
from holdfast.engine.steps import RESERVED, RUNNING, check_step_name
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidSetting, StaleLease
from holdfast.steps.approvals import ApprovalOptions, Decision, decision
from holdfast.steps.driver import Plan, running
from holdfast.steps.handler_run import HandlerRun, ThreadDriver
from holdfast.steps.values import AppEvent, is_async, label_of
from holdfast.stores.flow import Flow
from holdfast.stores.vault import Part, is_stored
from holdfast.worker.shutdown import Suspended

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F")


class BlockingSteps:
    """Steps with their own retry policy and timeout: ``ctx.step_options(timeout=30).step("charge", charge, 7)``."""

    def __init__(self, driver: ThreadDriver, retry: Retry | None = None, timeout: float | None = None) -> None:
        self._driver = driver
        self._retry = retry
        self._timeout = timeout

    @overload
    def step(self, name: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def step(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return self.submit(name, function, *args, **kwargs)()

    @overload
    def submit(
        self, name: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Callable[[], T]: ...
    @overload
    def submit(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Callable[[], T]: ...
    def submit(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Callable[[], Any]:
        """Return the step without running it, for ``ctx.gather``."""
        call, key = self._driver.plan.step(name, function, self._retry)
        return partial(self._driver.drive, call, partial(self._run, key, function, args, kwargs))

    def _run(self, key: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        token = running.set(key)
        try:
            if is_async(function) or self._timeout is None:
                result = function(*args, **kwargs)
            else:
                # In another thread, which keeps running after the timeout.
                work = partial(copy_context().run, partial(function, *args, **kwargs))
                in_thread = self._driver.plan.durable.tools.threads.run(label_of(function), work)
                result = self._driver.run_on_loop(self._limited(in_thread))
            return asyncio.run(self._limited(result)) if inspect.iscoroutine(result) else result
        finally:
            running.reset(token)

    async def _limited(self, work: Awaitable[T]) -> T:
        async with asyncio.timeout(self._timeout):
            return await work


class BlockingCalls:
    """Durable calls of a ``SyncContext``: each blocks until it is done. ``AwaitedCalls`` explains them."""

    __slots__ = ()

    if TYPE_CHECKING:
        _run: HandlerRun

    @overload
    def step(self, name: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def step(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call the function once and record its result: ``ref = ctx.step("charge", charge, invoice)``."""
        return BlockingSteps(self._run.thread_driver).step(name, function, *args, **kwargs)

    @overload
    def submit(
        self, name: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Callable[[], T]: ...
    @overload
    def submit(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Callable[[], T]: ...
    def submit(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Callable[[], Any]:
        """Return a step without running it, for ``ctx.gather(ctx.submit("a", f), ctx.submit("b", g))``."""
        return BlockingSteps(self._run.thread_driver).submit(name, function, *args, **kwargs)

    def step_options(self, *, retry: Retry | None = None, timeout: Duration | None = None) -> BlockingSteps:
        """Give steps their own retry policy or timeout: ``ctx.step_options(timeout=30).step(…)``."""
        limit = None if timeout is None else seconds(timeout, "timeout")
        return BlockingSteps(self._run.thread_driver, None if retry is None else as_policy(retry), limit)

    def sleep(self, delay: Duration, name: str = "sleep") -> None:
        """Suspend the job for this long. Meanwhile it holds no slot, no connection and no memory."""
        driver = self._run.thread_driver
        driver.drive(driver.plan.sleep(delay, None, name))

    def sleep_until(self, moment: datetime, name: str = "sleep") -> None:
        """Suspend the job until this time."""
        driver = self._run.thread_driver
        driver.drive(driver.plan.sleep(None, moment, name))

    def wait_for_event(
        self,
        name: str,
        *,
        match: Mapping[str, Any] | None = None,
        timeout: Duration | None = None,
        since: Duration | None = None,
    ) -> AppEvent:
        """Wait for an event of this name that matches; ``EventTimeout`` if none comes in time."""
        driver = self._run.thread_driver
        event: AppEvent = driver.drive(driver.plan.event(name, match, timeout, since))
        return event

    @overload
    def approval(
        self, name: str, *, summary: str, form: type[F], **options: Unpack[ApprovalOptions]
    ) -> Decision[F]: ...
    @overload
    def approval(
        self, name: str, *, summary: str, form: Mapping[str, Any] | None = None, **options: Unpack[ApprovalOptions]
    ) -> Decision[Any]: ...
    def approval(
        self, name: str, *, summary: str, form: Any = None, **options: Unpack[ApprovalOptions]
    ) -> Decision[Any]:
        """Ask people for a decision and wait for it. A denied job fails, unless ``on_deny="resume"``."""
        driver = self._run.thread_driver
        return decision(driver.drive(driver.plan.approval(name, summary, form, options)), form)

    def patched(self, name: str, *, retired: bool = False) -> bool:
        """Whether to take the new path in a handler whose steps have changed: True for jobs that had not reached it.

        ``retired`` marks a patch without an old path (see ``Context.patched``).
        """
        driver = self._run.thread_driver
        return driver.run_on_loop(driver.plan.durable.remember()).patched(check_step_name(name), retired)

    def gather(self, *calls: Callable[[], T]) -> list[T]:
        """Run several steps at once, each in a thread. ``ctx.submit`` makes them."""
        if not all(map(callable, calls)):
            raise InvalidSetting(
                "gather expects submitted steps that have not run yet",
                code="not_callable",
                fix='Write ctx.gather(ctx.submit("a", f), ctx.submit("b", g)).',
            )
        threads = self._run.thread_driver.plan.durable.tools.threads

        async def run_all() -> list[Any]:
            runs = [
                threads.run("step", partial(context.run, call)) for context, call in zip(contexts, calls, strict=True)
            ]
            return await asyncio.gather(*runs, return_exceptions=True)

        contexts = [copy_context() for _ in calls]
        results: list[Any] = self._run.thread_driver.run_on_loop(run_all())
        _raise_first(results, self._run.thread_driver.plan)
        return results


def _raise_first(results: list[Any], plan: Plan) -> None:
    """Raise the first error of gathered steps, if any. A failure comes before a suspension: the handler does not wait
    then."""
    errors = [result for result in results if isinstance(result, BaseException)]
    for error in sorted(errors, key=lambda error: isinstance(error, Suspended)):
        if not isinstance(error, Suspended):
            plan.durable.suspended = None
        raise error


class AwaitedSteps:
    """Steps with their own retry policy and timeout: ``await ctx.step_options(timeout=30).step("pay", pay, 7)``."""

    def __init__(
        self, plan: Plan, retry: Retry | None = None, timeout: float | None = None, unordered: bool = False
    ) -> None:
        self._plan = plan
        self._retry = retry
        self._timeout = timeout
        self._unordered = unordered

    @overload
    def step(
        self, name: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(
        self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        if self._unordered:
            return self._step_by_name(name, function, args, kwargs)
        call, key = self._plan.step(name, function, self._retry)
        return self._plan.durable.drive(call, partial(self._run, key, function, args, kwargs))

    async def _step_by_name(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        call, key = await self._plan.unordered_step(name, function, self._retry)
        return await self._plan.durable.drive(call, partial(self._run, key, function, args, kwargs))

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
        # In a thread, because it may block. It has the context variables of this task.
        threads = self._plan.durable.tools.threads
        result = await threads.run(label_of(function), partial(function, *args, **kwargs))
        return await result if inspect.iscoroutine(result) else result


class AwaitedCalls:
    """Durable calls of a ``Context``. A handler that resumes runs again from the top; calls that are done return their
    recorded result and are not run again."""

    __slots__ = ()

    if TYPE_CHECKING:
        _run: HandlerRun

    @overload
    def step(
        self, name: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(
        self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Call the function once and record its result: ``ref = await ctx.step("charge", charge, invoice)``.

        A crash while it runs repeats this step and nothing before it. The result is stored as JSON.
        """
        return AwaitedSteps(self._run.plan).step(name, function, *args, **kwargs)

    def step_options(
        self, *, retry: Retry | None = None, timeout: Duration | None = None, unordered: bool = False
    ) -> AwaitedSteps:
        """Give steps their own retry policy or timeout: ``await ctx.step_options(timeout=30).step(…)``.

        ``unordered`` steps are found by their name instead of their position, for branches that run at once and make
        several calls each. A name that is used again counts as another step.
        """
        limit = None if timeout is None else seconds(timeout, "timeout")
        return AwaitedSteps(self._run.plan, None if retry is None else as_policy(retry), limit, unordered)

    def sleep(self, delay: Duration, name: str = "sleep") -> Coroutine[Any, Any, None]:
        """Suspend the job for this long. Meanwhile it holds no slot, no connection and no memory."""
        return self._run.plan.durable.drive(self._run.plan.sleep(delay, None, name))

    def sleep_until(self, moment: datetime, name: str = "sleep") -> Coroutine[Any, Any, None]:
        """Suspend the job until this time."""
        return self._run.plan.durable.drive(self._run.plan.sleep(None, moment, name))

    def wait_for_event(
        self,
        name: str,
        *,
        match: Mapping[str, Any] | None = None,
        timeout: Duration | None = None,
        since: Duration | None = None,
    ) -> Coroutine[Any, Any, AppEvent]:
        """Suspend the job until ``app.send_event(name, …)`` sends an event whose data has the values of ``match``.

        Events sent since the job was enqueued count, also those sent before this call; ``since`` looks back further.
        A job receives each event once. Raises ``EventTimeout`` if none comes in time.
        """
        return self._run.plan.durable.drive(self._run.plan.event(name, match, timeout, since))

    @overload
    def approval(
        self, name: str, *, summary: str, form: type[F], **options: Unpack[ApprovalOptions]
    ) -> Coroutine[Any, Any, Decision[F]]: ...
    @overload
    def approval(
        self, name: str, *, summary: str, form: Mapping[str, Any] | None = None, **options: Unpack[ApprovalOptions]
    ) -> Coroutine[Any, Any, Decision[Any]]: ...
    def approval(
        self, name: str, *, summary: str, form: Any = None, **options: Unpack[ApprovalOptions]
    ) -> Coroutine[Any, Any, Decision[Any]]:
        """Ask people for a decision and wait for it. A denied job fails, unless ``on_deny="resume"``."""
        return self._decided(self._run.plan.durable.drive(self._run.plan.approval(name, summary, form, options)), form)

    async def _decided(self, asking: Coroutine[Any, Any, Any], form: Any) -> Decision[Any]:
        return decision(await asking, form)

    async def patched(self, name: str, *, retired: bool = False) -> bool:
        """Whether to take the new path in a handler whose steps have changed: True for jobs that had not reached it.

        ``if await ctx.patched("check stock first"): …`` keeps running jobs on the old path. ``holdfast versions
        patches`` says when none is left there. Then remove the old path and write ``await ctx.patched("check stock
        first", retired=True)``, which new jobs no longer record; remove that when no unfinished job has recorded it.
        """
        return (await self._run.plan.durable.remember()).patched(check_step_name(name), retired)

    async def gather(self, *calls: Awaitable[T]) -> list[T]:
        """Run several steps at once. All of them end and are recorded before the first error among them is raised."""
        results = await asyncio.gather(*calls, return_exceptions=True)
        _raise_first(results, self._run.plan)
        return results  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class _Checkpoints:
    _run: HandlerRun = field(repr=False)

    def _pack(self, value: Any, name: str) -> Part:
        if check_name(name, "checkpoint") in (RESERVED, RUNNING):
            raise InvalidSetting(f"the checkpoint name {name!r} is reserved", code="reserved_name")
        vault, claim = self._run.session.vault, self._run.claim
        text = vault.encode_part(value, "checkpoint")
        return vault.pack_part(text, what="checkpoint", tenant=claim.tenant, job_id=claim.id, place=name)

    def _note(self, ref: str) -> Flow[bool]:
        claim, session = self._run.claim, self._run.session
        return session.store.steps.note_upload(claim.id, claim.lease, claim.attempt, ref, session.scope)

    def _upload(self, part: Part) -> None:
        self._run.session.vault.upload(part, tenant=self._run.claim.tenant, job_id=self._run.claim.id)

    def _save(self, text: str, name: str) -> Flow[bool]:
        claim = self._run.claim
        # With the scope of the lease, which may be every tenant.
        return self._run.session.store.steps.save_checkpoint(
            claim.id, claim.lease, claim.attempt, name, text, self._run.session.scope
        )

    def _load(self) -> Flow[dict[str, Any]]:
        return self._run.session.store.jobs.checkpoints(self._run.claim.id, self._run.claim.tenant)

    def _value(self, checkpoints: dict[str, Any], name: str, default: Any) -> Any:
        if name not in checkpoints:
            return default
        claim = self._run.claim
        return self._run.session.vault.open_part(
            checkpoints[name], what="checkpoint", tenant=claim.tenant, job_id=claim.id, place=name
        )

    def _check(self, accepted: bool) -> None:
        if not accepted:
            raise StaleLease(f"job {self._run.claim.id} is no longer claimed by this worker")


class Checkpoints(_Checkpoints):
    """Named values that survive the attempt: ``await ctx.checkpoint.save({"row": 4711})``."""

    __slots__ = ()

    async def save(self, value: Any, name: str = "progress") -> None:
        """Keep a value for later attempts. Saving under the same name replaces it. A value above 1 MiB goes to the
        artifact store."""
        part = self._pack(value, name)
        if part.ref is not None:
            self._check(await self._run.session.arun(self._note(part.ref)))
            await asyncio.to_thread(self._upload, part)
        self._check(await self._run.session.arun(self._save(part.text, name)))

    async def load(self, name: str = "progress", default: Any = None) -> Any:
        """The value saved under this name, in this attempt or an earlier one."""
        checkpoints = await self._run.session.arun(self._load())
        if is_stored(checkpoints.get(name)):
            return await asyncio.to_thread(self._value, checkpoints, name, default)
        return self._value(checkpoints, name, default)


class SyncCheckpoints(_Checkpoints):
    """Named values that survive the attempt, for sync handlers: ``ctx.checkpoint.save({"row": 4711})``."""

    __slots__ = ()

    def save(self, value: Any, name: str = "progress") -> None:
        """Keep a value for later attempts. Saving under the same name replaces it. A value above 1 MiB goes to the
        artifact store."""
        part = self._pack(value, name)
        if part.ref is not None:
            self._check(self._run.session.run(self._note(part.ref)))
            self._upload(part)
        self._check(self._run.session.run(self._save(part.text, name)))

    def load(self, name: str = "progress", default: Any = None) -> Any:
        """The value saved under this name, in this attempt or an earlier one."""
        return self._value(self._run.session.run(self._load()), name, default)

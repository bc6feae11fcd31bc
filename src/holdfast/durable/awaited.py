"""The durable verbs of an async handler: ``await ctx.step(…)`` and the rest."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

from holdfast.durable.approvals import Asking, Decision, decision
from holdfast.durable.plan import Plan, running
from holdfast.durable.values import AppEvent, is_async, label_of
from holdfast.engine.retry import Retry, as_policy
from holdfast.engine.steps import check_step_name
from holdfast.engine.units import Duration, seconds
from holdfast.runtime.ending import Suspended

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F")


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

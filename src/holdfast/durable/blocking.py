"""The durable verbs of a handler that is no coroutine: the same, and each returns when it is done."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import copy_context
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

from holdfast.durable.approvals import Asking, Decision, decision
from holdfast.durable.plan import Plan, running
from holdfast.durable.script import Durably
from holdfast.durable.values import AppEvent, is_async, label_of
from holdfast.engine.retry import Retry, as_policy
from holdfast.engine.steps import check_step_name
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidSetting
from holdfast.runtime.ending import Suspended

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

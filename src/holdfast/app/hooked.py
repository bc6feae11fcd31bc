"""Call a handler inside the ``around_run`` hooks of its kind. ``app/handlers.py`` uses it for kinds that have hooks."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import Any

from holdfast.engine.hooks import Around, RaisedError, RunInfo, enter
from holdfast.engine.job import Claim
from holdfast.worker.threads import Threads

Invoke = Callable[[Claim, tuple[Any, ...], dict[str, Any]], Awaitable[Any]]


def hooked(function: Callable[..., Any], hooks: Sequence[Around], threads: Threads, kind: str) -> Invoke:
    """Return a function that calls the handler inside its hooks.

    The sync hooks of a sync handler run in the handler's thread, because connections are often bound to a thread. Its
    async hooks need the event loop, so they are outside all sync hooks.
    """
    on_loop = inspect.iscoroutinefunction(function)
    around = tuple(hook for hook in hooks if on_loop or hook.is_async)
    within = tuple(hook for hook in hooks if hook not in around)

    async def call(info: RunInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if on_loop:
            return await function(*args, **kwargs)
        blocking = partial(function, *args, **kwargs)
        return await threads.run(kind, partial(_run_inside, within, info, blocking) if within else blocking)

    async def invoke(claim: Claim, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        info, kept, value = RunInfo.of(claim), RaisedError(), None
        async with AsyncExitStack() as stack:
            with kept:
                for hook in around:
                    await enter(stack, hook, info)
                value = await call(info, args, kwargs)
        kept.check()
        return value

    return invoke


def _run_inside(hooks: Sequence[Around], info: RunInfo, function: Callable[[], Any]) -> Any:
    kept, value = RaisedError(), None
    with ExitStack() as stack, kept:
        for hook in hooks:
            stack.enter_context(hook.enter(info))
        value = function()
    kept.check()
    return value

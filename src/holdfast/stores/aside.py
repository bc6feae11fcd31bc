"""A call that blocks, in a thread of its own beside the event loop.

``asyncio.to_thread`` has a handful of threads for the whole program, and handlers use them as well: what hangs there
would keep whoever else needs one, and so a worker from leaving. Whatever a worker itself depends on is done here.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def aside(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What it answers or raises. Whoever is cancelled here does not wait for it any longer; it goes on."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()
    call = partial(copy_context().run, function, *args, **kwargs)

    def run() -> None:
        tell: partial[Any]
        try:
            tell = partial(_set, answer, answer.set_result, call())
        except BaseException as error:
            tell = partial(_set, answer, answer.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
            loop.call_soon_threadsafe(tell)

    threading.Thread(target=run, name="holdfast-aside", daemon=True).start()
    return await answer


def _set(answer: asyncio.Future[Any], put: Callable[[Any], None], what: object) -> None:
    if not answer.done():
        put(what)

"""Running an event loop for a worker, which no handler can end.

A handler that calls ``sys.exit`` in a task of its own (``gather``, a task group) makes the loop itself stop, with
everything that runs on it: asyncio lets ``SystemExit`` and ``KeyboardInterrupt`` of any task through. The task has its
error nevertheless, so the loop is just entered again.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

log = logging.getLogger("holdfast.worker")

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run``, for work that runs handlers."""
    with asyncio.Runner() as runner:
        task = runner.get_loop().create_task(work)
        return entered_again(task, lambda: runner.run(_awaited(task)))


def entered_again(task: asyncio.Task[T], enter: Callable[[], T]) -> T:
    """What ``enter`` answers, which runs the loop until the task is done."""
    while True:
        try:
            return enter()
        except (SystemExit, KeyboardInterrupt) as error:
            if task.done() or (isinstance(error, KeyboardInterrupt) and _may_be_pressed()):
                raise
            log.error("a task of some handler raised %s; the worker goes on", type(error).__name__)


async def _awaited(task: asyncio.Task[T]) -> T:
    return await task


def _may_be_pressed() -> bool:
    """Whether a Ctrl-C would come as an exception: not where somebody has installed a handler for it."""
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler

"""Reuses asyncio tasks: one task runs several items one after another, because a new task costs more than a short
handler.

An item that awaits something keeps its task, which ends with it, and two new tasks continue with the queue. So a
thousand items that wait soon have a task each, and a thousand items that never wait share one. Handlers cannot notice:
each item has its own context, and a task is reused only if no reference to it was kept and it was not cancelled,
renamed or given a done callback. Such a task is as good as a new one (docs/adr/0025).

Kept references show in the reference count, which only CPython has. ``HOLDFAST_DISABLE=task-pool`` gives every item its
own task instead.
"""

from __future__ import annotations

import asyncio
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Generic, TypeVar

from holdfast import config

Item = TypeVar("Item")
Result = TypeVar("Result")


class TaskPool(Generic[Item, Result]):
    """``begin`` returns the coroutine of an item, or None if the item is no longer wanted. It gets the task that will
    run it. ``end`` gets the result: None if the task was cancelled, the exception if the coroutine raised one."""

    def __init__(
        self,
        begin: Callable[[Item, asyncio.Task[None]], Coroutine[Any, Any, Result] | None],
        end: Callable[[Item, Result | Exception | None], None],
    ) -> None:
        self._begin = begin
        self._end = end
        self._queue: deque[Item] = deque()
        self._starting = 0  # tasks that were created and have not started
        self._reuses = not config.is_disabled("task-pool")

    def add(self, items: Iterable[Item]) -> None:
        self._queue.extend(items)
        if self._queue and not self._starting:
            self._starting += 1
            if sys.version_info >= (3, 12):  # items that never wait then cost no iteration of the loop
                _Task(self._work(), loop=asyncio.get_running_loop(), eager_start=True)
            else:
                _Task(self._work(), loop=asyncio.get_running_loop())

    def _start(self, most: int) -> None:
        for _ in range(min(most, len(self._queue) - self._starting)):
            self._starting += 1
            # Not with the loop's task factory: an eager one would start each task inside the one before.
            _Task(self._work(), loop=asyncio.get_running_loop())

    async def _work(self) -> None:
        self._starting -= 1
        task = asyncio.current_task()
        assert isinstance(task, _Task)
        task.has_callback = False
        untouched = _traces(task)
        try:
            while self._queue:
                item = self._queue.popleft()
                work = self._begin(item, task)
                if work is None:
                    continue
                step = copy_context().run
                try:
                    awaited = step(work.send, None)
                except StopIteration as stopped:
                    self._end(item, stopped.value)
                except asyncio.CancelledError:
                    self._end(item, None)
                except Exception as error:
                    self._end(item, error)
                else:
                    self._start(2)
                    self._end(item, await _rest(work, step, awaited))
                    return
                del item, work, step  # they refer to the task
                if not self._reuses or _traces(task) != untouched:
                    break
        except Exception:  # a defect of the pool must not lose the other items
            self._start(1)
            raise
        self._start(1)


@types.coroutine
def _rest(
    work: Coroutine[Any, Any, Result], step: Callable[..., Any], awaited: object
) -> Generator[object, Any, Result | Exception | None]:
    """Run the rest of a coroutine that has awaited something, every step in its own context. Returns the argument of
    ``end``."""
    try:
        while True:
            try:
                resume = partial(work.send, (yield awaited))
            except BaseException as error:  # thrown in after this block, or it would become the context of later errors
                resume = partial(work.throw, error)
            try:
                awaited = step(resume)
            finally:
                del resume  # the traceback of an error refers to this frame
    except StopIteration as stopped:
        result: Result = stopped.value
        return result
    except asyncio.CancelledError:
        return None
    except Exception as error:
        return error


class _Task(asyncio.Task[None]):
    """A task that knows whether it has a done callback."""

    __slots__ = ("has_callback",)

    def add_done_callback(self, fn: Callable[[Any], object], /, *, context: Context | None = None) -> None:
        self.has_callback = True
        super().add_done_callback(fn, context=context)


def _traces(task: _Task) -> tuple[object, ...]:
    """State of a task that differs once a handler has done something to it that lasts."""
    return (
        sys.getrefcount(task),
        weakref.getweakrefcount(task),
        task.has_callback,
        task.cancelling(),
        task.get_name(),
    )

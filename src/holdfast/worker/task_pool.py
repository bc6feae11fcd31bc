"""Tasks that run things one after another. A task of its own for each costs more than a short handler does.

A thing that waits keeps its task, which ends with it, and two others go on with what is queued: of a thousand that wait
each has a task soon, and a thousand that do not are run by one. None can tell: each has a context of its own, and a
task goes on to the next only if nobody has kept hold of it, cancelled it, named it or asked to be called when it ends.
Such a task is as good as a new one (docs/adr/0041).

Whether somebody kept hold of a task is read from its reference count, which CPython alone has.
``HOLDFAST_DISABLE=task-pool`` gives every thing a task of its own instead.
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

Thing = TypeVar("Thing")
End = TypeVar("End")


class TaskPool(Generic[Thing, End]):
    """``begin`` answers what a thing is to do, or None if it is not wanted any more; it is told the task that will do
    it. ``over`` is told how it ended: None if its task was cancelled, and the error if it raised one, which is not for
    a thing to do: it has ended all the same."""

    def __init__(
        self,
        begin: Callable[[Thing, asyncio.Task[None]], Coroutine[Any, Any, End] | None],
        over: Callable[[Thing, End | Exception | None], None],
    ) -> None:
        self._begin = begin
        self._over = over
        self._queue: deque[Thing] = deque()
        self._coming = 0  # tasks that have been made and not begun
        self._reuses = not config.is_disabled("task-pool")

    def take(self, things: Iterable[Thing]) -> None:
        self._queue.extend(things)
        if self._queue and not self._coming:
            self._coming += 1
            if sys.version_info >= (3, 12):  # what never waits then costs no trip of the loop
                _Task(self._work(), loop=asyncio.get_running_loop(), eager_start=True)
            else:
                _Task(self._work(), loop=asyncio.get_running_loop())

    def _call(self, most: int) -> None:
        for _ in range(min(most, len(self._queue) - self._coming)):
            self._coming += 1
            # By the class: a factory that begins tasks at once would have each begin within the one before.
            _Task(self._work(), loop=asyncio.get_running_loop())

    async def _work(self) -> None:
        self._coming -= 1
        task = asyncio.current_task()
        assert isinstance(task, _Task)
        task.asked = False
        untouched = _traces(task)
        try:
            while self._queue:
                thing = self._queue.popleft()
                work = self._begin(thing, task)
                if work is None:
                    continue
                step = copy_context().run
                try:
                    awaited = step(work.send, None)
                except StopIteration as stopped:
                    self._over(thing, stopped.value)
                except asyncio.CancelledError:
                    self._over(thing, None)
                except Exception as error:
                    self._over(thing, error)
                else:
                    self._call(2)
                    self._over(thing, await _rest(work, step, awaited))
                    return
                del thing, work, step  # they know the task
                if not self._reuses or _traces(task) != untouched:
                    break
        except Exception:  # a mistake of ours: the others must not be lost with it
            self._call(1)
            raise
        self._call(1)


@types.coroutine
def _rest(
    work: Coroutine[Any, Any, End], step: Callable[..., Any], awaited: object
) -> Generator[object, Any, End | Exception | None]:
    """Of what waits, each step in its own context. Answers as ``over`` is told."""
    try:
        while True:
            try:
                resume = partial(work.send, (yield awaited))
            except BaseException as error:  # thrown in only after this, or it would be the context of others
                resume = partial(work.throw, error)
            try:
                awaited = step(resume)
            finally:
                del resume  # an error knows this frame
    except StopIteration as stopped:
        end: End = stopped.value
        return end
    except asyncio.CancelledError:
        return None
    except Exception as error:
        return error


class _Task(asyncio.Task[None]):
    """One that knows whether somebody wants to be called when it ends."""

    __slots__ = ("asked",)

    def add_done_callback(self, fn: Callable[[Any], object], /, *, context: Context | None = None) -> None:
        self.asked = True
        super().add_done_callback(fn, context=context)


def _traces(task: _Task) -> tuple[object, ...]:
    """What differs once somebody has done something to a task that may be seen later."""
    held, watched = sys.getrefcount(task), weakref.getweakrefcount(task)
    return held, watched, task.asked, task.cancelling(), task.get_name()

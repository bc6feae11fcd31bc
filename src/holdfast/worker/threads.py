"""Threads for handlers that are plain functions.

A thread cannot be stopped: one whose job has timed out or was cancelled runs on. In a pool of fixed size such threads
would take one slot after another for good, so here a thread is only ever waited for by the job it is running: an idle
one is used again, and when none is idle another is started. As the worker runs at most so many jobs at a time, there
are at most that many threads, and the stuck ones. They are daemons: a process that ends does not wait for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import queue
import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from holdfast.engine.redaction import one_line

log = logging.getLogger("holdfast.worker")

T = TypeVar("T")

IDLE_FOR = 30.0
PATIENCE = 1.0
"""How long a thread may take to notice that its job is over before somebody is told."""

_numbers = itertools.count(1)


class Threads:
    """One queue for all: a thread that has just finished takes the next call without anybody having to wake up."""

    def __init__(self, *, idle_for: float = IDLE_FOR, patience: float = PATIENCE) -> None:
        self._idle_for = idle_for
        self._patience = patience
        self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._free = 0  # threads that are neither running a call nor needed for one that is queued
        self._stuck: dict[_Call, str] = {}

    @property
    def stuck(self) -> int:
        """How many threads go on though nobody waits for them any more."""
        return len(self._stuck)

    async def run(self, kind: str, function: Callable[[], T]) -> T:
        """Call the function in a thread, with the caller's context variables; ``kind`` is for what is logged.

        When the waiting task is cancelled this ends at once, and the thread whenever it likes.
        """
        loop = asyncio.get_running_loop()
        call = _Call(partial(copy_context().run, function), loop)
        self._submit(call)
        try:
            result: T = await call.future
            return result
        except asyncio.CancelledError:
            self._stuck[call] = kind
            if call.outlives(self._came_back):
                loop.call_later(self._patience, self._warn, call)
            raise

    def _submit(self, call: _Call) -> None:
        with self._lock:
            needed = self._free == 0
            self._free -= not needed
        if needed:  # first: where no thread can be started, nobody must find the call later and make it after all
            threading.Thread(target=self._serve, name=f"holdfast-job-{next(_numbers)}", daemon=True).start()
        self._calls.put(call)

    def _serve(self) -> None:
        while True:
            try:
                call = self._calls.get(timeout=self._idle_for)
            except queue.Empty:
                if self._retires():
                    return
                continue
            call.make()
            with self._lock:
                self._free += 1  # before the answer is known: whoever waits for it finds this thread free
            call.tell()
            del call  # what the handler returned must not live on in an idle thread

    def _retires(self) -> bool:
        """Whether an idle thread may end: not if the last free one was just given a call."""
        with self._lock:
            free = self._free > 0
            self._free -= free
            return free

    def _came_back(self, call: _Call) -> None:
        """In the call's own thread, or in the loop's when it had ended before."""
        self._stuck.pop(call, None)

    def _warn(self, call: _Call) -> None:
        kind = self._stuck.get(call)
        if kind is not None:
            log.warning(
                "A thread of kind %s keeps running after its job ended (%s such threads); check ctx.cancelled in "
                "the handler",
                one_line(kind),
                self.stuck,
            )


class _Call:
    """One function to run, and who is waiting for it."""

    __slots__ = ("_came_back", "_error", "_function", "_loop", "_result", "_running", "future")

    def __init__(self, function: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self._function = function
        self._loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self._running = True
        self._came_back: Callable[[_Call], None] | None = None
        self._result: Any = None
        self._error: BaseException | None = None

    def outlives(self, came_back: Callable[[_Call], None]) -> bool:
        """Whether it is still running; ``came_back`` is called when it is not, now or later.

        Each side writes its own word before it reads the other's, so at least one of them sees both.
        """
        self._came_back = came_back
        if not self._running:
            came_back(self)
        return self._running

    def make(self) -> None:
        try:
            self._result = self._function()
        except (StopIteration, GeneratorExit) as error:
            # Neither can be raised in whoever waits: to a coroutine they mean something else, and it would never end.
            self._error = RuntimeError(f"the handler raised {type(error).__name__}")
            self._error.__cause__ = error
        except BaseException as error:  # SystemExit and the like end a handler, not its thread
            self._error = error

    def tell(self) -> None:
        """Hand the answer over to the loop, if anybody is still waiting there."""
        self._running = False
        if self._came_back is not None:
            self._came_back(self)
        with contextlib.suppress(RuntimeError):  # the loop is gone, and whoever waited with it
            self._loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        if self.future.done():
            return
        if self._error is None:
            self.future.set_result(self._result)
        else:
            self.future.set_exception(self._error)

"""Threads for handlers that are plain functions.

A thread cannot be stopped: the thread of a job that timed out or was cancelled keeps running. In a pool of fixed size
such threads would use up one slot after another. Here only the job that a thread runs waits for it: an idle thread is
reused, and when none is idle another is started. So there are at most as many threads as the worker runs jobs at a
time, plus the stuck ones. They are daemons: the process does not wait for them when it ends. Results are handed to the
event loop in groups: one wake-up serves all calls that end before the loop comes to them.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from holdfast.engine.redaction import one_line

log = logging.getLogger("holdfast.worker")

T = TypeVar("T")

IDLE_FOR = 30.0
WARN_AFTER = 1.0
"""Seconds that a thread may take to notice that its job is over before a warning is logged."""

CHECK_EVERY = 1.0
"""Seconds between two checks of a waiting thread whether the worker's loop still exists."""

_numbers = itertools.count(1)


class Threads:
    """Idle threads share one queue: a thread that has just finished takes the next call without another waking up."""

    def __init__(self, *, idle_for: float = IDLE_FOR, warn_after: float = WARN_AFTER) -> None:
        self._idle_for = idle_for
        self._warn_after = warn_after
        self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._free = 0  # threads that are neither running a call nor needed for one that is queued
        self._results: _Results | None = None
        self._stuck: dict[_Call, str] = {}

    @property
    def stuck(self) -> int:
        """The number of threads that still run although their job is over."""
        return len(self._stuck)

    async def run(self, kind: str, function: Callable[[], T]) -> T:
        """Call the function in a thread, with the caller's context variables; ``kind`` is for log messages.

        When the waiting task is cancelled this ends at once. The thread continues until the function returns.
        """
        loop = asyncio.get_running_loop()
        if self._results is None or self._results.loop is not loop:
            self._results = _Results(loop)
        call = _Call(partial(copy_context().run, function), self._results)
        self._submit(call)
        try:
            result: T = await call.future
            return result
        except asyncio.CancelledError:
            self._stuck[call] = kind
            if call.still_runs(self._not_stuck):
                loop.call_later(self._warn_after, self._warn, call)
            raise

    def run_on_loop(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the worker's loop, from the thread of a call of ``run``, and wait for its result.

        Raises ``CancelledError`` if the loop is closed or the coroutine was cancelled.
        """
        try:
            future = asyncio.run_coroutine_threadsafe(work, loop)
        except RuntimeError:
            work.close()
            raise concurrent.futures.CancelledError from None
        while True:
            try:
                return future.result(CHECK_EVERY)
            except TimeoutError:
                if future.done():
                    return future.result()  # the coroutine raised TimeoutError, or has ended just now
                if loop.is_closed():
                    raise concurrent.futures.CancelledError from None

    def _submit(self, call: _Call) -> None:
        with self._lock:
            needed = self._free == 0
            self._free -= not needed
        if needed:  # before the call is queued: if no thread can be started, another must not run the call later
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
            call.run()
            with self._lock:
                self._free += 1  # before the result is delivered: the waiting task then finds this thread free
            call.deliver()
            del call  # an idle thread must not keep the handler's result alive

    def _retires(self) -> bool:
        """Whether an idle thread may end: not if the last free one was just given a call."""
        with self._lock:
            free = self._free > 0
            self._free -= free
            return free

    def _not_stuck(self, call: _Call) -> None:
        """Called in the call's own thread, or in the loop's if the call had ended before."""
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


class _Results:
    """The calls of one event loop that have ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._ended: deque[_Call] = deque()
        self._announced = False

    def add(self, call: _Call) -> None:
        self._ended.append(call)
        if not self._announced:
            self._announced = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        self._announced = False  # first: a call that ends from now on is announced again
        while self._ended:
            self._ended.popleft().set_result()


class _Call:
    """One function to run, and the future of its result."""

    __slots__ = ("_error", "_function", "_on_end", "_result", "_results", "_running", "future")

    def __init__(self, function: Callable[[], Any], results: _Results) -> None:
        self._function = function
        self._results = results
        self.future: asyncio.Future[Any] = results.loop.create_future()
        self._running = True
        self._on_end: Callable[[_Call], None] | None = None
        self._result: Any = None
        self._error: BaseException | None = None

    def still_runs(self, on_end: Callable[[_Call], None]) -> bool:
        """Whether it is still running. ``on_end`` is called when it is not, now or later.

        Both threads write their own attribute before they read the other's, so at least one of them sees both.
        """
        self._on_end = on_end
        if not self._running:
            on_end(self)
        return self._running

    def run(self) -> None:
        try:
            self._result = self._function()
        except (StopIteration, GeneratorExit) as error:
            # A coroutine cannot raise these as errors: the waiting task would never end.
            self._error = RuntimeError(f"the handler raised {type(error).__name__}")
            self._error.__cause__ = error
        except BaseException as error:  # SystemExit and the like end a handler, not its thread
            self._error = error

    def deliver(self) -> None:
        """Give the result to the loop, if a task still waits for it."""
        self._running = False
        if self._on_end is not None:
            self._on_end(self)
        self._results.add(self)

    def set_result(self) -> None:
        if self.future.done():
            return
        if self._error is None:
            self.future.set_result(self._result)
        else:
            self.future.set_exception(self._error)

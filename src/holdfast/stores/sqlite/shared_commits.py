"""``SharedCommits``: short writes that arrive while another one commits share the next transaction.

A commit waits for the disk, and one process has one writer at a time anyway. The first write leads: it runs at once and
alone, so a lone write never waits. Writes that arrive meanwhile wait, and the next leader runs all of them in one
transaction, each in its own savepoint. A caller returns only after that commit. A write that fails in company is rolled
back and runs again alone, after the others, so that its caller gets the same error as ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextvars import copy_context
from typing import Any, TypeVar

from holdfast.errors import StoreUnavailable
from holdfast.stores.flow import Flow
from holdfast.stores.locks import fork_safe_lock

T = TypeVar("T")
log = logging.getLogger("holdfast.store")

MOST = 200
"""Writes that share a commit."""


class Write:
    """A write that waits: of a thread (``woken``) or of a task (``future``)."""

    def __init__(self, flow: Flow[Any], future: asyncio.Future[Any] | None = None) -> None:
        self.flow, self.future = flow, future
        self.context = copy_context()  # a flow may read the tenant or the actor while it runs
        self.woken = threading.Event()
        self.leads = False
        self.ended = False
        self.result: Any = None
        self.error: BaseException | None = None

    def succeed(self, result: Any) -> None:
        self.ended, self.result = True, result

    def fail(self, error: BaseException) -> None:
        self.ended, self.error = True, error

    def value(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


class SharedCommits:
    def __init__(
        self,
        run_alone: Callable[[Flow[Any]], Any],
        run_together: Callable[[Sequence[Write]], None],
        thread: Callable[[], Executor],
    ) -> None:
        """``run_together`` calls ``succeed`` for each write that is committed. ``thread`` returns an executor with a
        thread of its own, which leads the writes of tasks."""
        self._run_alone, self._run_together, self._thread = run_alone, run_together, thread
        self._guard = fork_safe_lock()
        self._led = False
        self._waiting: deque[Write] = deque()
        self._owner = os.getpid()

    def run(self, flow: Flow[T]) -> T:
        write = None
        with self._guard:
            self._check_fork()
            if self._led:
                write = Write(flow)
                self._waiting.append(write)
            self._led = True
        if write is None:
            try:
                return self._run_alone(flow)  # type: ignore[no-any-return]
            finally:
                self._pass_on()
        try:
            write.woken.wait()
        except BaseException:  # interrupted
            with self._guard, contextlib.suppress(ValueError):
                self._waiting.remove(write)
            if write.leads:
                self._pass_on()
            raise
        if write.leads:
            try:
                self._lead(write)
            finally:
                self._pass_on()
        value: T = write.value()
        return value

    async def arun(self, flow: Flow[T]) -> T:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        write = Write(flow, future)
        with self._guard:
            self._check_fork()
            if not self._led:
                self._thread().submit(self._lead_tasks)
                self._led = True
            self._waiting.append(write)
        return await future

    def _check_fork(self) -> None:
        if self._owner != os.getpid():  # a forked child has neither the leader nor the callers
            self._led, self._waiting, self._owner = False, deque(), os.getpid()

    def _lead_tasks(self) -> None:
        """Lead while only tasks wait."""
        self._lead(None)
        while not self._pass_on(starts=False):
            self._lead(None)

    def _pass_on(self, *, starts: bool = True) -> bool:
        """Let a waiting thread lead next, or the thread of the tasks. False if the caller must go on leading."""
        with self._guard:
            self._led = bool(self._waiting)
            if not self._waiting:
                return True
            successor = next((write for write in self._waiting if write.future is None), None)
            if successor is not None:
                self._waiting.remove(successor)
                successor.leads = True
            elif not starts:
                return False
            else:
                try:
                    self._thread().submit(self._lead_tasks)
                except RuntimeError:  # the interpreter ends: no more threads
                    starts = False
        if successor is not None:
            successor.woken.set()
        elif not starts:
            self._lead_tasks()
        return True

    def _lead(self, own: Write | None) -> None:
        writes = [] if own is None else [own]
        with self._guard:
            while self._waiting and len(writes) < MOST:
                writes.append(self._waiting.popleft())
        # As with an executor: what is cancelled before it begins does not run.
        writes = [write for write in writes if write.future is None or not write.future.cancelled()]
        # A thread of a caller may be interrupted, as by Ctrl-C. The thread of the tasks must not end.
        ours = Exception if own is not None else BaseException
        try:
            if len(writes) > 1:
                try:
                    self._run_together(writes)
                except StoreUnavailable as error:  # not about one of them: a lock, the disk
                    for write in writes:
                        write.fail(error)
                except ours:  # one of them ended the transaction
                    log.debug("A shared transaction failed; its writes run alone", exc_info=True)
            for write in writes:
                if not write.ended:
                    try:
                        write.succeed(write.context.run(self._run_alone, write.flow))
                    except ours as error:
                        write.fail(error)
        finally:
            if any(not write.ended for write in writes):  # interrupted: the next leader runs the others
                with self._guard:
                    self._waiting.extendleft(w for w in reversed(writes) if not w.ended and w is not own)
            _finish([write for write in writes if write.ended and write is not own])


def _finish(writes: Sequence[Write]) -> None:
    """Wake the callers. Tasks of one loop are woken by one call."""
    loops: dict[asyncio.AbstractEventLoop, list[Write]] = {}
    for write in writes:
        if write.future is None:
            write.woken.set()
        else:
            loops.setdefault(write.future.get_loop(), []).append(write)
    for loop, group in loops.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed, and no task waits
            loop.call_soon_threadsafe(_resolve, group)


def _resolve(writes: Sequence[Write]) -> None:
    for write in writes:
        if write.future is None or write.future.done():
            continue
        if write.error is not None:
            write.future.set_exception(write.error)
        else:
            write.future.set_result(write.result)

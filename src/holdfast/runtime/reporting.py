"""Writing a running job's progress: the latest of what it says, about once a second, and always the last.

A handler may report from any thread and as often as it likes; it never waits for the database. One task on the
worker's loop does the writing, and is there only while there is something to write.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable

from holdfast.engine.job import Claim
from holdfast.errors import HoldfastError

log = logging.getLogger("holdfast.worker")

Write = Callable[[Claim, str], Awaitable[bool]]

EVERY = 1.0
LAST_WORD = 2.0
"""How long the end of an attempt waits for its last report to be written."""


# Held for an instant, by whoever swaps the latest report: one for all, as every attempt has a reporter.
_swapping = threading.Lock()


class Reporter:
    """``write`` stores one report and answers whether it was taken: a job that is no longer ours has no more to say.

    Every context has one, and most have nothing to say: what is None at first is so in the class. ``loop`` is the
    worker's, where it is not made there.
    """

    used = False
    """Whether there was anything to say: else there is nothing to close."""
    _latest: str | None = None
    _called = False
    _closing: asyncio.Event | None = None
    _task: asyncio.Task[None] | None = None

    def __init__(
        self, claim: Claim, write: Write, every: float = EVERY, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self._claim = claim
        self._write = write
        self._every = every
        self._loop = loop or asyncio.get_running_loop()

    def __call__(self, report: str) -> None:
        with _swapping:
            self.used = True
            self._latest = report
            if self._called:
                return
            self._called = True
        with contextlib.suppress(RuntimeError):  # a thread that outlived its worker
            self._loop.call_soon_threadsafe(self._begin)

    async def close(self) -> None:
        """Write what has not been written. Does not raise: the attempt has its own end."""
        self._close().set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORD):
                if self._task is not None:
                    await self._task
                await self._write_latest()

    def _close(self) -> asyncio.Event:
        """The sign that the attempt is over. Made, like everything else here, on the worker's loop."""
        if self._closing is None:
            self._closing = asyncio.Event()
        return self._closing

    def _begin(self) -> None:
        if not self._close().is_set():
            self._task = self._loop.create_task(self._attend())

    async def _attend(self) -> None:
        closing = self._close()
        while await self._write_latest() and not closing.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every):
                    await closing.wait()

    async def _write_latest(self) -> bool:
        """Answers whether there may be more: without anything new the task ends, and the next report starts one."""
        with _swapping:
            report, self._latest = self._latest, None
            self._called = report is not None
        if report is None:
            return False
        try:
            return await self._write(self._claim, report)
        except HoldfastError as error:
            log.warning("progress could not be written, trying again: %s", error)
            with _swapping:
                newer: str | None = self._latest  # said while this one was under way
                self._latest = newer or report
            return True

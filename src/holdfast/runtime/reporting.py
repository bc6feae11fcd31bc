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

from holdfast.domain.errors import HoldfastError

log = logging.getLogger("holdfast.worker")

EVERY = 1.0
LAST_WORD = 2.0
"""How long the end of an attempt waits for its last report to be written."""


class Reporter:
    """``write`` stores one report and answers whether it was taken: a job that is no longer ours has no more to say."""

    def __init__(self, write: Callable[[str], Awaitable[bool]], *, every: float = EVERY) -> None:
        self._write = write
        self._every = every
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._latest: str | None = None
        self._called = False
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __call__(self, report: str) -> None:
        with self._lock:
            self._latest = report
            if self._called:
                return
            self._called = True
        with contextlib.suppress(RuntimeError):  # a thread that outlived its worker
            self._loop.call_soon_threadsafe(self._begin)

    async def close(self) -> None:
        """Write what has not been written. Does not raise: the attempt has its own end."""
        if self._task is None and self._latest is None:
            return  # most jobs have nothing to say
        self._closing.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORD):
                if self._task is not None:
                    await self._task
                await self._write_latest()

    def _begin(self) -> None:
        if not self._closing.is_set():
            self._task = self._loop.create_task(self._attend())

    async def _attend(self) -> None:
        while await self._write_latest() and not self._closing.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every):
                    await self._closing.wait()

    async def _write_latest(self) -> bool:
        """Answers whether there may be more: without anything new the task ends, and the next report starts one."""
        with self._lock:
            report, self._latest = self._latest, None
            self._called = report is not None
        if report is None:
            return False
        try:
            return await self._write(report)
        except HoldfastError as error:
            log.warning("progress could not be written, trying again: %s", error)
            with self._lock:
                newer: str | None = self._latest  # said while this one was under way
                self._latest = newer or report
            return True

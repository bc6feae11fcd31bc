"""``SleepingWorker``: a worker that closes its connections while there is nothing to do, to let the database sleep.

It runs one ``Worker`` after another. Each ends when it has been idle for ``idle_after`` seconds. Then its lease and all
connections are closed until the next known work is due, until ``wake`` is called, or until ``wake_every`` seconds have
passed. A worker that wakes and finds nothing sleeps again after two seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.errors import InvalidSetting, StoreUnavailable
from holdfast.stores.flow import in_thread
from holdfast.worker.options import WorkerOptions

if TYPE_CHECKING:
    from holdfast.features.assembly import Store
    from holdfast.worker.worker import Worker

log = logging.getLogger("holdfast.worker")

RETRY_AFTER = 5.0
"""Seconds until the next attempt, if the database cannot be reached or work is due that the worker did not see."""
NEW_WORK = frozenset({"promote", "schedules", "claim", "callbacks", "operations"})


class SleepingWorker:
    """Has the methods of a ``Worker`` that start, stop and describe it."""

    def __init__(self, store: Store, make: Callable[[], Worker]) -> None:
        if store.embedded:
            raise InvalidSetting(
                "an embedded database has no connections to close", code="conflicting_options", fix="Omit idle_after."
            )
        self._store = store
        self._make = make
        self._worker = make()
        self._earlier = 0
        self._asleep = False
        self._stopping = False
        self._awaken = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def options(self) -> WorkerOptions:
        return self._worker.options

    @property
    def name(self) -> str:
        return self._worker.name

    @property
    def taken(self) -> int:
        return self._earlier + self._worker.taken

    def ready(self) -> tuple[bool, str]:
        return (True, "asleep") if self._asleep else self._worker.ready()

    def stop(self) -> None:
        self._stopping = True
        self._worker.stop()
        self.wake()

    def stop_now(self) -> None:
        self._stopping = True
        self._worker.stop_now()
        self.wake()

    def wake(self) -> None:
        """Look for work now. Does nothing while the worker is awake. May be called from any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._awaken.set)

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        while True:
            await self._worker.run()
            if self._stopping or not self._worker.fell_asleep:
                return
            pause = await self._next_look(self.options.wake_every)
            worker = None
            while worker is None:
                if await self._sleep(pause):
                    return
                try:
                    worker = await in_thread(self._make)  # it blocks, and a database that wakes up takes its time
                except StoreUnavailable as error:
                    self._store.outage.failed(error)
                    pause = RETRY_AFTER
            worker.woken = True
            self._earlier += self._worker.taken
            self._worker = worker

    async def _next_look(self, longest: float) -> float:
        """Read when the next work is due, as the last query before the connections are closed."""
        try:
            due = await self._store.due_work(self._worker.lease, self._worker.options.tenant)
        except StoreUnavailable as error:
            self._store.outage.failed(error)
            return RETRY_AFTER
        if due is None:
            return longest
        # Jobs that this worker has just seen and did not take, for example because their kind is unknown, do not count.
        if due.tasks & (NEW_WORK if self._worker.taken else NEW_WORK - {"claim"}):
            return min(RETRY_AFTER, longest)
        return longest if due.next_in is None else min(longest, due.next_in)

    async def _sleep(self, pause: float) -> bool:
        """Sleep without connections. Returns whether the worker was stopped."""
        self._awaken.clear()
        if not self._stopping:
            await self._store.aclose()
            self._asleep = True
            log.info("Asleep without connections for %.0f s at most", pause)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._awaken.wait()
            self._asleep = False
        return self._stopping

"""Batch writer of steps, throttled writer of progress.

Writing the steps of a worker's handlers: what gathers while one write is under way goes with the next.

A step is a write of its own in every handler that waits for it, and each commit waits for the disk. With a hundred
handlers at work, a hundred steps are one commit.

Writing a running job's progress: the latest of what it says, about once a second, and always the last.

A handler may report from any thread and as often as it likes; it never waits for the database. One task on the
worker's loop does the writing, and is there only while there is something to write.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.engine.job import Claim
from holdfast.engine.steps import Saved, StepEntry
from holdfast.errors import HoldfastError, StaleLease, StoreError

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

log = logging.getLogger("holdfast.worker")

MOST = 500
LARGEST = 4_000_000
"""Characters in one write. One entry may have a million, and a server reads it all before it does anything."""
LAST_MOMENT = 0.5
"""How long somebody who is stopped waits for a step that is done to be written: then it need not be done again."""


@dataclass(slots=True)
class _Write:
    """The entries of one handler, and who waits for them to be kept."""

    claim: Claim
    entries: list[StepEntry]
    done: asyncio.Future[list[Saved]] = field(compare=False)

    @property
    def size(self) -> int:
        return sum(len(entry.value or "") for entry in self.entries)


class StepWriter:
    """One for all handlers of a worker. ``tenant`` is the scope of its lease."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._store = store
        self._tenant = tenant
        self._waiting: list[_Write] = []
        self._task: asyncio.Task[None] | None = None
        self.closed = False

    async def save(self, claim: Claim, entries: list[StepEntry]) -> list[Saved]:
        """Returns when they are durable. A store that is away is waited for, as long as whoever called waits."""
        if self.closed:
            raise asyncio.CancelledError
        loop = asyncio.get_running_loop()
        write = _Write(claim, entries, loop.create_future())
        self._waiting.append(write)
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._attend())
        try:
            return await asyncio.shield(write.done)
        except asyncio.CancelledError:
            await asyncio.wait({write.done}, timeout=LAST_MOMENT)
            raise
        finally:
            write.done.cancel()

    async def aclose(self) -> None:
        """The worker leaves. Threads that nobody could stop may still be waiting here, or come yet: they are sent away,
        so that nothing is asked of a store that is being closed."""
        self.closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=LAST_MOMENT)  # longer only if the store does not answer
        for write in self._waiting:
            write.done.cancel()

    async def _attend(self) -> None:
        while self._waiting:
            batch = self._take_batch()
            await self._write(batch[0].claim.lease, batch)

    def _take_batch(self) -> list[_Write]:
        """What fits into one write. Of a job it is one attempt: a thread that could not be stopped may still tell of
        the one before, and the store's answers do not say of which they are."""
        lease, size = self._waiting[0].claim.lease, 0
        batch: list[_Write] = []
        passed: list[_Write] = []
        attempts: dict[str, int] = {}
        for write in self._waiting:
            if len(batch) == MOST or size >= LARGEST:
                break
            claim = write.claim
            fits = claim.lease == lease and attempts.setdefault(claim.id, claim.attempt) == claim.attempt
            (batch if fits else passed).append(write)
            size += write.size if fits else 0
        self._waiting = passed + self._waiting[len(batch) + len(passed) :]
        return batch

    async def _write(self, lease: str, batch: list[_Write]) -> None:
        entries = [(w.claim.id, w.claim.attempt, entry) for w in batch for entry in w.entries]
        try:
            answers = await self._store.arun(self._store.steps.save(lease, entries, self._tenant))
        except asyncio.CancelledError:
            for write in batch:
                write.done.cancel()
            raise
        except StoreError as error:
            self._waiting[:0] = [write for write in batch if not write.done.done()]  # some may have been cancelled
            log.warning("Steps could not be written, retrying: %s", error)
            await asyncio.sleep(random.uniform(0.1, 0.5))
        except StaleLease as error:
            for write in batch:
                _tell(write.done, error)
        except Exception as error:
            if len(batch) == 1:
                _tell(batch[0].done, error)
                return
            for write in batch:  # it is one of them; the others are not to suffer
                await self._write(lease, [write])
        else:
            for write in batch:
                _tell(write.done, answers and [answer for answer in answers if answer.job_id == write.claim.id])


def _tell(waiter: asyncio.Future[list[Saved]], answer: list[Saved] | Exception) -> None:
    if waiter.done():
        return
    if isinstance(answer, Exception):
        waiter.set_exception(answer)
    else:
        waiter.set_result(answer)


Write = Callable[[Claim, str], Awaitable[bool]]

EVERY = 1.0
LAST_WORD = 2.0
"""How long the end of an attempt waits for its last report to be written."""


# Held for an instant, by whoever swaps the latest report: one for all, as every attempt has a reporter.
_swapping = threading.Lock()


class ProgressWriter:
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
            log.warning("Progress could not be written, retrying: %s", error)
            with _swapping:
                newer: str | None = self._latest  # said while this one was under way
                self._latest = newer or report
            return True

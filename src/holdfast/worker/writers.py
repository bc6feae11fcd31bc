"""Writes steps in batches, and progress about once a second.

A handler waits for each of its steps to be committed, and each commit waits for the disk. Steps that arrive while one
write is under way go with the next, so a hundred steps of a hundred handlers are one commit.

A handler may report progress from any thread and as often as it likes; it never waits for the database. One task on the
worker's loop writes the latest report, and always the last one. It exists only while there is something to write.
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

LARGEST_BATCH = 500
LARGEST_WRITE = 4_000_000
"""Characters in one write. One entry may have a million, and a server reads it all before it does anything."""
LAST_MOMENT = 0.5
"""Seconds that a cancelled handler waits for a finished step to be written, so that the step need not be repeated."""


@dataclass(slots=True)
class _Write:
    """The entries of one handler, and the future of the response. ``over``: it was answered, or nobody waits for it."""

    claim: Claim
    entries: list[StepEntry]
    done: asyncio.Future[list[Saved]] = field(compare=False)
    over: bool = False

    @property
    def size(self) -> int:
        return sum(len(entry.value or "") for entry in self.entries)

    def resolve(self, result: list[Saved] | Exception | None) -> None:
        """Answer the handler; None cancels it."""
        self.over = True
        if result is None:
            self.done.cancel()
        elif self.done.done():
            return
        elif isinstance(result, Exception):
            self.done.set_exception(result)
        else:
            self.done.set_result(result)


class StepWriter:
    """One for all handlers of a worker. ``tenant`` is the scope of its lease."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._store = store
        self._tenant = tenant
        self._waiting: list[_Write] = []
        self._task: asyncio.Task[None] | None = None
        self.closed = False

    async def save(self, claim: Claim, entries: list[StepEntry]) -> list[Saved]:
        """Returns when the entries are durable. Waits for an unreachable database as long as the caller waits."""
        if self.closed:
            raise asyncio.CancelledError
        loop = asyncio.get_running_loop()
        write = _Write(claim, entries, loop.create_future())
        self._waiting.append(write)
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())
        try:
            return await write.done  # without a shield, which costs more than the rest of this method
        except asyncio.CancelledError:
            if not write.over:  # the handler was cancelled, and its future with it
                write.done = loop.create_future()
                done, _ = await asyncio.wait({write.done}, timeout=LAST_MOMENT)
                for answered in done:
                    _ = answered.cancelled() or answered.exception()  # retrieved, or the loop would log it
            raise
        finally:
            write.resolve(None)

    async def aclose(self) -> None:
        """Cancel all waiting writes. Threads that cannot be stopped may still wait here, or call ``save`` later; they
        must not use a store that is being closed."""
        self.closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait(
                {self._task}, timeout=LAST_MOMENT
            )  # it takes longer only if the database does not respond
        for write in self._waiting:
            write.resolve(None)

    async def _run(self) -> None:
        while self._waiting:
            batch = self._take_batch()
            await self._write(batch[0].claim.lease, batch)

    def _take_batch(self) -> list[_Write]:
        """The writes that fit into one transaction, with one attempt per job: a thread that could not be stopped may
        still save steps of the previous attempt, and the responses do not contain the attempt."""
        lease, size = self._waiting[0].claim.lease, 0
        batch: list[_Write] = []
        skipped: list[_Write] = []
        attempts: dict[str, int] = {}
        for write in self._waiting:
            if len(batch) == LARGEST_BATCH or size >= LARGEST_WRITE:
                break
            claim = write.claim
            fits = claim.lease == lease and attempts.setdefault(claim.id, claim.attempt) == claim.attempt
            (batch if fits else skipped).append(write)
            size += write.size if fits else 0
        self._waiting = skipped + self._waiting[len(batch) + len(skipped) :]
        return batch

    async def _write(self, lease: str, batch: list[_Write]) -> None:
        entries = [(w.claim.id, w.claim.attempt, entry) for w in batch for entry in w.entries]
        try:
            saved = await self._store.arun(self._store.steps.save(lease, entries, self._tenant))
        except asyncio.CancelledError:
            for write in batch:
                write.resolve(None)
            raise
        except StoreError as error:
            self._waiting[:0] = [write for write in batch if not write.over]  # some may have been cancelled
            log.warning("Steps could not be written, retrying: %s", error)
            await asyncio.sleep(random.uniform(0.1, 0.5))
        except StaleLease as error:
            for write in batch:
                write.resolve(error)
        except Exception as error:
            if len(batch) == 1:
                batch[0].resolve(error)
                return
            for write in batch:  # one of them is the cause; the others must not fail with it
                await self._write(lease, [write])
        else:
            for write in batch:
                write.resolve(saved and [entry for entry in saved if entry.job_id == write.claim.id])


Write = Callable[[Claim, str], Awaitable[bool]]

EVERY = 1.0
CLOSE_TIMEOUT = 2.0
"""Seconds that the end of an attempt waits for its last report to be written."""


# One lock for all attempts: it is held for an instant, while the latest report is swapped.
_swapping = threading.Lock()


class ProgressWriter:
    """``write`` stores one report and returns whether it was accepted: not if the worker no longer holds the job.

    Every context has one, and most never use it, so the defaults are class attributes. ``loop`` is the worker's loop,
    if it is not the running one.
    """

    used = False
    """Whether there was a report; if not, there is nothing to close."""
    _latest: str | None = None
    _scheduled = False
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
            if self._scheduled:
                return
            self._scheduled = True
        with contextlib.suppress(RuntimeError):  # a thread that outlived its worker
            self._loop.call_soon_threadsafe(self._begin)

    async def close(self) -> None:
        """Write the last report. Does not raise, so that the attempt ends as it should."""
        self._closing_event().set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                if self._task is not None:
                    await self._task
                await self._write_latest()

    def _closing_event(self) -> asyncio.Event:
        """Set when the attempt is over. Created on the worker's loop, when it is needed."""
        if self._closing is None:
            self._closing = asyncio.Event()
        return self._closing

    def _begin(self) -> None:
        if not self._closing_event().is_set():
            self._task = self._loop.create_task(self._run())

    async def _run(self) -> None:
        closing = self._closing_event()
        while await self._write_latest() and not closing.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every):
                    await closing.wait()

    async def _write_latest(self) -> bool:
        """Returns whether there may be more. Without a new report the task ends, and the next report starts another."""
        with _swapping:
            report, self._latest = self._latest, None
            self._scheduled = report is not None
        if report is None:
            return False
        try:
            return await self._write(self._claim, report)
        except HoldfastError as error:
            log.warning("Progress could not be written, retrying: %s", error)
            with _swapping:
                newer: str | None = self._latest  # reported while this one was being written
                self._latest = newer or report
            return True

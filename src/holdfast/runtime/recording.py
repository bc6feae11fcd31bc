"""Writing the steps of a worker's handlers: what gathers while one write is under way goes with the next.

A step is a write of its own in every handler that waits for it, and each commit waits for the disk. With a hundred
handlers at work, a hundred steps are one commit.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass, field

from holdfast.engine.job import Claim
from holdfast.engine.steps import Saved, StepEntry
from holdfast.errors import StaleLease, StoreError
from holdfast.stores.base import Store

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


class Recorder:
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
            answers = await self._store.arun(self._store.verbs.save_steps(lease, entries, self._tenant))
        except asyncio.CancelledError:
            for write in batch:
                write.done.cancel()
            raise
        except StoreError as error:
            self._waiting[:0] = [write for write in batch if not write.done.done()]  # some may have been cancelled
            log.warning("steps could not be written, trying again: %s", error)
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

"""Writing the steps of a worker's handlers: what gathers while one write is under way goes with the next.

A step is a write of its own in every handler that waits for it, and each commit waits for the disk. With a hundred
handlers at work, a hundred steps are one commit.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

from holdfast.domain.errors import StoreError
from holdfast.domain.job import Claim
from holdfast.domain.steps import Saved, StepEntry
from holdfast.stores.base import Store

log = logging.getLogger("holdfast.worker")

MOST = 500


@dataclass(slots=True)
class _Write:
    """The entries of one handler, and who waits for them to be kept."""

    claim: Claim
    entries: list[StepEntry]
    done: asyncio.Future[list[Saved]] = field(compare=False)


class Recorder:
    """One for all handlers of a worker. ``tenant`` is the scope of its lease."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._store = store
        self._tenant = tenant
        self._waiting: list[_Write] = []
        self._task: asyncio.Task[None] | None = None

    async def save(self, claim: Claim, entries: list[StepEntry]) -> list[Saved]:
        """Returns when they are durable. A store that is away is waited for, as long as whoever called waits."""
        loop = asyncio.get_running_loop()
        write = _Write(claim, entries, loop.create_future())
        self._waiting.append(write)
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._attend())
        return await write.done

    async def _attend(self) -> None:
        while self._waiting:
            ready, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
            # Nearly always of one lease: there is another only after it was lost.
            for lease, batch in groupby(ready, attrgetter("claim.lease")):
                await self._write(lease, list(batch))

    async def _write(self, lease: str, batch: list[_Write]) -> None:
        entries = [(w.claim.id, w.claim.attempt, entry) for w in batch for entry in w.entries]
        try:
            answers = await self._store.arun(self._store.verbs.save_steps(lease, entries, self._tenant))
        except StoreError as error:
            self._waiting[:0] = [write for write in batch if not write.done.done()]  # some may have been cancelled
            log.warning("steps could not be written, trying again: %s", error)
            await asyncio.sleep(random.uniform(0.1, 0.5))
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

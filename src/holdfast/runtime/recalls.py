"""Running jobs that were cancelled are stopped. One row tells whether there are any, however many are running."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from holdfast.runtime.holdings import held_under, taken_away
from holdfast.runtime.keeper import Keeper
from holdfast.runtime.options import WorkerOptions
from holdfast.runtime.slots import Slots
from holdfast.stores.base import Store

log = logging.getLogger("holdfast.worker")

# A hint may come with every commit of a busy database; whether jobs were taken away is asked no more often than this.
LEAST_PAUSE = 0.1


class Recalls:
    def __init__(
        self, store: Store, slots: Slots, keeper: Keeper, options: WorkerOptions, freed: Callable[[], None]
    ) -> None:
        """``freed`` is called when there is room again."""
        self._store = store
        self._slots = slots
        self._keeper = keeper
        self._tenant = options.tenant
        self._every = options.recall_every
        self._freed = freed
        self._hinted = asyncio.Event()

    def hint(self) -> None:
        """Ask soon, instead of when it is time."""
        self._hinted.set()

    async def attend(self, leaving: asyncio.Event) -> None:
        seen: dict[str, int | None] = {}
        while not leaving.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every):
                    await self._hinted.wait()
            self._hinted.clear()
            lease = self._keeper.lease
            if not self._slots.running or leaving.is_set():
                continue
            try:
                count = await self._store.arun(self._store.verbs.recalls(lease, self._tenant))
                if count != seen.setdefault(lease, 0):
                    await self._stop_recalled(lease)
                    seen[lease] = count  # not before: what could not be asked for is asked for again
            except Exception as error:
                log.debug("could not ask for recalls: %s", error)
            await asyncio.sleep(LEAST_PAUSE)

    async def _stop_recalled(self, lease: str) -> None:
        running = dict(self._slots.running)
        held = await held_under(self._store, lease, self._tenant)
        gone = await taken_away(self._store, running, held, self._tenant)
        # Meanwhile an attempt may have ended and the next one begun: that one is ours.
        same = [job_id for job_id in gone if self._slots.running.get(job_id) is running[job_id]]
        stopped = self._slots.forget(same, "cancelled") if lease == self._keeper.lease else 0
        if stopped:
            log.info("%s running jobs were cancelled", stopped)
            self._freed()

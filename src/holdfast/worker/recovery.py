"""What a worker does after an exchange with the database has failed.

The outcome of a failed exchange is unknown: its settlements may be recorded or not, and jobs may have been claimed
without this worker knowing. So the results are kept, and before the next exchange the worker compares what it holds
with what the database has under its lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from holdfast.engine.settlement import Settlement
from holdfast.errors import HoldfastError, Refused, StaleLease, StoreUnavailable
from holdfast.stores.outage import pause_after
from holdfast.worker.end_hooks import EndReports
from holdfast.worker.lease import LeaseKeeper, cancelled_jobs, jobs_under
from holdfast.worker.options import WorkerOptions
from holdfast.worker.refusals import is_refusal, set_aside, settle_singly
from holdfast.worker.slots import Slots

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

log = logging.getLogger("holdfast.worker")


class ExchangeRecovery:
    """``stop`` stops the worker; it is called when the database no longer accepts its executor."""

    def __init__(
        self,
        store: Store,
        options: WorkerOptions,
        kinds: Iterable[str],
        slots: Slots,
        keeper: LeaseKeeper,
        reports: EndReports,
        stop: Callable[[], None],
    ) -> None:
        self._store = store
        self._options = options
        self._kinds = tuple(kinds)
        self._slots = slots
        self._keeper = keeper
        self._reports = reports
        self._stop = stop
        self.must_reconcile = False
        self.last_exchange_failed = False
        self._settle_singly = False  # the database may have refused one of the settlements
        self._failures = 0  # in a row

    @property
    def failing(self) -> bool:
        """Both are needed: of two exchanges under way, one may succeed and the other fail."""
        return self.last_exchange_failed or self.must_reconcile

    def exchange_succeeded(self) -> None:
        self.last_exchange_failed, self._failures = False, 0

    async def exchange_failed(self, ended: list[Settlement], error: Exception) -> None:
        """Keep the results, to settle them when the database is back if the lease is still valid."""
        self._slots.ended[:0] = ended
        self.must_reconcile = self.last_exchange_failed = True
        self._settle_singly = bool(ended) and is_refusal(error)
        if isinstance(error, StaleLease):
            self._keeper.lost = True
        elif not ended and await self._set_aside(error):
            pass  # the next claim skips the rows that made this one fail
        elif isinstance(error, Refused) and error.code == "executor_refused":
            # The executor was removed from the list of those that may claim. Running jobs may end.
            log.error("The worker stops claiming jobs: %s", error)
            self._stop()
        else:
            self._log(error)

    async def _set_aside(self, error: Exception) -> bool:
        options = self._options
        try:
            return await set_aside(self._store, error, options.tenant, self._keeper.lease, options.queues, self._kinds)
        except Exception as trouble:
            log.warning("The refused rows cannot be found: %s", trouble)
            return False

    def _log(self, error: Exception) -> None:
        if isinstance(error, StoreUnavailable):
            self._store.outage.failed(error)
            return
        known = isinstance(error, HoldfastError)
        log.warning("An exchange with the database failed, retrying: %s", error, exc_info=None if known else error)

    async def reconcile(self) -> None:
        """Compare with the database, after a pause that grows with the failures. To be called while no exchange is
        under way."""
        self._failures += 1  # here, not per exchange: one lost connection may end several exchanges
        if pause := pause_after(self._failures):
            await asyncio.sleep(pause)
        try:
            await self._compare_holdings()
            self._reports.keep_only(self._slots.ended)
            if self._settle_singly:
                await self._settle_refused()
            self.must_reconcile = self._settle_singly = False
        except StaleLease:
            self._keeper.lost = True
        except Exception as error:
            self._log(error)

    async def _compare_holdings(self) -> None:
        """Return the jobs to the queue that were claimed for this worker but never started. Drop the jobs and results
        that are no longer under its lease."""
        slots, tenant = self._slots, self._options.tenant
        started = set(slots.running)  # some may end during the query
        held = await jobs_under(self._store, self._keeper.lease, tenant)
        slots.forget(await cancelled_jobs(self._store, started, held, tenant), "cancelled")
        slots.ended = [item for item in slots.ended if held.get(item.id) == item.attempt]
        known = started | {item.id for item in slots.ended} | slots.unmovable
        slots.return_unstarted((job_id, attempt) for job_id, attempt in held.items() if job_id not in known)

    async def _settle_refused(self) -> None:
        ended = self._slots.take_ended()
        lease, unmovable = self._keeper.lease, self._slots.unmovable
        try:
            await settle_singly(self._store, lease, ended, self._options.tenant, unmovable, self._reports.recorded)
        except BaseException:
            self._slots.ended[:0] = ended  # the next comparison drops those that were settled
            raise

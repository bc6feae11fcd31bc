"""What a worker does after the database has refused something, or an exchange with it has failed.

Every job must end, whatever its handler returned. Attempts are settled in bulk, so one refused settlement would make
all the others fail with it, again and again. After a refusal each is settled alone, and one that is refused again
becomes a dead letter with the reason.

The outcome of a failed exchange is unknown: its settlements may be recorded or not, and jobs may have been claimed
without this worker knowing. So the results are kept, and before the next exchange the worker compares what it holds
with what the database has under its lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.engine.job import Claim
from holdfast.engine.payload import safe_text
from holdfast.engine.settlement import MESSAGE_LIMIT, Settlement
from holdfast.engine.states import State
from holdfast.errors import (
    HoldfastError,
    InvalidInput,
    Refused,
    SchemaMismatch,
    StaleLease,
    StoreError,
    StoreUnavailable,
)
from holdfast.stores.flow import Flow
from holdfast.stores.outage import pause_after
from holdfast.stores.requests import ClaimRequest
from holdfast.telemetry.tracebacks import message_of, type_name

if TYPE_CHECKING:
    from holdfast.features.assembly import Store
    from holdfast.worker.end_hooks import EndReports
    from holdfast.worker.lease import LeaseKeeper
    from holdfast.worker.options import WorkerOptions
    from holdfast.worker.slots import Slots

log = logging.getLogger("holdfast.worker")

# Errors that may be caused by the settlement. A driver raises Python's own errors for text and numbers it cannot send.
_REFUSALS = (InvalidInput, Refused, StoreError, ValueError, TypeError, OverflowError)
# Errors of the database or the lease, among those: the settlement may succeed later.
_TRANSIENT = (StoreUnavailable, SchemaMismatch, StaleLease)
_TRANSIENT_CODES = ("paused", "tenant_full", "not_allowed", "executor_refused")
# Refusals of any change of a row, whatever the settlement.
_ROW_CODES = ("immutable", "illegal_transition", "broken_invariant")


def is_refusal(error: BaseException) -> bool:
    """Whether the written data may be the cause, and not the database or the lease."""
    if not isinstance(error, _REFUSALS) or isinstance(error, _TRANSIENT):
        return False
    return not (isinstance(error, Refused) and error.code in _TRANSIENT_CODES)


async def settle_singly(
    store: Store,
    lease: str,
    ended: Sequence[Settlement],
    tenant: str,
    unmovable: set[str],
    recorded: Callable[[list[Settlement], list[str]], None],
) -> list[str]:
    """Settle one after another what was refused together. Returns the ids that were no longer under this lease.

    A refused settlement is replaced by a dead letter. If that is refused too, the outcome is not the cause. If the
    database refuses any change of the job's row, the job is added to ``unmovable`` and stays under its lease, so that
    the others are settled; any other error is raised. ``recorded`` is called with each settlement that was written,
    and the stale ids among them.
    """
    stale: list[str] = []

    async def settle(item: Settlement) -> None:
        stale_now = await store.arun(store.leases.settle(lease, [item], tenant))
        stale.extend(stale_now)
        recorded([item], stale_now)

    for item in ended:
        try:
            await settle(item)
        except Exception as error:
            if not is_refusal(error):
                raise
            try:
                await settle(_dead_letter(item, error))
            except HoldfastError as again:
                if again.code not in _ROW_CODES:
                    raise
                unmovable.add(item.id)
                log.error("Job %s cannot be ended, the database refuses the transition: %s", item.id, again)
            else:
                log.error("The result of job %s cannot be recorded; moving it to the dead letters: %s", item.id, error)
    return stale


def _dead_letter(item: Settlement, error: Exception) -> Settlement:
    reason = error.message if isinstance(error, HoldfastError) else f"{type_name(error)}: {message_of(error)}"
    why = safe_text(f"the database refused the result of the attempt ({item.ending}): {reason}", MESSAGE_LIMIT)
    return Settlement(item.id, item.attempt, "dead_letter", code="outcome_refused", message=why)


async def quarantine(
    store: Store,
    error: BaseException,
    tenant: str,
    lease: str | None = None,
    queues: Sequence[str] = (),
    kinds: Sequence[str] | None = None,
) -> bool:
    """Make claims and maintenance skip the rows that the database refuses to change. Returns whether there were any.

    Does nothing about an error that no row can have caused.
    """
    if not is_refusal(error):
        return False
    ids = await store.arun(store.leases.quarantine(lease, queues, kinds, tenant=tenant))
    for job_id in ids:
        log.error("Job %s skipped: the database refuses the transition. See: holdfast jobs show %s", job_id, job_id)
    return bool(ids)


async def claim_jobs(
    store: Store, request: ClaimRequest, perform: Callable[[Flow[list[Claim]]], Awaitable[list[Claim]]]
) -> list[Claim]:
    """Claim jobs. If a row makes the claim fail, claim again without it."""
    try:
        return await perform(store.leases.claim(request))
    except Exception as error:
        if not await quarantine(store, error, request.tenant, request.lease, request.queues, request.kinds):
            raise
    return await perform(store.leases.claim(request))


async def compare_holdings(
    store: Store, lease: str, running: Collection[str], tenant: str
) -> tuple[dict[str, int], set[str]]:
    """The jobs under a lease, each with its attempt, and the running jobs that are not because they were cancelled. A
    handler that has committed its own transaction no longer holds its job either, and may continue."""
    # On a connection of the exchanges: after a lost connection the next exchange needs one too.
    holdings = await store.arun(replace(store.leases.holdings(lease, tenant), hot=True))
    held = {holding.id: holding.attempt for holding in holdings}
    missing = [job_id for job_id in running if job_id not in held]
    return held, {job_id for job_id in missing if not await _has_succeeded(store, job_id, tenant)}


async def _has_succeeded(store: Store, job_id: str, tenant: str) -> bool:
    job = await store.arun(store.jobs.get(job_id, tenant))
    return job is not None and job.state is State.SUCCEEDED


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
        self.failures = 0  # in a row

    @property
    def failing(self) -> bool:
        """Both are needed: of two exchanges under way, one may succeed and the other fail."""
        return self.last_exchange_failed or self.must_reconcile

    async def exchange_failed(self, ended: list[Settlement], error: Exception) -> None:
        """Keep the results, to settle them when the database is back if the lease is still valid."""
        self._slots.ended[:0] = ended
        self.must_reconcile = self.last_exchange_failed = True
        self._settle_singly = bool(ended) and is_refusal(error)
        if isinstance(error, StaleLease):
            self._keeper.lost = True
        elif not ended and await self._quarantine(error):
            pass  # the next claim skips the rows that made this one fail
        elif isinstance(error, Refused) and error.code == "executor_refused":
            # The executor was removed from the list of those that may claim. Running jobs may end.
            log.error("The worker stops claiming jobs: %s", error)
            self._stop()
        else:
            self._log(error)

    async def _quarantine(self, error: Exception) -> bool:
        options = self._options
        try:
            return await quarantine(self._store, error, options.tenant, self._keeper.lease, options.queues, self._kinds)
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
        self.failures += 1  # here, not per exchange: one lost connection may end several exchanges
        if pause := pause_after(self.failures):
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
        held, cancelled = await compare_holdings(self._store, self._keeper.lease, started, tenant)
        slots.forget(cancelled, "cancelled")
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

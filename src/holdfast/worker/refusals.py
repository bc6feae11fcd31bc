"""Results that the database refuses to record, and rows that it refuses to change.

Every job must end, whatever its handler returned. Attempts are settled in bulk, so one refused settlement would make
all the others fail with it, again and again. After a refusal each is settled alone, and one that is refused again
becomes a dead letter with the reason.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from holdfast.engine.job import Claim
from holdfast.engine.outcome import Failed, Outcome
from holdfast.engine.payload import safe_text
from holdfast.engine.settlement import MESSAGE_LIMIT, Settlement, decide
from holdfast.errors import (
    HoldfastError,
    InvalidInput,
    Refused,
    SchemaMismatch,
    StaleLease,
    StoreError,
    StoreUnavailable,
)
from holdfast.telemetry.tracebacks import message_of, type_name

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

log = logging.getLogger("holdfast.worker")

# Errors that may be caused by the settlement. A driver raises Python's own errors for text and numbers it cannot send.
_REFUSALS = (InvalidInput, Refused, StoreError, ValueError, TypeError, OverflowError)
# Errors of the database or the lease, among those: the settlement may succeed later.
_TRANSIENT = (StoreUnavailable, SchemaMismatch, StaleLease)
_TRANSIENT_CODES = ("paused", "tenant_full", "not_allowed", "executor_refused")
# Refusals of any change of a row, whatever the settlement.
_ROW_CODES = ("immutable", "illegal_transition", "broken_invariant")


def settlement_of(claim: Claim, outcome: Outcome, random01: float) -> Settlement:
    """``decide``, but never raises: an outcome that cannot be turned into a settlement becomes a failure."""
    try:
        return decide(claim, outcome, random01)
    except Exception as error:
        log.exception("The result of job %s cannot be recorded", claim.id)
        return decide(claim, unusable(error), random01)


def unusable(error: BaseException) -> Failed:
    return Failed("outcome_refused", f"the end of the attempt cannot be recorded: {type_name(error)}", final=True)


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
    unmovable: set[str] | None = None,
    recorded: Callable[[list[Settlement], list[str]], None] = lambda ended, stale: None,
) -> list[str]:
    """Settle one after another what was refused together. Returns the ids that were no longer under this lease.

    A refused settlement is replaced by a dead letter. If that is refused too, the outcome is not the cause. If the
    database refuses any change of the job's row, the job is added to ``unmovable`` and stays under its lease, so that
    the others are settled; any other error is raised. ``recorded`` is called with each settlement that was written,
    and the stale ids among them.
    """
    stale: list[str] = []
    for item in ended:
        try:
            stale_now = await store.arun(store.leases.settle(lease, [item], tenant))
            stale += stale_now
            recorded([item], stale_now)
        except Exception as error:
            if not is_refusal(error):
                raise
            dead_letter = _dead_letter(item, error)
            try:
                stale_now = await store.arun(store.leases.settle(lease, [dead_letter], tenant))
                stale += stale_now
                recorded([dead_letter], stale_now)
            except HoldfastError as again:
                if unmovable is None or again.code not in _ROW_CODES:
                    raise
                unmovable.add(item.id)
                log.error("Job %s cannot be ended, the database refuses the transition: %s", item.id, again)
            else:
                log.error("The result of job %s cannot be recorded; moving it to the dead letters: %s", item.id, error)
    return stale


def _dead_letter(item: Settlement, error: Exception) -> Settlement:
    reason = error.message if isinstance(error, HoldfastError) else f"{type_name(error)}: {message_of(error)}"
    why = safe_text(f"the database refused the result of the attempt ({item.ending}): {reason}", MESSAGE_LIMIT)
    return Settlement(item.id, item.attempt, "bury", code="outcome_refused", message=why)


async def set_aside(
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
    ids = await store.arun(store.leases.set_aside(lease, queues, kinds, tenant=tenant))
    for job_id in ids:
        log.error("Job %s skipped: the database refuses the transition. See: holdfast jobs show %s", job_id, job_id)
    return bool(ids)

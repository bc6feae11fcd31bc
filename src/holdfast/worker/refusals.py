"""Outcomes that the store refuses to record, and rows that it refuses to move.

Outcomes that cannot be recorded. Whatever a handler made of its end, its job must end, and so must those beside it.

Attempts are settled in bulk, so one that the store refuses would take the others with it, again and again. Then each is
settled by itself, and the one that is refused once more ends as a dead letter that says why.
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

# What may be about the outcome; text and numbers that a driver cannot send are Python's own errors.
_ABOUT_IT = (InvalidInput, Refused, StoreError, ValueError, TypeError, OverflowError)
# And what says nothing about it: it may be settled later.
_PASSING = (StoreUnavailable, SchemaMismatch, StaleLease)
# What the judges say of a row, whatever is to become of it.
_OF_THE_ROW = ("immutable", "illegal_transition", "broken_invariant")
_PASSING_CODES = ("paused", "tenant_full", "not_allowed", "executor_refused")


def settlement_of(claim: Claim, outcome: Outcome, random01: float) -> Settlement:
    """``decide``, which never fails here: an outcome that nothing can be made of is a failure, too."""
    try:
        return decide(claim, outcome, random01)
    except Exception as error:
        log.exception("The result of job %s cannot be recorded", claim.id)
        return decide(claim, unusable(error), random01)


def unusable(error: BaseException) -> Failed:
    return Failed("outcome_refused", f"the end of the attempt cannot be recorded: {type_name(error)}", final=True)


def is_refusal(error: BaseException) -> bool:
    """Whether it may be about what was to be written, and not about the store or the lease."""
    if not isinstance(error, _ABOUT_IT) or isinstance(error, _PASSING):
        return False
    return not (isinstance(error, Refused) and error.code in _PASSING_CODES)


async def settle_singly(
    store: Store,
    lease: str,
    ended: Sequence[Settlement],
    tenant: str,
    unmovable: set[str] | None = None,
    recorded: Callable[[list[Settlement], list[str]], None] = lambda ended, stale: None,
) -> list[str]:
    """Settle one after another what was refused together; answers the ids that were no longer this lease's.

    Where a plain failure is refused as well, it is not the outcome. If it is the job's own row that the database will
    not move, the job is added to ``unmovable`` and left to its lease, so that the others are settled; any other error
    is raised. ``recorded`` is called with each settlement that was written, and the stale ids among them.
    """
    stale: list[str] = []
    for item in ended:
        try:
            late = await store.arun(store.leases.settle(lease, [item], tenant))
            stale += late
            recorded([item], late)
        except Exception as error:
            if not is_refusal(error):
                raise
            instead = _in_its_place(item, error)
            try:
                late = await store.arun(store.leases.settle(lease, [instead], tenant))
                stale += late
                recorded([instead], late)
            except HoldfastError as again:
                if unmovable is None or again.code not in _OF_THE_ROW:
                    raise
                unmovable.add(item.id)
                log.error("Job %s cannot be ended, the database refuses the transition: %s", item.id, again)
            else:
                log.error("The result of job %s cannot be recorded; moving it to the dead letters: %s", item.id, error)
    return stale


def _in_its_place(item: Settlement, error: Exception) -> Settlement:
    said = error.message if isinstance(error, HoldfastError) else f"{type_name(error)}: {message_of(error)}"
    why = safe_text(f"the store refused how the attempt ended ({item.ending}): {said}", MESSAGE_LIMIT)
    return Settlement(item.id, item.attempt, "bury", code="outcome_refused", message=why)


async def set_aside(
    store: Store,
    error: BaseException,
    tenant: str,
    lease: str | None = None,
    queues: Sequence[str] = (),
    kinds: Sequence[str] | None = None,
) -> bool:
    """Whether rows were found, and are passed over from now on. Nothing is done about an error that is not of a row."""
    if not is_refusal(error):
        return False
    found = await store.arun(store.leases.set_aside(lease, queues, kinds, tenant=tenant))
    for job_id in found:
        log.error("Job %s skipped: the database refuses the transition. See: holdfast jobs show %s", job_id, job_id)
    return bool(found)

"""Bring a new job into any state by legal transitions: through the store, or by SQL where it has no operation."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.engine.job import Claim
from holdfast.engine.settlement import Settlement
from holdfast.engine.states import State
from holdfast.features.approvals.model import VoteVerdict
from holdfast.features.assembly import Store
from tests.support.direct_sql import ByHand
from tests.support.steps import asks
from tests.support.stores import DONE, FINAL, LATER, apply, claim, new_id, open_lease, put_one, settle, state_of

# The retention sweep makes this transition only in its time.
CLEAN = "update job_state set state = 'cleaned' where id = :id"


VOTE = (
    "insert into vote (approval_id, tenant, person, verdict, how, at)"
    " select id, tenant, 'ada', :verdict, 'by hand', (select now from present) from approval where id = :approval"
)
CLOSE = "update approval set state = :state, decided_at = (select now from present) where id = :approval"


@dataclass(frozen=True)
class Brought:
    """A job in the wanted state, the lease that holds it or held it last, and the approval it waits for."""

    id: str
    lease: str | None
    approval: str | None = None


def bring(store: Store, by_hand: ByHand, state: State, *, tenant: str = "default") -> Brought:
    """A new job in `state`, in a new queue."""
    queue = new_id()
    job_id = put_one(store, queue=queue, tenant=tenant)
    if state == State.QUEUED:
        return Brought(job_id, None)
    if state in (State.CANCELLED, State.CLEANED):
        store.run(store.jobs.operate("cancel", [job_id], None, "ada", tenant))
        if state == State.CLEANED:
            by_hand.execute(CLEAN, {"id": job_id})
        return Brought(job_id, None)
    lease = open_lease(store, ttl=1000)
    (held,) = claim(store, lease, queues=[queue], begin=state != State.LEASED)
    approval = new_id() if state == State.WAITING_FOR_APPROVAL else None
    _end(store, held, state, approval)
    assert state_of(store, job_id) == state
    return Brought(job_id, lease, approval)


def decide_by_hand(by_hand: ByHand, approval: str, verdict: VoteVerdict) -> None:
    """Record a person's decision and close the approval, which must happen before the job can leave it."""
    by_hand.execute(VOTE, {"approval": approval, "verdict": verdict})
    by_hand.execute(CLOSE, {"approval": approval, "state": "approved" if verdict == "approve" else "denied"})


def _end(store: Store, held: Claim, state: State, approval: str | None) -> None:
    match state:
        case State.SUCCEEDED:
            settle(store, held, DONE)
        case State.RETRY_WAITING:
            settle(store, held, LATER)
        case State.DEAD_LETTER:
            settle(store, held, FINAL)
        case State.FAILED:
            apply(store, held.lease, Settlement(held.id, held.attempt, "fail", code="denied", message="no"))
        case State.WAITING_FOR_APPROVAL:
            assert approval is not None
            apply(store, held.lease, asks(held, approval))

"""The way to each state: legal steps only, through the store where it has a verb for it, by hand where not yet."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.domain.job import Claim
from holdfast.domain.settlement import Settlement
from holdfast.domain.states import State
from holdfast.stores.base import Store
from tests.support.by_hand import ByHand
from tests.support.stores import (
    DONE,
    FINAL,
    LATER,
    apply,
    claim,
    new_id,
    open_lease,
    put_one,
    settle,
    state_of,
)

# Features that come later bring their own verbs for these two steps.
ASK = (
    "update job_state set state = 'waiting_for_approval', lease = null, settled_by = :lease, gate_id = :gate"
    " where id = :id"
)
CLEAN = "update job_state set state = 'cleaned' where id = :id"


@dataclass(frozen=True)
class Brought:
    """A job in the wanted state, and the lease that holds it or held it last."""

    id: str
    lease: str | None


def bring(store: Store, by_hand: ByHand, state: State, *, tenant: str = "default") -> Brought:
    """A new job in `state`; nothing else may be claimable in its queue of its own."""
    queue = new_id()
    job_id = put_one(store, queue=queue, tenant=tenant)
    if state == State.QUEUED:
        return Brought(job_id, None)
    if state in (State.CANCELLED, State.CLEANED):
        store.run(store.verbs.operate("cancel", [job_id], None, "ada", tenant))
        if state == State.CLEANED:
            by_hand.execute(CLEAN, {"id": job_id})
        return Brought(job_id, None)
    lease = open_lease(store, ttl=1000)
    (held,) = claim(store, lease, queues=[queue], begin=state != State.LEASED)
    _end(store, by_hand, held, state)
    assert state_of(store, job_id) == state
    return Brought(job_id, lease)


def _end(store: Store, by_hand: ByHand, held: Claim, state: State) -> None:
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
            by_hand.execute(ASK, {"id": held.id, "lease": held.lease, "gate": new_id()})

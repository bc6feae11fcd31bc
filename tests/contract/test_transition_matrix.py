"""Every ordered pair of states, tried by raw SQL, compared with the transition table (CX-1, DP-1).

Each update sets every field as the target state requires, so that only the pair itself can be refused. The three
implementations (Python, SQLite, PostgreSQL) cannot diverge unnoticed.
"""

from __future__ import annotations

import pytest

from holdfast.engine.states import FINISHED, HELD, PAIRS, State, is_legal
from holdfast.features.approvals.model import VoteVerdict
from holdfast.features.assembly import Store
from tests.support.direct_sql import ByHand
from tests.support.job_states import Brought, bring, decide_by_hand
from tests.support.stores import history, new_id, open_lease

pytestmark = pytest.mark.req("CX-1", "DP-1")

UPDATE = """
update job_state
   set state = :target, attempt = attempt + :starts, lease = :lease, settled_by = :shown, approval_id = :approval,
       due_at = case when :waits = 1 then (select now from present) end,
       finished_at = case when :ended = 1 then (select now from present) end,
       error_code = 'x', error_message = 'tried by a test'
 where id = :id
"""
# Without a transition no other column may change.
STAY = "update job_state set state = :target, attempt = attempt, lease = lease where id = :id"


# The vote that is needed before a job can leave its approval this way.
VERDICTS: dict[State, VoteVerdict] = {State.QUEUED: "approve", State.FAILED: "deny"}


def fields(source: State, target: State, brought: Brought, fresh: str) -> dict[str, object]:
    """The fields that make the row valid in `target`, coming from `source`."""
    held_by = brought.lease
    holder = None
    if target in HELD:
        holder = held_by if source in HELD else fresh
    return {
        "target": target.value,
        "starts": int(target == State.IN_PROGRESS and source != State.IN_PROGRESS),
        "lease": holder,
        "shown": held_by if source == State.IN_PROGRESS and target not in HELD else None,
        "approval": (brought.approval or new_id()) if target == State.WAITING_FOR_APPROVAL else None,
        "waits": int(target == State.RETRY_WAITING),
        "ended": int(target in FINISHED),
    }


@pytest.mark.every_case
@pytest.mark.parametrize("source", list(State))
def test_every_transition_is_allowed_or_refused_as_listed(store: Store, by_hand: ByHand, source: State) -> None:
    brought = bring(store, by_hand, source)
    fresh = open_lease(store, ttl=1000)
    events = len(history(store, brought.id))
    for target in State:
        by_hand.begin()
        if brought.approval is not None and target in VERDICTS:
            decide_by_hand(by_hand, brought.approval, VERDICTS[target])
        params = fields(source, target, brought, fresh) | {"id": brought.id}
        if source == target:
            refusal = by_hand.refusal(STAY, {"target": target.value, "id": brought.id})
        else:
            refusal = by_hand.refusal(UPDATE, params)
        if source == target or is_legal(source, target):
            assert refusal is None, f"{source} -> {target}: {refusal}"
            rows = by_hand.execute("select state from job_state where id = :id", {"id": brought.id})
            assert rows == [(target.value,)]
            steps = by_hand.execute(
                "select from_state, to_state from event where job_id = :id order by seq", {"id": brought.id}
            )
            assert len(steps) == events + (source != target), f"{source} -> {target}: one event per transition"
            if source != target:
                assert steps[-1] == (source.value, target.value)
        else:
            assert refusal is not None, f"{source} -> {target} was let through"
            assert f"illegal transition {source.value} -> {target.value}" in refusal
        by_hand.rollback()


@pytest.mark.req("CX-13")
def test_unknown_states_are_refused(store: Store, by_hand: ByHand) -> None:
    brought = bring(store, by_hand, State.QUEUED)
    for made_up in ("running", "Queued", "", "done"):
        refusal = by_hand.refusal(
            "update job_state set state = :state where id = :id", {"state": made_up, "id": brought.id}
        )
        assert refusal is not None


@pytest.mark.parametrize("target", [state for state in State if state != State.QUEUED])
def test_new_job_must_be_queued(store: Store, by_hand: ByHand, target: State) -> None:
    """`PAIRS` has one entry for new jobs, and no other row can be inserted."""
    assert (None, target) not in PAIRS
    refusal = by_hand.refusal(
        "insert into job_state (id, tenant, kind, queue, state, priority, position, max_attempts, max_crashes)"
        " values (:id, 'default', 'k', 'default', :state, 0, 100, 4, 3)",
        {"id": new_id(), "state": target.value},
    )
    assert refusal is not None
    assert "written by triggers only" in refusal


def test_transition_table() -> None:
    """Ten states; no transition leaves `cleaned`; a succeeded job can only be cleaned."""
    assert len(State) == 10
    assert not [pair for pair in PAIRS if pair[0] == State.CLEANED]
    assert [pair for pair in PAIRS if pair[0] == State.SUCCEEDED] == [(State.SUCCEEDED, State.CLEANED)]
    assert not [pair for pair in PAIRS if pair[0] == pair[1]]

"""One event per transition, with actor and reason; the ledger alone determines the state of every job (CX-4)."""

from __future__ import annotations

import pytest

from holdfast.engine.outcome import Failed, Snoozed
from holdfast.engine.states import TRANSITIONS, EventType, State, Transition
from holdfast.features.assembly import Store
from tests.support.direct_sql import ByHand
from tests.support.job_states import bring, decide_by_hand
from tests.support.ledger import check_ledger, read_events
from tests.support.steps import approval, asking
from tests.support.stores import (
    BROKEN,
    FINAL,
    claim,
    forward,
    history,
    job,
    new_id,
    open_lease,
    put,
    put_one,
    settle,
    spec,
    take,
    work,
)

pytestmark = pytest.mark.req("CX-4")


def test_every_transition_leaves_one_event(store: Store) -> None:
    moment = forward(store)
    job_id = put_one(store, enqueued_by="ada")
    lease = open_lease(store, "worker-1")
    claim(store, lease, begin=False)
    store.run(store.leases.release(lease, [job_id], "*"))
    claim(store, lease, begin=False)
    store.run(store.leases.start(lease, [job_id], "*"))
    (held,) = [each for each in [job(store, job_id)] if each.state == State.IN_PROGRESS]
    forward(store, 60)
    store.run(store.leases.recover())
    store.run(store.leases.promote())
    settle(store, take(store), Snoozed(5, "not yet"))
    forward(store, 5)
    store.run(store.leases.promote())
    settle(store, take(store), FINAL)
    store.run(store.jobs.operate("redrive", [job_id], "fixed", "bob", "default"))
    work(store)
    result = [(event.type, event.to_state.value, event.attempt, event.actor) for event in history(store, job_id)]
    assert result == [
        ("enqueue", "queued", 0, "ada"),
        ("claim", "leased", 0, "worker-1"),
        ("release", "queued", 0, "worker-1"),
        ("claim", "leased", 0, "worker-1"),
        ("start", "in_progress", 1, "worker-1"),
        ("lease_expired", "failed", 1, "recovery"),
        ("retry", "retry_waiting", 1, "recovery"),
        ("due", "queued", 1, "maintenance"),
        ("take", "in_progress", 2, "worker-1"),
        ("snooze", "retry_waiting", 2, "worker-1"),
        ("due", "queued", 2, "maintenance"),
        ("take", "in_progress", 3, "worker-1"),
        ("fail", "failed", 3, "worker-1"),
        ("dead_letter", "dead_letter", 3, "worker-1"),
        ("redrive", "queued", 3, "bob"),
        ("take", "in_progress", 4, "worker-1"),
        ("succeed", "succeeded", 4, "worker-1"),
    ]
    events = history(store, job_id)
    assert [event.seq for event in events] == sorted(event.seq for event in events)
    assert (events[0].at, events[-1].at) == (moment, store.run(store.clock.now()))
    assert held.attempt == 1


def test_event_meta_has_the_error_and_the_due_time(store: Store) -> None:
    forward(store)
    job_id = put_one(store)
    settle(store, take(store), Failed("smtp_down", "no answer", traceback="Traceback…", after=2.5))
    meta = {event.type: event.meta for event in history(store, job_id)}
    due = job(store, job_id).due_at
    assert due is not None
    assert meta == {
        "enqueue": {},
        "take": {},
        "fail": {"error_code": "smtp_down", "error_message": "no answer", "traceback": "Traceback…"},
        "retry": {"due_at": f"{due:%Y-%m-%dT%H:%M:%S}.{due.microsecond // 1000:03d}Z"},
    }


@pytest.mark.req("DP-1")
def test_event_types_match_the_transition_table(store: Store, by_hand: ByHand) -> None:
    for state in State:
        bring(store, by_hand, state)
    forward(store)
    put(store, spec(delay=1, deadline_at=forward(store, 3)))
    forward(store, 10)
    store.run(store.leases.expire())
    seen = {Transition(event.from_state, EventType(event.type), event.to_state) for event in read_events(store)}
    assert seen <= set(TRANSITIONS)
    assert {step.type for step in seen} >= {
        *(EventType.ENQUEUE, EventType.CLAIM, EventType.TAKE, EventType.SUCCEED, EventType.FAIL, EventType.SNOOZE),
        *(EventType.DEAD_LETTER, EventType.CANCEL, EventType.CLEAN, EventType.ASK, EventType.EXPIRE),
    }


STEPS_BY_HAND = {
    "a queued job failed by hand": (
        State.QUEUED,
        "state = 'failed', finished_at = (select now from present), error_code = 'x', error_message = 'y'",
        "expire",
    ),
    "a queued job declared lost by hand": (
        State.QUEUED,
        "state = 'failed', finished_at = (select now from present), error_code = 'worker_lost', error_message = 'y'",
        "expire",
    ),
    "a waiting job failed by hand": (
        State.RETRY_WAITING,
        "state = 'failed', due_at = null, finished_at = (select now from present), error_code = 'x',"
        " error_message = 'y'",
        "expire",
    ),
    # A job leaves waiting_for_approval by votes or by time (tests/contract/test_approvals.py), not by hand.
    "a cancel": (State.LEASED, "state = 'cancelled', lease = null, finished_at = (select now from present)", "cancel"),
    "a release": (State.LEASED, "state = 'queued', lease = null", "release"),
    "a discard": (State.DEAD_LETTER, "state = 'cancelled'", "discard"),
}


@pytest.mark.req("CX-1")
@pytest.mark.parametrize("step", STEPS_BY_HAND)
def test_legal_transition_by_hand_is_recorded(store: Store, by_hand: ByHand, step: str) -> None:
    """The event type must fit the transition; the fixture replays the whole ledger after the test."""
    state, change, event_type = STEPS_BY_HAND[step]
    brought = bring(store, by_hand, state)
    job_id = brought.id
    if brought.approval is not None:
        decide_by_hand(by_hand, brought.approval, "approve" if event_type == "approve" else "deny")
    count = len(history(store, job_id))
    by_hand.execute(f"update job_state set {change} where id = :id", {"id": job_id})
    events = history(store, job_id)
    assert len(events) == count + 1
    assert (events[-1].type, events[-1].from_state) == (event_type, state)
    assert events[-1].actor not in ("", "tester", "worker-1")


@pytest.mark.req("CX-1", "CX-7")
def test_expired_approval_can_be_closed_by_hand(store: Store, by_hand: ByHand) -> None:
    forward(store)
    pending = asking(store, expires_in=10.0)
    close = "update approval set state = 'expired', decided_at = (select now from present) where id = :approval"
    assert by_hand.refusal(close, {"approval": pending.id}) is not None
    forward(store, 10)
    by_hand.execute(close, {"approval": pending.id})
    by_hand.execute(
        "update job_state set state = 'failed', approval_id = null, finished_at = (select now from present),"
        " error_code = 'approval_expired', error_message = 'n' where id = :id",
        {"id": pending.job_id},
    )
    assert history(store, pending.job_id)[-1].type == "expire"


@pytest.mark.req("CX-11")
def test_cancelling_by_hand_withdraws_the_approval(store: Store, by_hand: ByHand) -> None:
    pending = asking(store)
    by_hand.execute(
        "update job_state set state = 'cancelled', approval_id = null, finished_at = (select now from present)"
        " where id = :id",
        {"id": pending.job_id},
    )
    assert approval(store, pending.id).state == "withdrawn"
    assert history(store, pending.job_id)[-1].type == "cancel"


QUIET = {
    "queue": "'other'",
    "priority": "priority + 7",
    "position": "position + 1",
    "retries": "retries + 1",
    "crashes": "crashes + 1",
    "max_attempts": "max_attempts + 1",
    "due_at": "(select now from present)",
    "deadline_at": "(select now from present)",
    "started_at": "(select now from present)",
    "settled_by": "id",
    "error_code": "'other'",
    "error_message": "'other'",
}


@pytest.mark.req("CX-4", "HF-4")
@pytest.mark.parametrize("column", QUIET)
def test_state_columns_do_not_change_without_an_event(store: Store, by_hand: ByHand, column: str) -> None:
    """In every state, by SQL, with the triggers in place."""
    for state in State:
        job_id = bring(store, by_hand, state).id
        before = by_hand.execute("select * from job_state where id = :id", {"id": job_id})
        forward(store, 1)
        refusal = by_hand.refusal(f"update job_state set {column} = {QUIET[column]} where id = :id", {"id": job_id})
        assert refusal is not None, f"{state}: {column} was changed"
        assert by_hand.execute("select * from job_state where id = :id", {"id": job_id}) == before


@pytest.mark.req("CX-4", "HF-4")
@pytest.mark.parametrize("state", [State.QUEUED, State.IN_PROGRESS, State.FAILED, State.DEAD_LETTER])
def test_transition_by_hand_cannot_change_counters(store: Store, by_hand: ByHand, state: State) -> None:
    """A legal transition by hand that also changes retries, limits or priority."""
    brought = bring(store, by_hand, state)
    steps = {
        State.QUEUED: "state = 'cancelled', finished_at = (select now from present)",
        State.IN_PROGRESS: "state = 'cancelled', lease = null, finished_at = (select now from present)",
        State.FAILED: "state = 'cleaned'",
        State.DEAD_LETTER: "state = 'cancelled'",
    }
    for change in (
        "retries = retries + 2",
        "crashes = crashes + 2",
        "max_attempts = max_attempts + 1",
        "priority = 99",
    ):
        sql = f"update job_state set {steps[state]}, {change} where id = :id"
        assert by_hand.refusal(sql, {"id": brought.id}) is not None, change
    by_hand.execute(f"update job_state set {steps[state]} where id = :id", {"id": brought.id})


@pytest.mark.req("CX-4", "DP-8")
def test_lease_with_jobs_cannot_be_deleted_or_revived(store: Store, by_hand: ByHand) -> None:
    held = bring(store, by_hand, State.IN_PROGRESS)
    ended = open_lease(store)
    store.run(store.leases.end(ended, "closed", "*"))
    names = {"held": str(held.lease), "ended": ended}
    for sql in (
        "delete from lease where id = :held",
        "update lease set swept_at = opened_at where id = :held",
        "update lease set holder = 'another' where id = :held",
        "update lease set ended_at = null, ended_why = null where id = :ended",
        "update lease set ended_why = 'expired' where id = :ended",
    ):
        assert by_hand.refusal(sql, {name: value for name, value in names.items() if f":{name}" in sql}), sql


def test_batch_writes_one_event_per_job(store: Store) -> None:
    put(store, *(spec() for _ in range(300)))
    work(store, BROKEN, want=300)
    assert len(read_events(store)) == 300 * 4


def test_check_ledger_detects_differences(store: Store, by_hand: ByHand) -> None:
    """Every other test relies on `check_ledger`: here it must fail."""
    job_id = put_one(store)
    take(store)
    _without_triggers(by_hand, "update job_state set state = 'leased', attempt = 0 where id = :id", job_id)
    with pytest.raises(AssertionError, match="the ledger ends in in_progress, the job is leased"):
        check_ledger(store)
    _without_triggers(by_hand, "update job_state set state = 'in_progress', attempt = 1 where id = :id", job_id)
    check_ledger(store)
    _without_triggers(by_hand, "update job_state set crashes = 2 where id = :id", job_id)
    with pytest.raises(AssertionError, match="workers were lost"):
        check_ledger(store)
    _without_triggers(by_hand, "update job_state set crashes = 0 where id = :id", job_id)


def _without_triggers(by_hand: ByHand, sql: str, job_id: str) -> None:
    """Run SQL without triggers, as only a role that can change the schema could."""
    by_hand.begin()
    if by_hand.name == "sqlite":
        triggers = by_hand.execute(
            "select name, sql from sqlite_schema where type = 'trigger' and tbl_name = 'holdfast_job_state'"
        )
        for name, _ in triggers:
            by_hand.execute(f"drop trigger {name}")
        by_hand.execute(sql, {"id": job_id})
        for _, text in triggers:
            by_hand.execute(text)
    else:
        by_hand.execute("alter table job_state disable trigger user")
        by_hand.execute(sql, {"id": job_id})
        by_hand.execute("alter table job_state enable trigger user")
    by_hand.commit()


def test_ledger_of_an_unknown_job_is_empty(store: Store) -> None:
    assert history(store, new_id()) == []

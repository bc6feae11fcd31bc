"""Run times, deadlines and expiry; only the store's clock decides."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.engine.states import State
from holdfast.features.assembly import Store
from tests.support.stores import (
    BROKEN,
    LATER,
    claim,
    forward,
    history,
    job,
    open_lease,
    put,
    put_one,
    spec,
    state_of,
    take,
    tries,
    types_of,
    work,
)

pytestmark = pytest.mark.req("DP-9")


def promote(store: Store, want: int = 1000) -> int:
    return store.run(store.leases.promote(want))


def expire(store: Store, want: int = 1000) -> int:
    return store.run(store.leases.expire(want))


def claimable(store: Store) -> list[str]:
    return [each.id for each in claim(store, open_lease(store), 100)]


def test_delayed_job_is_not_claimed_before_its_time(store: Store) -> None:
    now = forward(store)
    job_id = put_one(store, delay=60)
    assert job(store, job_id).due_at == now + timedelta(seconds=60)
    forward(store, 59.9)
    assert promote(store) == 0
    assert claimable(store) == []
    forward(store, 0.1)
    assert promote(store) == 1
    assert job(store, job_id).due_at is None
    assert claimable(store) == [job_id]
    assert types_of(store, job_id) == ["enqueue", "take"], "coming due is no transition: it was queued before"


def test_run_at_overrides_delay_and_a_past_one_means_now(store: Store) -> None:
    now = forward(store)
    later = put_one(store, delay=1, run_at=now + timedelta(hours=1))
    past = put_one(store, run_at=now - timedelta(hours=1))
    assert job(store, later).due_at == now + timedelta(hours=1)
    assert job(store, past).due_at is None
    assert claimable(store) == [past]


def test_delay_of_zero_is_no_delay(store: Store) -> None:
    forward(store)
    first, second = put(store, spec(delay=0), spec())
    assert claimable(store) == [first, second]


def test_promote_follows_due_time_up_to_its_limit(store: Store) -> None:
    forward(store)
    ids = put(store, *(spec(delay=10 - n) for n in range(5)))
    forward(store, 20)
    assert promote(store, 2) == 2
    assert sorted(claimable(store)) == sorted(ids[-2:])
    assert (promote(store, 2), promote(store, 2), promote(store, 2)) == (2, 1, 0)


def test_promoted_job_keeps_its_queue_position(store: Store) -> None:
    forward(store)
    delayed, plain = put(store, spec(delay=5), spec())
    forward(store, 10)
    promote(store)
    assert claimable(store) == [delayed, plain]


@pytest.mark.req("CX-9", "CX-4")
def test_due_retry_writes_an_event(store: Store) -> None:
    now = forward(store)
    job_id = put_one(store)
    work(store, BROKEN)
    assert job(store, job_id).due_at == now + timedelta(seconds=1)
    assert promote(store) == 0
    forward(store, 1)
    assert promote(store) == 1
    due = history(store, job_id)[-1]
    assert (due.type, due.from_state, due.to_state) == ("due", State.RETRY_WAITING, State.QUEUED)
    assert due.actor == "maintenance"
    assert claimable(store) == [job_id]


def test_claimed_job_past_its_deadline_is_not_started(store: Store) -> None:
    now = forward(store)
    late, timely = put(store, spec(deadline_at=now + timedelta(seconds=60)), spec())
    lease = open_lease(store, ttl=3600.0)
    assert {each.id for each in claim(store, lease, 2, begin=False)} == {late, timely}
    forward(store, 60)
    assert store.run(store.leases.start(lease, [late, timely], "*")) == {timely: 1}
    assert store.run(store.leases.expire()) == 1
    ended = job(store, late)
    assert (ended.state, ended.error_code, ended.attempt) == (State.FAILED, "deadline_passed", 0)
    assert types_of(store, late) == ["enqueue", "claim", "expire"]
    assert [each.id for each in store.run(store.leases.holdings(lease, "*"))] == [timely]
    assert store.run(store.leases.release(lease, [late], "*")) == []


def test_job_past_its_deadline_is_not_claimed(store: Store) -> None:
    now = forward(store)
    late, fine = put(
        store,
        spec(deadline_at=now + timedelta(seconds=10)),
        spec(deadline_at=now + timedelta(seconds=30)),
    )
    forward(store, 10)
    assert claimable(store) == [fine]
    assert state_of(store, late) == State.QUEUED


@pytest.mark.req("DP-22", "CX-13")
def test_expiry_fails_jobs_not_started_in_time(store: Store) -> None:
    now = forward(store)
    deadline = now + timedelta(seconds=10)
    queued, scheduled = put(store, spec(deadline_at=deadline), spec(deadline_at=deadline, delay=5))
    waiting = put_one(store, deadline_at=deadline, priority=1, retry=tries(5))
    work(store, LATER)
    held = put_one(store, deadline_at=deadline, priority=2)
    take(store)
    assert state_of(store, waiting) == State.RETRY_WAITING
    assert expire(store) == 0
    end = forward(store, 10)
    assert expire(store) == 3
    for job_id in (queued, scheduled, waiting):
        stored = job(store, job_id)
        assert (stored.state, stored.finished_at, stored.due_at) == (State.FAILED, end, None)
        assert stored.error_code == "deadline_passed"
        assert stored.error_message
        last = history(store, job_id)[-1]
        assert (last.type, last.meta["error_code"]) == ("expire", "deadline_passed")
    assert state_of(store, held) == State.IN_PROGRESS, "a job started in time may finish"
    assert (expire(store), promote(store), claimable(store)) == (0, 0, [])


def test_expiry_stops_at_its_limit(store: Store) -> None:
    now = forward(store)
    put(store, *(spec(deadline_at=now + timedelta(seconds=n)) for n in range(1, 6)))
    forward(store, 60)
    assert [expire(store, 2) for _ in range(4)] == [2, 2, 1, 0]


@pytest.mark.req("CX-15")
def test_clock_can_be_shifted_and_stopped(store: Store) -> None:
    store.run(store.clock.set(timedelta(0), None))
    here = store.run(store.clock.now())
    store.run(store.clock.set(timedelta(days=2), None))
    there = store.run(store.clock.now())
    assert timedelta(days=2) <= there - here < timedelta(days=2, minutes=5)
    assert there.utcoffset() == timedelta(0)


@pytest.mark.req("JF-1")
def test_maintenance_of_one_tenant_leaves_others_alone(store: Store) -> None:
    now = forward(store)
    for tenant in ("acme", "umbrella"):
        put(store, spec(delay=1), spec(deadline_at=now + timedelta(seconds=1)), tenant=tenant)
    forward(store, 5)
    assert store.run(store.leases.promote(10, "acme")) == 1
    assert store.run(store.leases.expire(10, "acme")) == 1
    assert (promote(store), expire(store)) == (1, 1)

"""The machine's clock is set back by an hour: no job is lost or run twice, and dead workers are still detected."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.engine.states import State
from holdfast.features.assembly import Store
from tests.support.schedules import add, decided, firing
from tests.support.stores import claim, job, open_lease, put, put_one, settle, spec, state_of

pytestmark = pytest.mark.req("JF-7", "CX-4", "SC-8")

HOUR = timedelta(hours=1)


def set_back(store: Store) -> None:
    store.run(store.clock.set(-HOUR, None))


def advance(store: Store, seconds: float) -> None:
    store.run(store.clock.set(-HOUR + timedelta(seconds=seconds), None))


def test_dead_worker_is_detected_without_extra_delay(store: Store) -> None:
    job_id = put_one(store)
    claim(store, open_lease(store, ttl=30))
    set_back(store)
    assert store.run(store.leases.recover()).crashed == 0, "it may be alive"
    advance(store, 29)
    assert store.run(store.leases.recover()).crashed == 0
    advance(store, 40)
    assert store.run(store.leases.recover()).crashed == 1
    assert state_of(store, job_id) is State.RETRY_WAITING


def test_renewing_worker_keeps_its_jobs_until_it_dies(store: Store) -> None:
    put_one(store)
    lease = open_lease(store, ttl=30)
    (held,) = claim(store, lease)
    set_back(store)
    assert store.run(store.leases.renew(lease, 30.0, "*"))
    advance(store, 25)
    assert store.run(store.leases.recover()).crashed == 0
    assert store.run(store.leases.renew(lease, 30.0, "*"))
    advance(store, 50)
    assert store.run(store.leases.recover()).crashed == 0
    advance(store, 60)
    assert store.run(store.leases.recover()).crashed == 1
    assert settle(store, held) == [held.id], "it is too late, and reported as stale"


def test_due_jobs_stay_due_and_delayed_jobs_are_not_lost(store: Store) -> None:
    now, later = put_one(store), put_one(store, delay=10.0)
    set_back(store)
    assert [each.id for each in claim(store, open_lease(store), 5)] == [now]
    advance(store, 3_700)
    store.run(store.leases.promote())
    assert [each.id for each in claim(store, open_lease(store), 5)] == [later]


def test_ledger_and_queue_keep_their_order(store: Store) -> None:
    before = put(store, *(spec() for _ in range(5)))
    set_back(store)
    after = put(store, *(spec() for _ in range(5)))
    assert len({*before, *after}) == 10
    taken = claim(store, open_lease(store), 10)
    assert [each.id for each in taken] == [*before, *after], "the order is by number, not by time"
    settle(store, taken)
    for each in (*before, *after):
        events = store.run(store.jobs.history(each, "default"))
        assert len(events) == 3
        assert [event.seq for event in events] == sorted(event.seq for event in events)
        assert job(store, each).state is State.SUCCEEDED


def test_scheduled_time_is_fired_once(store: Store) -> None:
    schedule = add(store)
    due = datetime(2026, 11, 16, 9, tzinfo=UTC)
    first = store.run(store.schedules.fire([decided(schedule, firing(due))], "default"))
    set_back(store)
    again = store.run(store.schedules.fire([decided(schedule, firing(due))], "default"))
    assert (first, again) == (1, 0)
    assert sum(store.run(store.jobs.counts("default")).values()) == 1

"""Claims without begin, and the lifetime of a lease."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.engine.states import State
from holdfast.errors import Refused, StaleLease
from holdfast.features.assembly import Store
from tests.support.stores import (
    claim,
    forward,
    history,
    job,
    new_id,
    open_lease,
    put,
    put_one,
    spec,
    state_of,
    take,
    types_of,
)

pytestmark = pytest.mark.req("DP-7")


def start(store: Store, lease: str, *ids: str) -> dict[str, int]:
    return store.run(store.leases.start(lease, ids, "*"))


def release(store: Store, lease: str, *ids: str) -> list[str]:
    return store.run(store.leases.release(lease, ids, "*"))


@pytest.mark.req("SC-4", "CX-4")
def test_leased_jobs_can_be_started(store: Store) -> None:
    ids = put(store, *(spec() for _ in range(3)))
    lease = open_lease(store, "worker-7")
    claim(store, lease, 3, begin=False)
    now = forward(store, 5)
    assert start(store, lease, *ids[:2]) == {ids[0]: 1, ids[1]: 1}
    assert [state_of(store, job_id) for job_id in ids] == [
        State.IN_PROGRESS,
        State.IN_PROGRESS,
        State.LEASED,
    ]
    assert (job(store, ids[0]).started_at, job(store, ids[2]).started_at) == (now, None)
    assert types_of(store, ids[0]) == ["enqueue", "claim", "start"]
    assert [event.actor for event in history(store, ids[0])] == ["tester", "worker-7", "worker-7"]


def test_start_returns_only_jobs_of_the_lease(store: Store) -> None:
    mine, theirs, queued = put(store, *(spec() for _ in range(3)))
    lease, other = open_lease(store), open_lease(store)
    claim(store, lease, begin=False)
    claim(store, other, begin=False)
    assert start(store, lease, mine, theirs, queued, new_id()) == {mine: 1}
    assert start(store, lease, mine) == {}, "it has already started"
    assert (state_of(store, theirs), state_of(store, queued)) == (State.LEASED, State.QUEUED)
    assert start(store, lease) == {}


@pytest.mark.req("CX-10")
def test_released_job_keeps_its_counters_and_position(store: Store) -> None:
    first, second = put(store, spec(), spec())
    lease = open_lease(store)
    claim(store, lease, begin=False)
    assert release(store, lease, first, second) == [first]
    stored = job(store, first)
    assert (stored.state, stored.attempt, stored.retries, stored.crashes) == (State.QUEUED, 0, 0, 0)
    assert types_of(store, first) == ["enqueue", "claim", "release"]
    assert [each.id for each in claim(store, open_lease(store), 2)] == [first, second], "it kept its position"


def test_running_job_cannot_be_released(store: Store) -> None:
    job_id = put_one(store)
    claimed = take(store)
    assert release(store, claimed.lease, job_id) == []
    assert state_of(store, job_id) == State.IN_PROGRESS


@pytest.mark.parametrize("operation", ["start", "release"])
def test_unknown_lease_is_refused(store: Store, operation: str) -> None:
    job_id = put_one(store)
    claim(store, open_lease(store), begin=False)
    with pytest.raises(StaleLease):
        (start if operation == "start" else release)(store, new_id(), job_id)
    assert state_of(store, job_id) == State.LEASED


def test_lease_expires_after_its_ttl(store: Store) -> None:
    now = forward(store)
    lease = store.run(store.leases.open("worker-1", 12.5, "*"))
    assert lease.until == now + timedelta(seconds=12.5)
    put(store, spec(), spec())
    forward(store, 12.4)
    assert len(claim(store, lease.id)) == 1
    forward(store, 0.1)
    with pytest.raises(StaleLease):
        claim(store, lease.id)


@pytest.mark.req("DP-8")
def test_renewing_keeps_a_lease_alive(store: Store) -> None:
    forward(store)
    put(store, spec(), spec())
    lease = open_lease(store, ttl=10)
    claim(store, lease)
    forward(store, 9)
    assert store.run(store.leases.renew(lease, 10, "*"))
    forward(store, 9)
    assert store.run(store.leases.recover()).leases == 0
    assert len(claim(store, lease)) == 1


@pytest.mark.req("DP-8")
def test_lapsed_lease_can_be_renewed_until_it_is_reaped(store: Store) -> None:
    forward(store)
    put(store, spec())
    lease = open_lease(store, ttl=10)
    forward(store, 60)
    assert store.run(store.leases.renew(lease, 10, "*"))
    assert len(claim(store, lease)) == 1


def test_short_renewal_does_not_shorten_a_lease(store: Store) -> None:
    forward(store)
    put_one(store)
    lease = open_lease(store, ttl=100)
    assert store.run(store.leases.renew(lease, 1, "*"))
    forward(store, 50)
    assert len(claim(store, lease)) == 1


def test_ended_lease_cannot_be_renewed_or_ended_again(store: Store) -> None:
    lease = open_lease(store)
    assert store.run(store.leases.end(lease, "closed", "*"))
    assert not store.run(store.leases.renew(lease, 10, "*"))
    assert not store.run(store.leases.end(lease, "closed", "*"))
    assert not store.run(store.leases.renew(new_id(), 10, "*"))
    assert not store.run(store.leases.end(new_id(), "closed", "*"))


@pytest.mark.req("JF-1")
def test_lease_cannot_be_renewed_or_ended_by_another_tenant(store: Store) -> None:
    lease = open_lease(store, tenant="acme")
    for tenant in ("umbrella", "*"):
        assert not store.run(store.leases.renew(lease, 10, tenant))
        assert not store.run(store.leases.end(lease, "closed", tenant))
    assert store.run(store.leases.renew(lease, 10, "acme"))


@pytest.mark.req("DP-7", "DP-11")
@pytest.mark.parametrize(("holder", "name"), [("", "worker"), (" \t", "worker"), ("w", " ")])
def test_lease_requires_a_holder(store: Store, holder: str, name: str) -> None:
    with pytest.raises(Refused) as caught:
        store.run(store.leases.open(holder, 10, "*", name))
    assert caught.value.code == "broken_invariant"

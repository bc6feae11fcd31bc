"""Claiming: the right jobs, in the right order, never more than requested, and only under a live lease."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.engine.payload import decode
from holdfast.engine.retry import GENTLE, Retry
from holdfast.engine.states import State
from holdfast.errors import StaleLease
from holdfast.features.assembly import Store
from holdfast.stores.requests import ClaimRequest
from tests.support.direct_sql import ByHand
from tests.support.stores import (
    BROKEN,
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
    work,
)

pytestmark = pytest.mark.req("DP-7")


@pytest.mark.req("SC-2", "DP-9")
def test_claim_order_is_priority_then_position(store: Store) -> None:
    low, early, late, high = put(store, spec(priority=-5), spec(), spec(), spec(priority=32767))
    later_high = put_one(store, priority=32767)
    ids = [each.id for each in claim(store, open_lease(store), 10)]
    assert ids == [high, later_high, early, late, low]


def test_claim_returns_at_most_the_wanted_number(store: Store) -> None:
    ids = put(store, *(spec() for _ in range(7)))
    lease = open_lease(store)
    assert [each.id for each in claim(store, lease, 3)] == ids[:3]
    assert claim(store, lease, 0) == []
    assert [each.id for each in claim(store, lease, 3)] == ids[3:6]
    assert [each.id for each in claim(store, lease, 3)] == ids[6:]
    assert claim(store, lease, 3) == []


@pytest.mark.req("SC-4", "CX-4")
def test_claim_that_begins_starts_an_attempt_in_one_transition(store: Store) -> None:
    now = forward(store)
    job_id = put_one(store)
    lease = open_lease(store, "worker-7")
    (claimed,) = claim(store, lease)
    stored = job(store, job_id)
    assert (claimed.attempt, claimed.lease, stored.attempt) == (1, lease, 1)
    assert (stored.state, stored.started_at) == (State.IN_PROGRESS, now)
    taken = history(store, job_id)[-1]
    assert (taken.type, taken.from_state, taken.to_state) == ("take", State.QUEUED, State.IN_PROGRESS)
    assert (taken.attempt, taken.actor) == (1, "worker-7")
    (attempt,) = store.run(store.jobs.attempts(job_id, "default"))
    assert (attempt.attempt, attempt.worker, attempt.started_at) == (1, "worker-7", now)
    assert (attempt.ended_at, attempt.outcome) == (None, None)


@pytest.mark.req("SC-4")
def test_claim_without_begin_starts_no_attempt(store: Store) -> None:
    job_id = put_one(store)
    (claimed,) = claim(store, open_lease(store), begin=False)
    stored = job(store, job_id)
    assert (claimed.attempt, stored.attempt, stored.state, stored.started_at) == (0, 0, State.LEASED, None)
    assert store.run(store.jobs.attempts(job_id, "default")) == []


def test_claim_carries_the_fields_of_its_job(store: Store) -> None:
    now = forward(store)
    parent = put_one(store, "parent", correlation_id="c-1")
    requested = spec(
        payload={"b": [1, None], "a": "ü"},
        queue="mail",
        priority=3,
        deadline_at=now + timedelta(hours=1),
        retry=Retry(max_attempts=3, backoff=GENTLE, max_crashes=0),
        tags=("x", "y"),
        agent="a-1",
        parent_id=parent,
        workflow_id=new_id(),
    )
    put(store, requested)
    claimed = take(store, queues=["mail"])
    assert decode(claimed.payload) == {"a": "ü", "b": [1, None]}
    same = ("id", "kind", "queue", "priority", "deadline_at", "tags", "agent", "parent_id", "workflow_id")
    assert {name: getattr(claimed, name) for name in same} == {name: getattr(requested, name) for name in same}
    assert (claimed.tenant, claimed.correlation_id, claimed.created_at) == ("default", "c-1", now)
    assert (claimed.retries, claimed.max_attempts, claimed.crashes, claimed.max_crashes) == (0, 3, 0, 0)
    assert claimed.backoff == GENTLE.to_json()


def test_claim_carries_counters_of_earlier_attempts(store: Store) -> None:
    put_one(store)
    work(store, BROKEN)
    forward(store, 300)
    store.run(store.leases.promote())
    claimed = take(store)
    assert (claimed.attempt, claimed.retries, claimed.crashes) == (2, 1, 0)


def test_claim_filters_by_kind(store: Store) -> None:
    one, two, three = put(store, spec("a"), spec("b"), spec("c"))
    lease = open_lease(store)
    assert claim(store, lease, 10, kinds=("z",)) == []
    assert claim(store, lease, 10, kinds=()) == []
    assert [each.id for each in claim(store, lease, 10, kinds=("c", "a"))] == [one, three]
    assert [each.id for each in claim(store, lease, 10, kinds=None)] == [two]


def test_claim_serves_queues_in_the_given_order(store: Store) -> None:
    slow, fast = put(store, spec(queue="slow", priority=9), spec(queue="fast"))
    put_one(store, queue="other")
    slow_2, fast_2 = put(store, spec(queue="slow"), spec(queue="fast"))
    lease = open_lease(store)
    first = [each.id for each in claim(store, lease, 3, queues=["fast", "empty", "slow"])]
    assert first == [fast, fast_2, slow]
    assert [each.id for each in claim(store, lease, 3, queues=["fast", "slow"])] == [slow_2]
    assert claim(store, lease, 3, queues=[]) == []


@pytest.mark.req("JF-1")
def test_claim_stays_within_its_tenant(store: Store) -> None:
    mine = put_one(store, tenant="acme")
    theirs = put_one(store, tenant="umbrella", priority=9)
    lease = open_lease(store, tenant="acme")
    assert [each.id for each in claim(store, lease, 10, tenant="acme")] == [mine]
    assert state_of(store, theirs) == State.QUEUED
    (other,) = claim(store, open_lease(store), 10)
    assert (other.id, other.tenant) == (theirs, "umbrella")


@pytest.mark.req("JF-1")
@pytest.mark.parametrize("tenant", ["umbrella", "*"])
def test_lease_is_valid_in_its_tenant_only(store: Store, tenant: str) -> None:
    put_one(store, tenant="acme")
    put_one(store, tenant="umbrella")
    lease = open_lease(store, tenant="acme")
    with pytest.raises(StaleLease):
        claim(store, lease, tenant=tenant)
    assert store.run(store.jobs.counts("*")) == {State.QUEUED: 2}


@pytest.mark.parametrize("death", ["unknown", "ended", "expired", "recovered"])
def test_dead_lease_claims_nothing(store: Store, death: str) -> None:
    job_id = put_one(store)
    forward(store)
    lease = new_id() if death == "unknown" else open_lease(store, ttl=10)
    if death == "ended":
        store.run(store.leases.end(lease, "closed", "*"))
    elif death in ("expired", "recovered"):
        forward(store, 10)
    if death == "recovered":
        store.run(store.leases.recover())
    for begin in (True, False):
        with pytest.raises(StaleLease) as caught:
            claim(store, lease, begin=begin)
        assert caught.value.code == "stale_lease"
        assert lease in str(caught.value)
    assert (state_of(store, job_id), len(history(store, job_id))) == (State.QUEUED, 1)


@pytest.mark.req("CX-15", "DP-8")
@pytest.mark.parametrize("after", [False, True], ids=["from the head", "behind a position"])
def test_quarantined_job_is_claimed_only_after_its_time(store: Store, by_hand: ByHand, after: bool) -> None:
    now = forward(store)
    bad, good = put(store, spec(), spec())
    ends = now + timedelta(minutes=10)
    times = {"at": now, "until": ends}
    if by_hand.name == "sqlite":
        times = {name: int(each.timestamp() * 1_000_000) for name, each in times.items()}  # type: ignore[misc]
    by_hand.execute(
        "insert into quarantine (job_id, tenant, why, at, until) values (:id, 'default', 'bad', :at, :until)",
        {"id": bad, **times},
    )
    positions = {"default": (0, -1)} if after else {}
    request = ClaimRequest(lease=open_lease(store, ttl=1e6), queues=("default",), want=9, after=positions)
    assert [str(each.id) for each in store.run(store.leases.exchange([], request)).claims] == [good]
    forward(store, 601.0)
    assert [str(each.id) for each in store.run(store.leases.exchange([], request)).claims] == [bad]

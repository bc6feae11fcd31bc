"""A stale worker cannot write (fault 9): wrong lease, wrong attempt, or a job that another worker has claimed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.engine.job import Claim, Result
from holdfast.engine.outcome import Failed, Outcome, Succeeded
from holdfast.engine.settlement import decide
from holdfast.engine.states import State
from holdfast.errors import StaleLease
from holdfast.features.assembly import Store
from tests.support.direct_sql import ByHand
from tests.support.stores import (
    BROKEN,
    DONE,
    FINAL,
    LATER,
    apply,
    claim,
    forward,
    new_id,
    open_lease,
    put,
    put_one,
    settle,
    spec,
    state_of,
    take,
    types_of,
    work,
)

pytestmark = pytest.mark.req("DP-7")

OUTCOMES: dict[str, Outcome] = {
    "success": DONE,
    "success with a result": Succeeded("1"),
    "retry": BROKEN,
    "final failure": FINAL,
    "snooze": LATER,
}


def cancelled(store: Store) -> Claim:
    claimed = take(store)
    store.run(store.jobs.operate("cancel", [claimed.id], None, "ada", "default"))
    return claimed


def settled(store: Store) -> Claim:
    claimed = take(store)
    settle(store, claimed)
    return claimed


def recovered(store: Store) -> Claim:
    """The job waits for another worker."""
    claimed = take(store)
    forward(store, 60)
    assert store.run(store.leases.recover()).crashed == 1
    return claimed


def taken_over(store: Store) -> Claim:
    """The job is claimed by another worker."""
    claimed = recovered(store)
    store.run(store.leases.promote())
    assert take(store).id == claimed.id
    return claimed


def only_held(store: Store) -> Claim:
    (claimed,) = claim(store, open_lease(store), begin=False)
    return claimed


STALE: dict[str, Callable[[Store], Claim]] = {
    "cancelled meanwhile": cancelled,
    "settled already": settled,
    "recovered": recovered,
    "taken over": taken_over,
    "leased, not started": only_held,
    "an older attempt": lambda store: dataclasses.replace(take(store), attempt=0),
    "a newer attempt": lambda store: dataclasses.replace(take(store), attempt=2),
    "another's lease": lambda store: dataclasses.replace(take(store), lease=open_lease(store)),
    "no such job": lambda store: dataclasses.replace(take(store), id=new_id()),
}


@pytest.mark.req("CX-11", "DP-3")
@pytest.mark.parametrize("how", STALE)
def test_stale_settlement_is_reported_and_writes_nothing(store: Store, by_hand: ByHand, how: str) -> None:
    put_one(store)
    stale = STALE[how](store)
    before = by_hand.contents()
    for name, outcome in OUTCOMES.items():
        assert settle(store, stale, outcome) == [stale.id], name
        assert by_hand.contents() == before, name


@pytest.mark.parametrize("how", [how for how in STALE if how not in ("recovered", "taken over")])
def test_stale_settlement_does_not_affect_its_batch(store: Store, how: str) -> None:
    put_one(store, priority=9)
    stale = STALE[how](store)
    first, second = put(store, spec(priority=9), spec(priority=9))
    good = claim(store, stale.lease, 2)
    settlements = [decide(each, Succeeded("7"), 1.0) for each in (good[0], stale, good[1])]
    assert apply(store, stale.lease, *settlements) == [stale.id]
    assert (state_of(store, first), state_of(store, second)) == (State.SUCCEEDED, State.SUCCEEDED)


@pytest.mark.req("DP-3")
def test_settling_under_an_unknown_lease_is_refused(store: Store) -> None:
    put_one(store)
    claimed = take(store)
    with pytest.raises(StaleLease) as caught:
        settle(store, dataclasses.replace(claimed, lease=new_id()))
    assert caught.value.code == "stale_lease"
    assert state_of(store, claimed.id) == State.IN_PROGRESS


@pytest.mark.req("JF-1")
@pytest.mark.parametrize("tenant", ["umbrella", "*"])
def test_settling_in_another_tenant_is_refused(store: Store, tenant: str) -> None:
    put_one(store, tenant="acme")
    claimed = take(store, tenant="acme")
    with pytest.raises(StaleLease):
        settle(store, claimed, tenant=tenant)
    assert settle(store, claimed, tenant="acme") == []


@pytest.mark.parametrize(
    ("outcomes", "state"),
    [
        ([Succeeded("1"), Succeeded("2")], State.SUCCEEDED),
        ([Succeeded("1"), BROKEN], State.SUCCEEDED),
        ([Succeeded("1"), FINAL, LATER], State.SUCCEEDED),
        ([BROKEN, Succeeded("2")], State.RETRY_WAITING),
        ([BROKEN, BROKEN], State.RETRY_WAITING),
        ([FINAL, BROKEN, DONE], State.DEAD_LETTER),
        ([LATER, FINAL], State.RETRY_WAITING),
    ],
)
def test_first_of_two_settlements_of_one_attempt_counts(store: Store, outcomes: list[Outcome], state: State) -> None:
    """An attempt ends once; the rest of the batch is unaffected."""
    put(store, spec(), spec())
    double, other = claim(store, open_lease(store), 2)
    offered = [decide(double, outcome, 1.0) for outcome in outcomes]
    assert apply(store, double.lease, *offered, decide(other, DONE, 1.0)) == []
    assert state_of(store, double.id) == state
    assert state_of(store, other.id) == State.SUCCEEDED
    kept = store.run(store.jobs.result(double.id, "default"))
    assert kept == (Result(1, None) if state == State.SUCCEEDED else None)


def test_settlements_of_two_attempts_of_one_job_in_a_batch(store: Store) -> None:
    """A late result of the previous attempt beside that of the current one, under the same lease: only one is right."""
    forward(store)
    put_one(store)
    lease = open_lease(store, ttl=10_000)
    (first,) = claim(store, lease)
    settle(store, first, BROKEN)
    forward(store, 600)
    store.run(store.leases.promote())
    (second,) = claim(store, lease)
    assert second.attempt == 2
    late, right = decide(first, Succeeded('"late"'), 1.0), decide(second, Succeeded('"right"'), 1.0)
    assert apply(store, lease, late, right) == []
    assert store.run(store.jobs.result(first.id, "default")) == Result("right", None)


@pytest.mark.req("CX-10")
def test_handler_error_named_worker_lost_is_a_failure(store: Store) -> None:
    job_id = put_one(store)
    settle(store, take(store), Failed("worker_lost", "raised by the handler"))
    assert state_of(store, job_id) == State.RETRY_WAITING
    assert types_of(store, job_id)[-2:] == ["fail", "retry"]


def _zombie_calls(store: Store, old: Claim) -> dict[str, Callable[[], Any]]:
    """Every operation that takes a lease token, with the old one."""
    run = store.run
    return {
        "renew": lambda: run(store.leases.renew(old.lease, 30, "*")),
        "end": lambda: run(store.leases.end(old.lease, "closed", "*")),
        "start": lambda: run(store.leases.start(old.lease, [old.id], "*")),
        "release": lambda: run(store.leases.release(old.lease, [old.id], "*")),
        "checkpoint": lambda: run(store.steps.save_checkpoint(old.id, old.lease, old.attempt, "p", "1", "*")),
        "artifact": lambda: run(store.steps.add_artifact(old.id, old.lease, old.attempt, "f", "file:f", "*")),
        "settle": lambda: settle(store, old),
        "claim": lambda: claim(store, old.lease),
    }


@pytest.mark.req("DP-8", "SC-5")
@pytest.mark.parametrize("how", ["recovered", "taken over"])
def test_every_operation_refuses_an_old_lease_token(store: Store, by_hand: ByHand, how: str) -> None:
    put_one(store)
    old = STALE[how](store)
    put_one(store)
    before = by_hand.contents()
    answers: dict[str, object] = {}
    for event_type, call in _zombie_calls(store, old).items():
        try:
            answers[event_type] = call()
        except StaleLease:
            answers[event_type] = "refused"
    assert answers == {
        "renew": False,
        "end": False,
        "start": {},
        "release": [],
        "checkpoint": False,
        "artifact": False,
        "settle": [old.id],
        "claim": "refused",
    }
    assert by_hand.contents() == before
    work(store, want=5)


@pytest.mark.every_case
@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES)
def test_settlement_of_an_earlier_attempt_of_the_same_lease_is_stale(store: Store, outcome: Outcome) -> None:
    """An answer that arrives late, after the same worker has claimed the job again."""
    forward(store)
    job_id = put_one(store)
    lease = open_lease(store, ttl=1e6)
    (first,) = claim(store, lease)
    settle(store, first, LATER)
    forward(store, 61.0)
    store.run(store.leases.promote())
    (second,) = claim(store, lease)
    assert settle(store, first, outcome) == [job_id]
    assert state_of(store, job_id) is State.IN_PROGRESS
    assert settle(store, second) == []

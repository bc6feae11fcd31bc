"""Lost workers: leased jobs return at no cost, running jobs count a crash (DP-8)."""

from __future__ import annotations

import pytest

from holdfast.engine.job import Sweep
from holdfast.engine.states import State
from holdfast.features.assembly import Store
from tests.support.direct_sql import ByHand
from tests.support.stores import (
    BROKEN,
    claim,
    forward,
    history,
    job,
    open_lease,
    put,
    put_one,
    settle,
    spec,
    state_of,
    take,
    tries,
    types_of,
)

pytestmark = pytest.mark.req("DP-8")


def recover(store: Store, want: int = 1000, tenant: str = "*") -> Sweep:
    return store.run(store.leases.recover(want, tenant))


def crash(store: Store) -> None:
    """A worker claims the job and stops renewing; then the job comes due again."""
    take(store)
    forward(store, 60)
    assert recover(store).crashed == 1
    store.run(store.leases.promote())


def test_live_lease_is_not_reaped(store: Store) -> None:
    forward(store)
    put_one(store)
    claimed = take(store)
    forward(store, 29.9)
    assert recover(store) == Sweep(0, 0, 0)
    assert settle(store, claimed) == []


@pytest.mark.req("CX-10")
def test_leased_job_returns_at_no_cost(store: Store) -> None:
    forward(store)
    first, second = put(store, spec(), spec())
    claim(store, open_lease(store), begin=False)
    forward(store, 30)
    assert recover(store) == Sweep(1, 1, 0)
    stored = job(store, first)
    assert (stored.state, stored.attempt, stored.retries, stored.crashes) == (State.QUEUED, 0, 0, 0)
    last = history(store, first)[-1]
    assert (last.type, last.actor, last.meta) == ("lease_expired", "recovery", {"reason": "lease_expired"})
    assert [each.id for each in claim(store, open_lease(store), 2)] == [first, second]


@pytest.mark.req("CX-10", "SC-5", "DP-22")
def test_running_job_counts_a_crash_and_is_retried(store: Store) -> None:
    forward(store)
    job_id = put_one(store, retry=tries(1))
    take(store)
    now = forward(store, 30)
    assert recover(store) == Sweep(1, 0, 1)
    stored = job(store, job_id)
    assert (stored.state, stored.attempt, stored.retries, stored.crashes) == (State.RETRY_WAITING, 1, 0, 1)
    assert (stored.error_code, stored.due_at, stored.finished_at) == ("worker_lost", now, None)
    assert types_of(store, job_id) == ["enqueue", "take", "lease_expired", "retry"]
    (attempt,) = store.run(store.jobs.attempts(job_id, "default"))
    assert (attempt.outcome, attempt.error_code, attempt.ended_at) == ("crashed", "worker_lost", now)
    assert store.run(store.leases.promote()) == 1
    assert take(store).attempt == 2


@pytest.mark.req("CX-10")
@pytest.mark.parametrize("limit", [0, 1, 3])
def test_job_over_its_crash_limit_becomes_a_dead_letter(store: Store, limit: int) -> None:
    forward(store)
    job_id = put_one(store, retry=tries(5, crashes=limit))
    for _ in range(limit):
        crash(store)
        assert state_of(store, job_id) == State.QUEUED
    take(store)
    now = forward(store, 60)
    swept = recover(store)
    assert (swept, swept.dead) == (Sweep(1, 0, 1), (job_id,))
    stored = job(store, job_id)
    assert (stored.state, stored.crashes, stored.attempt) == (State.DEAD_LETTER, limit + 1, limit + 1)
    assert (stored.error_code, stored.finished_at, stored.due_at) == ("worker_lost", now, None)
    assert types_of(store, job_id)[-2:] == ["lease_expired", "dead_letter"]


@pytest.mark.req("CX-10", "CX-9")
def test_crashes_and_retries_are_counted_apart(store: Store) -> None:
    forward(store)
    job_id = put_one(store, retry=tries(3, crashes=3))
    crash(store)
    settle(store, take(store), BROKEN)
    forward(store, 60)
    store.run(store.leases.promote())
    crash(store)
    stored = job(store, job_id)
    assert (stored.retries, stored.crashes, stored.attempt) == (1, 2, 3)


def test_closed_lease_frees_its_jobs_at_once(store: Store) -> None:
    forward(store)
    running, held = put(store, spec(), spec())
    lease = open_lease(store)
    claim(store, lease)
    claim(store, lease, begin=False)
    assert store.run(store.leases.end(lease, "closed", "*"))
    assert recover(store) == Sweep(0, 1, 1)
    assert (state_of(store, running), state_of(store, held)) == (State.RETRY_WAITING, State.QUEUED)


def test_partial_sweep_is_continued(store: Store, by_hand: ByHand) -> None:
    """The lease is marked as swept only when no job refers to it."""
    forward(store)
    put(store, *(spec() for _ in range(7)))
    lease = open_lease(store)
    claim(store, lease, 5)
    claim(store, lease, 2, begin=False)
    forward(store, 60)
    sweeps = [recover(store, 3) for _ in range(4)]
    assert [each.leases for each in sweeps] == [1, 0, 0, 0]
    assert [each.requeued + each.crashed for each in sweeps] == [3, 3, 1, 0]
    assert (sum(each.requeued for each in sweeps), sum(each.crashed for each in sweeps)) == (2, 5)
    swept = by_hand.execute("select swept_at is not null from lease where id = :id", {"id": lease})
    assert bool(swept[0][0])


def test_settlement_between_two_partial_sweeps_counts(store: Store) -> None:
    """A job still under the ended lease can be settled by its holder: no other worker has it yet."""
    forward(store)
    put(store, spec(), spec())
    lease = open_lease(store)
    claims = claim(store, lease, 2)
    forward(store, 60)
    assert recover(store, 1).crashed == 1
    stale = settle(store, claims)
    assert len(stale) == 1
    assert recover(store) == Sweep(0, 0, 0)
    states = sorted(state_of(store, each.id) for each in claims)
    assert states == [State.RETRY_WAITING, State.SUCCEEDED]


def test_many_lapsed_leases_are_reaped_together(store: Store) -> None:
    forward(store)
    ids = put(store, *(spec() for _ in range(6)))
    for _ in range(3):
        claim(store, open_lease(store), 2)
    open_lease(store)  # holds no job
    forward(store, 60)
    assert recover(store) == Sweep(4, 0, 6)
    assert {state_of(store, job_id) for job_id in ids} == {State.RETRY_WAITING}
    assert recover(store) == Sweep(0, 0, 0)


def test_cancelled_job_is_not_requeued(store: Store) -> None:
    forward(store)
    job_id = put_one(store)
    take(store)
    store.run(store.jobs.operate("cancel", [job_id], None, "ada", "default"))
    forward(store, 60)
    assert recover(store) == Sweep(1, 0, 0)
    assert state_of(store, job_id) == State.CANCELLED


@pytest.mark.req("JF-1")
def test_reaping_one_tenant_leaves_other_leases_alone(store: Store) -> None:
    forward(store)
    for tenant in ("acme", "umbrella"):
        put_one(store, tenant=tenant)
        take(store, tenant=tenant)
    forward(store, 60)
    assert recover(store, tenant="acme") == Sweep(1, 0, 1)
    assert recover(store) == Sweep(1, 0, 1)


@pytest.mark.req("CX-4")
def test_crash_event_contains_no_lease_token(store: Store) -> None:
    forward(store)
    job_id = put_one(store)
    lease = take(store).lease
    forward(store, 60)
    recover(store)
    assert lease not in repr(history(store, job_id))

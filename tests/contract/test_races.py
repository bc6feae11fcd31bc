"""Concurrency: claims are disjoint, limits hold under bad plans, and one of two ends of an attempt wins."""

from __future__ import annotations

import gc
import random
from collections.abc import Sequence
from contextlib import closing
from functools import partial

import pytest

from holdfast.engine.states import FINISHED, State
from holdfast.errors import StaleLease
from holdfast.features.assembly import Store, open_store
from tests.support.concurrency import together
from tests.support.direct_sql import PostgresByHand
from tests.support.stores import (
    claim,
    forward,
    job,
    open_lease,
    put,
    put_one,
    settle,
    spec,
    state_of,
    types_of,
)

THREADS = 20


@pytest.mark.slow
@pytest.mark.req("DP-7", "SC-4")
@pytest.mark.parametrize("begin", [True, False])
def test_twenty_threads_claim_disjoint_jobs(store: Store, begin: bool) -> None:
    ids = put(store, *(spec() for _ in range(200)))
    leases = [open_lease(store, f"worker-{n}") for n in range(THREADS)]
    rounds = together(*(partial(claim, store, lease, 7, begin=begin) for lease in leases))
    taken = [each.id for batch in rounds for each in batch]
    assert len(taken) == len(set(taken)) == THREADS * 7
    assert set(taken) == set(ids[: len(taken)]), "no job was skipped"
    assert all(len(batch) == 7 for batch in rounds)
    assert len(claim(store, leases[0], 1000)) == 200 - len(taken)


@pytest.mark.req("DP-7")
def test_threads_that_want_more_jobs_than_exist_share_them(store: Store) -> None:
    put(store, *(spec() for _ in range(30)))
    leases = [open_lease(store) for _ in range(8)]
    taken = [each.id for batch in together(*(partial(claim, store, x, 20) for x in leases)) for each in batch]
    left = [each.id for each in claim(store, leases[0], 100)]
    assert len(taken + left) == len({*taken, *left}) == 30


def _drain(store: Store, lease: str, seed: int) -> list[str]:
    """Claim and settle until the queue is empty; returns the jobs this worker settled."""
    choice = random.Random(seed)
    done: list[str] = []
    while batch := claim(store, lease, choice.randint(1, 9)):
        stale = settle(store, batch)
        done += [each.id for each in batch if each.id not in stale]
    return done


@pytest.mark.req("CX-4", "SC-4")
def test_concurrent_workers_settle_each_job_once(store: Store) -> None:
    ids = put(store, *(spec() for _ in range(150)))
    leases = [open_lease(store, f"worker-{n}") for n in range(6)]
    done = [
        each for own in together(*(partial(_drain, store, lease, n) for n, lease in enumerate(leases))) for each in own
    ]
    assert sorted(done) == sorted(ids)
    assert store.run(store.jobs.counts("default")) == {State.SUCCEEDED: 150}


@pytest.mark.req("CX-15", "SC-18")
def test_first_calls_of_a_store_from_many_threads(store: Store) -> None:
    together(*(partial(store.run, store.clock.now()) for _ in range(12)))
    gc.collect()  # a second pool, created at the same time and dropped, would emit a warning


# -- fault 10: sweep_vs_settle -----------------------------------------------------------------------------


def _reap(store: Store) -> list[str]:
    store.run(store.leases.recover())
    return []


def _promote(store: Store) -> list[str]:
    store.run(store.leases.promote(7))
    return []


def _cancel(store: Store, ids: Sequence[str]) -> list[str]:
    store.run(store.jobs.operate("cancel", ids, None, "ada", "default"))
    return []


def _try_to_claim(store: Store, lease: str) -> list[str]:
    try:
        return [each.id for each in claim(store, lease)]
    except StaleLease:
        return []


def _end(store: Store, lease: str) -> list[str]:
    store.run(store.leases.end(lease, "closed", "*"))
    return []


@pytest.mark.req("DP-8", "CX-10", "DP-7")
@pytest.mark.parametrize("seed", range(3))
def test_concurrent_reaper_and_settlement(store: Store, seed: int) -> None:
    """Every job ends by one of the two, and each side knows which."""
    forward(store)
    put(store, *(spec() for _ in range(40)))
    lease = open_lease(store, ttl=10)
    claims = claim(store, lease, 40)
    forward(store, 10)
    random.Random(seed).shuffle(claims)
    parts = [claims[n::4] for n in range(4)]
    answers = together(*(partial(settle, store, part) for part in parts), partial(_reap, store))
    stale = {job_id for answer in answers for job_id in answer}
    _reap(store)
    for each in claims:
        expected = State.RETRY_WAITING if each.id in stale else State.SUCCEEDED
        assert state_of(store, each.id) == expected
        assert types_of(store, each.id).count("succeed") + types_of(store, each.id).count("lease_expired") == 1


@pytest.mark.req("CX-11", "DP-7")
def test_concurrent_cancel_and_settlement(store: Store) -> None:
    ids = put(store, *(spec() for _ in range(30)))
    claims = claim(store, open_lease(store), 30)
    stale, *_ = together(
        partial(settle, store, claims), partial(_cancel, store, ids[:15][::-1]), partial(_cancel, store, ids[15:])
    )
    for job_id in ids:
        stored = job(store, job_id)
        assert stored.state == (State.CANCELLED if job_id in stale else State.SUCCEEDED)
        assert sum(event in ("succeed", "cancel") for event in types_of(store, job_id)) == 1


@pytest.mark.req("DP-8")
def test_concurrent_claim_and_reaper_at_the_end_of_a_lease(store: Store) -> None:
    """Either the lease is live and a later sweep finds its jobs, or no job was claimed under it."""
    for _ in range(5):
        forward(store)
        job_id = put_one(store)
        lease = open_lease(store, ttl=10)
        forward(store, 9.999)
        together(partial(_try_to_claim, store, lease), partial(_end, store, lease), partial(_reap, store))
        _reap(store)
        store.run(store.leases.promote())
        assert state_of(store, job_id) == State.QUEUED, "no job stays under a lease that has ended"
        store.run(store.jobs.operate("cancel", [job_id], None, "ada", "default"))


@pytest.mark.req("CX-1", "CX-11")
def test_concurrent_operators_promoters_and_workers(store: Store) -> None:
    """All operations at once (a small fault 12): no error escapes and every job is accounted for."""
    forward(store)
    ids = put(store, *(spec(delay=n % 3) for n in range(60)))
    leases = [open_lease(store, f"w-{n}") for n in range(3)]
    forward(store, 5)
    together(
        *(partial(_drain, store, lease, n) for n, lease in enumerate(leases)),
        *(partial(_promote, store) for _ in range(2)),
        *(partial(_cancel, store, some) for some in (ids[::4], ids[::-4])),
        partial(_reap, store),
    )
    while store.run(store.leases.promote(50)):
        _drain(store, leases[0], 9)
    assert set(store.run(store.jobs.counts("default"))) <= FINISHED


# -- fault 11: over_claim ----------------------------------------------------------------------------------


PLAN_NODES = ("hashjoin", "mergejoin", "hashagg", "sort", "material", "memoize", "bitmapscan", "indexscan", "seqscan")


@pytest.mark.req("DP-7")
@pytest.mark.parametrize("on", [None, "hashjoin", "hashagg", "indexscan", "seqscan"])
def test_claim_respects_its_limit_under_every_plan(owned_postgres_url: str, on: str | None) -> None:
    """On PostgreSQL a claim picks and takes in one statement.

    As a plain `IN (SELECT … LIMIT 1)` it would, if only nested loops are left to the planner, pick again for every row
    and take all fifty.
    """
    with closing(open_store(owned_postgres_url)) as store, closing(PostgresByHand(store.url)) as by_hand:
        put(store, *(spec() for _ in range(50)))
        by_hand.execute("analyze job_state")
        lease = open_lease(store)
        for node in PLAN_NODES:
            by_hand.execute(f"set enable_{node} = {'on' if node == on else 'off'}")
        for number in (1, 2, 3):
            rows = by_hand.execute(f"select id from claim_many('{lease}', array['default'], {number})")
            assert len(rows) == number
        assert store.run(store.jobs.counts("default"))[State.IN_PROGRESS] == 6

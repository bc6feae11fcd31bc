"""Row locks of PostgreSQL, each conflict staged by hand: one transaction stays open while another one acts.

SQLite needs no such tests: it has one writer at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import TypeVar

import psycopg
import pytest

from holdfast.engine.job import Claim, Sweep
from holdfast.engine.settlement import Settlement
from holdfast.engine.states import State
from holdfast.features.assembly import Store, open_store
from holdfast.stores.requests import ClaimRequest
from tests.support.ledger import check_ledger
from tests.support.stores import claim, forward, job, open_lease, put, put_one, settle, spec, state_of, take
from tests.support.transactions import Transaction

pytestmark = pytest.mark.req("DP-7", "DP-8")

T = TypeVar("T")


@pytest.fixture
def pg(owned_postgres_url: str) -> Iterator[Store]:
    with closing(open_store(owned_postgres_url)) as store:
        yield store
        check_ledger(store)


@contextmanager
def slow(store: Store) -> Iterator[Transaction]:
    """A transaction that is still open when the others start."""
    opened = Transaction(store)
    try:
        yield opened
    finally:
        opened.connection.close()


def run_behind(store: Store, blocker: Transaction, call: Callable[[], T]) -> T:
    """Start the call, wait until it waits for the blocker (or is done), then let the blocker commit."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        future: Future[T] = pool.submit(call)
        with psycopg.connect(store.url, autocommit=True) as watcher:
            pid = blocker.connection.info.backend_pid
            waiting = "select exists (select from pg_stat_activity where %s = any (pg_blocking_pids(pid)))"
            deadline = time.monotonic() + 20
            while not future.done() and time.monotonic() < deadline:
                row = watcher.execute(waiting, (pid,)).fetchone()
                if row is not None and row[0]:
                    break
        blocker.end()
        return future.result(timeout=20)


def test_reaper_does_not_end_a_lease_during_a_claim(pg: Store) -> None:
    """Otherwise recovery would find no job under it, mark it as swept, and the job would be stuck."""
    forward(pg)
    job_id = put_one(pg)
    lease = open_lease(pg, ttl=10)
    with slow(pg) as worker:
        worker.run(pg.leases.claim(ClaimRequest(lease=lease, queues=("default",), want=1)))
        with psycopg.connect(
            pg.url, autocommit=True
        ) as admin:  # advance the stopped clock outside the worker's transaction
            admin.execute("update holdfast.clock set stopped = stopped + interval '11 s'")
        assert pg.run(pg.leases.recover()) == Sweep(0, 0, 0)
        worker.end()
    assert state_of(pg, job_id) == State.IN_PROGRESS
    assert pg.run(pg.leases.recover()) == Sweep(1, 0, 1)
    assert state_of(pg, job_id) == State.RETRY_WAITING


def _held(pg: Store) -> Claim:
    put_one(pg)
    return take(pg)


@pytest.mark.req("CX-8", "CX-11")
def test_checkpoint_after_a_concurrent_cancel_is_refused(pg: Store) -> None:
    held = _held(pg)
    with slow(pg) as operator:
        operator.run(pg.jobs.operate("cancel", [held.id], None, "ada", "default"))
        saved = run_behind(
            pg, operator, lambda: pg.run(pg.steps.save_checkpoint(held.id, held.lease, 1, "p", "1", "*"))
        )
    assert saved is False
    assert pg.run(pg.jobs.checkpoints(held.id, "default")) == {}


@pytest.mark.req("SC-5", "CX-11")
def test_artifact_after_a_concurrent_cancel_is_refused(pg: Store) -> None:
    held = _held(pg)
    with slow(pg) as operator:
        operator.run(pg.jobs.operate("cancel", [held.id], None, "ada", "default"))
        added = run_behind(
            pg, operator, lambda: pg.run(pg.steps.add_artifact(held.id, held.lease, 1, "f", "file:f", "*"))
        )
    assert added is False
    assert pg.run(pg.jobs.artifacts(held.id, "default")) == []


@pytest.mark.req("CX-11")
def test_settlement_after_a_concurrent_cancel_is_stale(pg: Store) -> None:
    held = _held(pg)
    with slow(pg) as operator:
        operator.run(pg.jobs.operate("cancel", [held.id], None, "ada", "default"))
        assert run_behind(pg, operator, lambda: settle(pg, held)) == [held.id]
    assert state_of(pg, held.id) == State.CANCELLED


@pytest.mark.req("CX-11", "DP-3")
def test_cancel_after_a_concurrent_settlement_is_refused(pg: Store) -> None:
    held = _held(pg)
    with slow(pg) as worker:
        worker.run(pg.leases.settle(held.lease, [Settlement(held.id, 1, "succeeded")], "*"))
        (verdict,) = run_behind(
            pg, worker, lambda: pg.run(pg.jobs.operate("cancel", [held.id], None, "ada", "default"))
        )
    assert (verdict.refused, verdict.reason, verdict.state) == (True, "already_finished", State.SUCCEEDED)


@pytest.mark.req("SC-2")
def test_claim_does_not_wait_for_another_claim(pg: Store) -> None:
    first, second = put(pg, spec(), spec())
    with slow(pg) as worker:
        lease = open_lease(pg)
        worker.run(pg.leases.claim(ClaimRequest(lease=lease, queues=("default",), want=1)))
        assert [each.id for each in claim(pg, open_lease(pg), 2)] == [second]
        worker.end("rollback")
    assert [each.id for each in claim(pg, open_lease(pg), 2)] == [first]


@pytest.mark.req("DP-8")
def test_reaper_skips_a_job_that_is_being_settled(pg: Store) -> None:
    forward(pg)
    put(pg, spec(), spec())
    lease = open_lease(pg, ttl=10)
    first, second = claim(pg, lease, 2)
    forward(pg, 60)
    with slow(pg) as worker:
        worker.run(pg.leases.settle(lease, [Settlement(first.id, 1, "succeeded")], "*"))
        assert pg.run(pg.leases.recover()) == Sweep(1, 0, 1)
        worker.end()
    assert (job(pg, first.id).state, job(pg, second.id).state) == (State.SUCCEEDED, State.RETRY_WAITING)
    assert pg.run(pg.leases.recover()) == Sweep(0, 0, 0)


@pytest.mark.req("DP-5")
def test_concurrent_enqueue_with_the_same_key_returns_the_first(pg: Store) -> None:
    first_spec, again = spec(key="k"), spec(key="k")
    with slow(pg) as first:
        first.run(pg.jobs.enqueue([first_spec], "default"))
        (answer,) = run_behind(pg, first, lambda: pg.run(pg.jobs.enqueue([again], "default")))
    assert (answer.id, answer.created, answer.reason) == (first_spec.id, False, "duplicate_key")

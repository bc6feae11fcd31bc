"""Waits for jobs, and several waits at once, through the port of both stores (HF-16)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest

from holdfast.engine.job import Claim
from holdfast.engine.outcome import Cancelled, Failed, Outcome, Paused
from holdfast.engine.settlement import Settlement, decide
from holdfast.engine.states import State
from holdfast.engine.steps import Pause
from holdfast.features.assembly import Store, open_store
from tests.support.ledger import check_ledger
from tests.support.steps import running, send, steps
from tests.support.stores import (
    BROKEN,
    DONE,
    FINAL,
    apply,
    claim,
    decide_on,
    forward,
    open_lease,
    put_one,
    settle,
    state_of,
    types_of,
)
from tests.support.transactions import Transaction
from tests.support.waiting import until

pytestmark = pytest.mark.req("HF-16")

NEVER = State.RETRY_WAITING


@pytest.fixture
def postgres(owned_postgres_url: str) -> Iterator[Store]:
    with closing(open_store(owned_postgres_url)) as store:
        yield store
        check_ledger(store)


def together(claim: Claim, *pauses: Pause, until_all: bool = False) -> Settlement:
    first, *others = (pause.to_json() for pause in pauses)
    also = {"also": others} if others else {}
    return decide(claim, Paused(first | also | ({"all": True} if until_all else {}), []), 1.0)


def of_job(n: int, job: str) -> Pause:
    return Pause(n, f"result of {job}", "step", awaits=job)


def of_event(n: int, name: str, timeout: float | None = None) -> Pause:
    return Pause(n, name, "event", wanted={}, delay=timeout)


def waiting(store: Store, *pauses: Pause, until_all: bool = False) -> str:
    job, held = running(store)
    assert apply(store, held.lease, together(held, *pauses, until_all=until_all)) == []
    return job


ENDS: dict[str, Outcome] = {
    "success": DONE,
    "dead letter": FINAL,
    "cancel": Cancelled("no"),
}


@pytest.mark.every_case
@pytest.mark.parametrize("end", ENDS)
def test_end_of_a_job_continues_those_that_wait_for_it(store: Store, end: str) -> None:
    child, held = running(store)
    parents = [waiting(store, of_job(1, child)) for _ in range(2)]
    assert {state_of(store, parent) for parent in parents} == {NEVER}
    settle(store, held, ENDS[end])
    assert {state_of(store, parent) for parent in parents} == {State.QUEUED}
    assert types_of(store, parents[0])[-1] == "due"
    # Who comes later does not wait.
    assert state_of(store, waiting(store, of_job(1, child))) is State.QUEUED


def test_end_by_an_operator_continues_it_too(store: Store) -> None:
    child = put_one(store, queue="other")
    parent = waiting(store, of_job(1, child))
    store.run(store.jobs.operate("cancel", [child], None, "ada", "*"))
    assert state_of(store, parent) is State.QUEUED


def test_failed_attempt_is_not_an_end(store: Store) -> None:
    child, held = running(store)
    parent = waiting(store, of_job(1, child))
    settle(store, held, BROKEN)
    assert (state_of(store, child), state_of(store, parent)) == (State.RETRY_WAITING, NEVER)


def test_settlement_that_fails_for_good_is_an_end(store: Store) -> None:
    child, held = running(store)
    parent = waiting(store, of_job(1, child))
    apply(store, held.lease, Settlement(child, held.attempt, "fail", code="x", message="y"))
    assert (state_of(store, child), state_of(store, parent)) == (State.FAILED, State.QUEUED)


def test_any_or_all(store: Store) -> None:
    (first, one), (second, two) = running(store), running(store)
    both = (of_job(1, first), of_job(2, second), of_event(3, "word"))
    some, every = waiting(store, *both), waiting(store, *both, until_all=True)
    settle(store, one)
    assert (state_of(store, some), state_of(store, every)) == (State.QUEUED, NEVER)
    assert send(store, "word").woke == 0
    settle(store, two, Failed("x", "y", final=True))
    assert state_of(store, every) is State.QUEUED
    assert [step.over for step in steps(store, every)] == [False, False, True]


@pytest.mark.parametrize("until_all", [False, True])
def test_times_of_several_waits(store: Store, until_all: bool) -> None:
    now = forward(store)
    naps = (Pause(1, "short", "sleep", delay=10.0), Pause(2, "long", "sleep", delay=30.0), of_event(3, "word", 20.0))
    job = waiting(store, *naps, until_all=until_all)
    assert [(step.wake_at - now).total_seconds() for step in steps(store, job) if step.wake_at] == [10, 30, 20]
    forward(store, 29.0 if until_all else 9.0)
    store.run(store.leases.promote(10))
    assert state_of(store, job) is NEVER
    forward(store, 1.0)
    store.run(store.leases.promote(10))
    assert state_of(store, job) is State.QUEUED


def test_job_that_waits_for_its_next_attempt_is_not_continued(store: Store) -> None:
    """Its wait is of an earlier attempt."""
    child, held = running(store)
    parent, one = running(store)
    apply(store, one.lease, together(one, of_job(1, child), Pause(2, "nap", "sleep", delay=0.0)))
    store.run(store.leases.promote(10))
    (again,) = claim(store, open_lease(store), 10, queues=[one.queue])
    settle(store, again, BROKEN)
    settle(store, held)
    send(store, "word")
    assert state_of(store, parent) is State.RETRY_WAITING


# --- at the same moment, on PostgreSQL ---


def _flow(store: Store, claim: Claim) -> Any:
    return store.leases.settle(claim.lease, [decide_on(claim)], "*")


@pytest.mark.req("DP-12")
def test_last_two_children_end_at_the_same_moment(postgres: Store) -> None:
    (first, one), (second, two) = running(postgres), running(postgres)
    parent = waiting(postgres, of_job(1, first), of_job(2, second), until_all=True)
    open_ = Transaction(postgres)
    open_.run(_flow(postgres, one))
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(settle, postgres, two)
        until(lambda: _blocked(postgres) or ending.done(), "the second waits for the first")
        assert not ending.done(), ending.result(0)
        open_.end()
        assert ending.result(30) == []
    assert state_of(postgres, parent) is State.QUEUED


def test_child_ends_while_its_parent_begins_to_wait(postgres: Store) -> None:
    child, held = running(postgres)
    open_ = Transaction(postgres)
    open_.run(_flow(postgres, held))
    parent = waiting(postgres, of_job(1, child))  # does not wait for that transaction
    assert state_of(postgres, parent) is NEVER
    open_.end()
    until(
        lambda: postgres.run(postgres.leases.promote(10)) or state_of(postgres, parent) is State.QUEUED, "it continues"
    )
    assert state_of(postgres, parent) is State.QUEUED


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_child_whose_end_is_rolled_back_is_awaited_further(postgres: Store, end: str) -> None:
    child, held = running(postgres)
    open_ = Transaction(postgres)
    open_.run(_flow(postgres, held))
    parent = waiting(postgres, of_job(1, child))
    open_.end(end)
    forward(postgres, 2.0)
    postgres.run(postgres.leases.promote(10))
    assert state_of(postgres, parent) is (State.QUEUED if end == "commit" else NEVER)
    if end == "rollback":
        settle(postgres, held)
        assert state_of(postgres, parent) is State.QUEUED


def _blocked(store: Store) -> bool:
    with psycopg.connect(store.url) as connection:
        row = connection.execute("select count(*) from pg_locks where not granted").fetchone()
    return row is not None and row[0] > 0

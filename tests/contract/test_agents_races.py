"""Disabling an agent under load: once it returns, no job of the agent is accepted and none starts (CX-16)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast.engine.job import Enqueued
from holdfast.engine.states import State
from holdfast.features.assembly import Store, open_store
from tests.support.concurrency import together
from tests.support.direct_sql import ByHand
from tests.support.features import disable, enable
from tests.support.features import set_agent as register
from tests.support.forkserver import start_call
from tests.support.stores import claim, enqueue, forward, job, new_id, open_lease, put, put_one, settle, spec
from tests.support.waiting import until

pytestmark = pytest.mark.req("CX-16")

on_postgres = pytest.mark.parametrize("store_url", ["postgres"], indirect=True)


# -- enqueue and disable ------------------------------------------------------------------------------------------


def _one(store: Store) -> list[Enqueued]:
    return enqueue(store, spec(agent="planner"))


def _keyed(store: Store) -> list[Enqueued]:
    return enqueue(store, spec(agent="planner", key=new_id()), spec(agent="planner", content_key=new_id()))


def _alike(store: Store) -> list[Enqueued]:
    together = object()
    return enqueue(store, *(spec(agent="planner", alike=together) for _ in range(5)))


def jobs(by_hand: ByHand) -> int:
    ((count,),) = by_hand.execute("select count(*) from job")
    return int(count)


def test_no_job_is_accepted_after_disabling(store: Store, by_hand: ByHand) -> None:
    register(store)
    shut = threading.Event()
    accepted: list[int] = []
    after: list[Enqueued] = []

    def produce(make: Callable[[Store], list[Enqueued]]) -> None:
        while not shut.is_set():
            accepted.append(sum(answer.created for answer in make(store)))
        for _ in range(10):
            after.extend(make(store))

    with ThreadPoolExecutor(6) as pool:
        running = [pool.submit(produce, make) for make in (_one, _keyed, _alike) * 2]
        until(lambda: sum(accepted) > 50, "all of them run")
        disable(store)
        there = jobs(by_hand)
        shut.set()
        for each in running:
            each.result(timeout=60)
    assert jobs(by_hand) == there == sum(accepted)
    assert len(after) == 2 * 10 * (1 + 2 + 5)
    assert {answer.reason for answer in after} == {"agent_disabled"}


def _produce(url: str, folder: str, name: str) -> None:
    """Run in a child process: enqueue until the agent is marked as disabled, then a few times more."""
    marks = Path(folder)
    seen, accepted, late = 0, 0, 0
    with closing(open_store(url)) as store:
        while seen < 20:
            seen += (marks / "disabled").exists()
            created = _one(store)[0].created
            accepted += created
            late += created and seen > 0
            (marks / f"{name} started").touch()
    (marks / name).write_text(f"{accepted} {late}")


@pytest.mark.slow
def test_no_job_is_accepted_from_other_processes(store: Store, by_hand: ByHand, tmp_path: Path) -> None:
    register(store)
    names = ["one", "two", "three"]
    producers = [start_call(_produce, store.url, str(tmp_path), name) for name in names]
    try:
        until(lambda: all((tmp_path / f"{name} started").exists() for name in names), "all of them run")
        disable(store)
        there = jobs(by_hand)
        (tmp_path / "disabled").touch()
        for each in producers:
            each.join(60)
    finally:
        for each in producers:
            each.kill()
            each.join(10)
    reports = [(tmp_path / name).read_text().split() for name in names]
    assert [late for _, late in reports] == ["0", "0", "0"]
    assert jobs(by_hand) == there == sum(int(accepted) for accepted, _ in reports)


def test_concurrent_registrations_make_one_agent(store: Store) -> None:
    made = together(*(partial(register, store, retry="gentle") for _ in range(8)))
    assert len({(each.id, each.created_at) for each in made}) == 1


# -- claims and disable -------------------------------------------------------------------------------------------


def started(by_hand: ByHand) -> int:
    ((count,),) = by_hand.execute("select count(*) from job_state where agent = 'planner' and attempt > 0")
    return int(count)


@pytest.mark.slow
def test_no_job_starts_after_disabling(store: Store, by_hand: ByHand) -> None:
    register(store)
    put(store, *(spec(agent="planner" if n % 2 else None) for n in range(800)))
    shut, room = threading.Event(), threading.Semaphore(150)  # so that jobs remain when the agent is disabled
    taken: list[str | None] = []

    def work(number: int) -> None:
        lease = open_lease(store, f"worker-{number}")
        while not shut.is_set():
            if room.acquire(timeout=0.01):
                taken.extend(each.agent for each in claim(store, lease, 3))
        while result := claim(store, lease, 50):
            taken.extend(each.agent for each in result)

    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(work, number) for number in range(4)]
        until(lambda: taken.count("planner") > 15, "all of them run")
        disable(store)
        by_then = started(by_hand)
        shut.set()
        for each in running:
            each.result(timeout=60)
    assert taken.count("planner") == started(by_hand) == by_then < 400
    assert taken.count(None) == 400
    enable(store)
    assert len(claim(store, open_lease(store), 1000)) == 400 - by_then


@pytest.mark.slow
@pytest.mark.req("CX-15")
def test_toggling_an_agent_under_load_loses_no_job(store: Store) -> None:
    forward(store)
    register(store)
    stop = threading.Event()
    made: list[str] = []

    def produce() -> None:
        while not stop.is_set():
            made.extend(answer.id for answer in [*_one(store), *_alike(store)] if answer.id is not None)

    def work() -> None:
        lease = open_lease(store)
        while not stop.is_set():
            if result := claim(store, lease, 4):
                settle(store, result)

    def flip_once() -> None:
        disable(store)
        before = len(made)
        enable(store)
        until(lambda: len(made) > before, "jobs are enqueued while the agent is enabled")

    def flip() -> None:
        try:
            for _ in range(12):
                flip_once()
        finally:
            stop.set()

    together(produce, produce, work, work, flip)
    # A claim may hold jobs in the moment they are returned: those return after the hold time.
    forward(store, 600)
    store.run(store.leases.promote())
    lease = open_lease(store)
    while result := claim(store, lease, 100):
        settle(store, result)
    assert store.run(store.jobs.counts("default")) == {State.SUCCEEDED: len(made)}


# -- open transactions, PostgreSQL only ---------------------------------------------------------------------------


@pytest.fixture
def connection(store: Store) -> Iterator[psycopg.Connection[Any]]:
    """A connection of the application, with its own transaction."""
    with psycopg.connect(store.url) as connection:
        yield connection


def borrow(store: Store, connection: psycopg.Connection[Any]) -> Enqueued:
    return store.run_on_connection(connection, store.on_connection.enqueue([spec(agent="planner")], "default"))[0]


def drain_waits(store: Store) -> bool:
    """True while drain_agent waits for transactions that were open when the agent was disabled."""
    with psycopg.connect(store.url.split("?")[0]) as admin:  # the owner of the schema does not see other sessions
        waits = "select 1 from pg_stat_activity where query like '%drain_agent(%' and wait_event = 'PgSleep'"
        return bool(admin.execute(waits).fetchall())


def is_disabled(store: Store) -> bool:
    agent = store.run(store.agents.get("planner", "default"))
    return agent is not None and agent.disabled


@on_postgres
@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_disabling_waits_for_uncommitted_enqueues(
    store: Store, by_hand: ByHand, connection: psycopg.Connection[Any], ending: str
) -> None:
    register(store)
    waiting = put_one(store, agent="planner")
    other = put_one(store)
    assert borrow(store, connection).created
    with ThreadPoolExecutor(1) as pool:
        disabling = pool.submit(disable, store)
        until(lambda: drain_waits(store), "it waits for the transaction")
        # The agent is disabled while that transaction is still open, and blocks no one else: enqueuing is refused at
        # once, and claims continue without its jobs.
        until(lambda: is_disabled(store), "it is disabled")
        until(lambda: drain_waits(store), "it still waits")
        assert not disabling.done()
        assert enqueue(store, spec(agent="planner"))[0].reason == "agent_disabled"
        assert [each.id for each in claim(store, open_lease(store), 10)] == [other]
        getattr(connection, ending)()
        disabling.result(timeout=60)
    assert jobs(by_hand) == (3 if ending == "commit" else 2)
    assert claim(store, open_lease(store), 10) == [], "it was accepted before and still does not start"
    assert job(store, waiting).state is State.QUEUED


@on_postgres
def test_disabling_waits_for_uncommitted_claims(
    store: Store, by_hand: ByHand, connection: psycopg.Connection[Any]
) -> None:
    register(store)
    put_one(store, agent="planner")
    lease = open_lease(store)
    assert connection.execute(
        "select id from holdfast.claim_many(%s, array['default'], 1, for_tenant => '*')", (lease,)
    ).rowcount
    with ThreadPoolExecutor(1) as pool:
        disabling = pool.submit(disable, store)
        until(lambda: drain_waits(store), "it waits for the claim")
        assert not disabling.done()
        connection.commit()
        disabling.result(timeout=60)
    assert started(by_hand) == 1


@on_postgres
def test_disabling_does_not_wait_for_readers(store: Store, connection: psycopg.Connection[Any]) -> None:
    """A dump of the database holds a lock on every table for an hour."""
    register(store)
    connection.execute("lock table holdfast.agent in access share mode")
    disable(store)
    assert is_disabled(store)


@on_postgres
def test_disabling_waits_for_enqueues_before_the_registration(
    store: Store, by_hand: ByHand, connection: psycopg.Connection[Any]
) -> None:
    """A job is enqueued for an unregistered name, which is registered and disabled before the transaction commits."""
    assert borrow(store, connection).created
    register(store)
    with ThreadPoolExecutor(1) as pool:
        disabling = pool.submit(disable, store)
        until(lambda: drain_waits(store), "it waits for the transaction")
        connection.commit()
        disabling.result(timeout=60)
    assert jobs(by_hand) == 1
    assert claim(store, open_lease(store)) == []


@on_postgres
@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_older_snapshot_cannot_enqueue_for_a_disabled_agent(
    store: Store, by_hand: ByHand, connection: psycopg.Connection[Any], isolation: str
) -> None:
    register(store)
    connection.execute(f"set transaction isolation level {isolation}".encode())
    connection.execute("select 1")
    disable(store)
    with pytest.raises(psycopg.errors.SerializationFailure):
        borrow(store, connection)
    connection.rollback()
    assert borrow(store, connection).reason == "agent_disabled"
    connection.rollback()
    assert jobs(by_hand) == 0


@on_postgres
def test_drain_times_out(store: Store, by_hand: ByHand, connection: psycopg.Connection[Any]) -> None:
    by_hand.execute("alter function drain_agent set lock_timeout = '100ms'")
    register(store)
    borrow(store, connection)
    store.run(store.agents.disable("planner", "because", "ada", "default"))
    assert store.run(store.agents.drain("planner", "default")) is False
    connection.rollback()
    assert store.run(store.agents.drain("planner", "default")) is True


@on_postgres
def test_disabling_waits_for_hand_written_inserts(
    store: Store, by_hand: ByHand, connection: psycopg.Connection[Any]
) -> None:
    register(store)
    connection.execute("select set_config('holdfast.tenant', 'default', true)")
    connection.execute("set local search_path = holdfast")
    connection.execute("insert into job (kind, agent) values ('k', 'planner')")
    with ThreadPoolExecutor(1) as pool:
        disabling = pool.submit(disable, store)
        until(lambda: drain_waits(store), "it waits for the transaction")
        connection.commit()
        disabling.result(timeout=60)
    assert "was disabled by ada" in (
        by_hand.refusal("insert into job (kind, tenant, agent) values ('k', 'default', 'planner')") or ""
    )

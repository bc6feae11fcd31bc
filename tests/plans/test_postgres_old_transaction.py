"""Plans beside a transaction that stays open: dead rows cannot be removed, and `vacuum analyze` has just counted them.

The statistics then say that few jobs are queued and that the index `claimable` is large. PostgreSQL 18 chose the index
`by_state`, skipped its first column and sorted the result: a claim behind a position read every dead row again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pytest

from holdfast.engine.order import Move
from holdfast.features.assembly import Store, open_store
from holdfast.features.limits.model import Rule
from holdfast.stores.flow import Flow, Rows, Statement, Steps
from holdfast.stores.requests import ClaimRequest
from tests.plans.query_plans import Connection, disable_autovacuum, measured
from tests.support.stores import claim, forward, open_lease, put, settle, spec

pytestmark = pytest.mark.req("JF-3", "DP-8", "SC-2")

DEAD, WAITING = 1_000, 2


@dataclass(frozen=True)
class Pressed:
    store: Store
    connection: Connection
    lease: str
    last: tuple[int, int]
    """The priority and position of the last job that was claimed."""
    waiting: list[str]


@pytest.fixture
def pressed(postgres_url: str) -> Iterator[Pressed]:
    with (
        closing(open_store(postgres_url)) as store,
        psycopg.connect(postgres_url, autocommit=True) as connection,
        psycopg.connect(postgres_url) as old,
    ):
        disable_autovacuum(connection)
        forward(store)
        lease = open_lease(store, ttl=86_400.0)
        old.execute("set transaction isolation level repeatable read")
        old.execute("select count(*) from holdfast.job_state")
        put(store, *(spec(deadline_in=80_000.0 + n) for n in range(DEAD)))
        put(store, *(spec(delay=n / DEAD) for n in range(1, DEAD + 1)))
        forward(store, 1)
        assert store.run(store.leases.promote(DEAD)) == DEAD
        settle(store, claim(store, lease, DEAD))
        claims = claim(store, lease, DEAD)
        settle(store, claims)
        waiting = put(store, *(spec() for _ in range(WAITING)))
        put(store, *(spec(delay=1.0) for _ in range(WAITING)))
        put(store, *(spec(deadline_in=1.0, queue="late") for _ in range(WAITING)))
        forward(store, 1)
        connection.execute("vacuum analyze holdfast.job_state")
        yield Pressed(store, connection, lease, (claims[-1].priority, claims[-1].position), waiting)


def due_work() -> Flow[Rows]:
    def steps() -> Steps[Rows]:
        return (yield Statement("select tasks from holdfast.due_work()"))

    return Flow(steps)


def check(pressed: Pressed, operations: dict[str, tuple[str, int, Flow[Any]]]) -> None:
    """Each operation reads the index named, at most so many entries, and never `by_state`."""
    for name, (index, most, flow) in operations.items():
        seen = measured(pressed.connection, flow)
        assert "by_state" not in seen.by_index, (name, seen.by_index)
        assert 0 < seen.by_index[index] <= most, (name, seen.by_index)
        assert seen.scanned == {}, name


@pytest.mark.req("JF-12")
def test_claims_from_a_shared_queue_keep_to_their_index(pressed: Pressed) -> None:
    store = pressed.store
    store.run(store.tenants.set_fair(["*"], "me"))
    put(store, spec(), tenant="other")
    pressed.connection.execute("vacuum analyze holdfast.job_state")
    request = ClaimRequest(lease=pressed.lease, queues=("default",), want=2)
    behind = replace(request, after={"default": pressed.last})
    operations: dict[str, tuple[str, int, Flow[Any]]] = {
        "claim": ("fair", 20 * DEAD, store.leases.exchange([], request)),
        "claim behind a position": ("claimable", 10, store.leases.exchange([], behind)),
    }
    check(pressed, operations)
    assert "fair" not in measured(pressed.connection, store.leases.exchange([], behind)).by_index


def test_claims_and_maintenance_keep_to_their_index(pressed: Pressed) -> None:
    store, last = pressed.store, pressed.waiting[-1]

    def exchange(want: int, after: tuple[int, int] | None = None) -> Flow[Any]:
        start = {} if after is None else {"default": after}
        return store.leases.exchange([], ClaimRequest(lease=pressed.lease, queues=("default",), want=want, after=start))

    operations: dict[str, tuple[str, int, Flow[Any]]] = {
        "claim": ("claimable", 2 * DEAD + 2 * WAITING, exchange(WAITING)),
        "claim behind a position": ("claimable", 10, exchange(WAITING, pressed.last)),
        "promote": ("not_yet_due", DEAD + 3 * WAITING, store.leases.promote(100)),
        "expire": ("past_deadline", DEAD + 3 * WAITING, store.leases.expire(100)),
        "due work": ("not_yet_due", DEAD + 3 * WAITING, due_work()),
        "move": ("claimable", 100, store.jobs.move(pressed.waiting[0], Move(where="last"), None, "me", "default")),
        "why": ("claimable", 2 * DEAD + 3 * WAITING, store.jobs.circumstances(last, "default")),
    }
    check(pressed, operations)
    store.run(store.limits.set(Rule("kind", "full", 1), "me", "default"))
    put(store, *(spec("full", queue="full") for _ in range(WAITING)))
    assert len(claim(store, pressed.lease, WAITING, queues=("full",))) == 1
    pressed.connection.execute("vacuum analyze holdfast.job_state")
    limited: dict[str, tuple[str, int, Flow[Any]]] = {
        "claim with limits": ("claimable", 4 * DEAD, exchange(WAITING)),
        "claim with limits behind a position": ("claimable", 100, exchange(WAITING, pressed.last)),
        "unpark": ("parked", 100, store.limits.remove("kind", "full", "me", "default")),
    }
    check(pressed, limited)

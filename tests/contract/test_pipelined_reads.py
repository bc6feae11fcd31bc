"""Pipelined reads: one round trip, bound to their tenant, and nothing left on the connection."""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.errors import InvalidInput, StoreError
from holdfast.features.postgres import PostgresStore
from holdfast.stores.flow import Flow, Statement, Steps, read_together
from holdfast.stores.postgres import connections, pipeline
from holdfast.stores.postgres.connections import AsyncStoreConnection, StoreConnection
from holdfast.stores.postgres.session import PREPARE_AFTER
from tests.support.waiting import until

pytestmark = pytest.mark.req("CX-15", "JF-16")

BOUND = "select current_setting('holdfast.tenant', true), pg_backend_pid()"


@pytest_asyncio.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_url, pool_size=1, answer_within=20.0)
    yield store
    await store.aclose()


def reading(tenant: str, text: str, **params: Any) -> Steps[Any]:
    yield Statement("select holdfast.enter(%s)", (tenant,), binds=True)
    return (yield Statement(text, params, reads=True))


def read(tenant: str, text: str, **params: Any) -> Flow[Any]:
    return Flow(functools.partial(reading, tenant, text, **params), writes=False)


def _alone() -> Steps[Any]:
    return (yield Statement(BOUND))


ALONE = Flow(_alone, writes=False, single=True)


def kept_connection(store: PostgresStore) -> AsyncStoreConnection:
    ((pool,),) = (pools.values() for pools in store._pools._loop_pools.values())
    assert pool._kept is not None
    return pool._kept


@pytest.mark.parametrize("noun", ["schedules", "jobs"])
async def test_list_is_one_round_trip(postgres_url: str, tmp_path: Path, noun: str) -> None:
    app = App(postgres_url, name="counts")
    app.schedules.add("nightly", "@daily", kind="report")
    app.enqueue("report", {})
    list_rows = app.schedules.alist if noun == "schedules" else app.jobs.alist
    for _ in range(PREPARE_AFTER + 2):
        assert len(await list_rows()) == 1
    store = session_of(app).store
    assert isinstance(store, PostgresStore)
    with (tmp_path / "trace").open("w+") as trace:
        kept_connection(store).pgconn.trace(trace.fileno())
        assert len(await list_rows()) == 1
        kept_connection(store).pgconn.untrace()
        trace.seek(0)
        messages = trace.read()
    assert messages.count("ReadyForQuery") == 1, messages
    await store.aclose()


async def test_each_read_is_bound_to_its_tenant_only(store: PostgresStore) -> None:
    ((free, backend),) = await store.arun(ALONE)
    assert not free
    for _ in range(2 * PREPARE_AFTER):
        for tenant in ("acme", "beta"):
            assert await store.arun(read(tenant, BOUND)) == [(tenant, backend)]
    assert await store.arun(ALONE) == [(free or "", backend)]


async def test_values_of_any_size_are_returned_unchanged(store: PostgresStore) -> None:
    """The same text with values of other types is another statement for the server."""
    text = "select %(n)s::bigint, %(n)s::text, '100 %%' || %(word)s::text, %(none)s::text"
    for _ in range(2 * PREPARE_AFTER):
        for n in (1, 70_000, 2**40, None):
            rows = await store.arun(read("acme", text, n=n, word="a % b", none=None))
            assert rows == [(n, None if n is None else str(n), "100 %a % b", None)]


async def test_more_texts_than_prepared_statements(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "MOST_PREPARED", 3)
    monkeypatch.setattr(pipeline, "MOST_KNOWN", 5)
    for n in [number for _ in range(PREPARE_AFTER + 3) for number in range(9)]:
        assert await store.arun(read("acme", f"select {n} + %(one)s::int", one=1)) == [(n + 1,)]
    often = [read("acme", "select 7 + %(one)s::int", one=1) for _ in range(PREPARE_AFTER + 3)]
    assert [await store.arun(each) for each in often] == [[(8,)]] * len(often)
    (count,) = (await store.arun(read("acme", "select count(*) from pg_prepared_statements where name like 'hold%%'")))[
        0
    ]
    assert count <= 3


async def test_failed_read_raises_and_the_next_one_works(store: PostgresStore) -> None:
    ((_, backend),) = await store.arun(ALONE)
    for n in range(PREPARE_AFTER + 3):
        with pytest.raises(InvalidInput, match="division by zero"):
            await store.arun(read("acme", "select 1 / %(zero)s::int", zero=0))
        assert await store.arun(read("acme", "select %(n)s::int, pg_backend_pid()", n=n)) == [(n, backend)]
    with pytest.raises(StoreError, match="syntax error"):
        await store.arun(read("acme", "selekt 1"))
    assert await store.arun(read("beta", BOUND)) == [("beta", backend)]


def _undone() -> Steps[None]:
    yield Statement("select 1 / 0")


async def test_rollback_discards_prepared_statements(store: PostgresStore) -> None:
    """The driver rolls back, and then deallocates all prepared statements of its connection, if it has prepared any."""
    for _ in range(PREPARE_AFTER + 3):
        await store.arun(ALONE)
        await asyncio.to_thread(store.run, ALONE)
        assert await store.arun(read("acme", "select %(n)s::int", n=7)) == [(7,)]
        assert await asyncio.to_thread(store.run, read("acme", "select %(n)s::int", n=7)) == [(7,)]
    with pytest.raises(InvalidInput):
        await store.arun(Flow(_undone))
    with pytest.raises(InvalidInput):
        await asyncio.to_thread(store.run, Flow(_undone))
    for _ in range(2):
        await store.arun(ALONE)  # the driver deallocates with its next statement
        await asyncio.to_thread(store.run, ALONE)
        assert await store.arun(read("acme", "select %(n)s::int", n=8)) == [(8,)]
        assert await asyncio.to_thread(store.run, read("acme", "select %(n)s::int", n=8)) == [(8,)]


async def test_cancelled_read_leaves_no_result_for_the_next(store: PostgresStore) -> None:
    await store.arun(ALONE)
    cancelled = asyncio.create_task(store.arun(read("acme", "select 'not for you', pg_sleep(60)")))
    with psycopg.connect(store.url, autocommit=True) as other:
        asleep = "select 1 from pg_stat_activity where query like 'select ''not for you''%' and state = 'active'"
        await asyncio.to_thread(until, lambda: other.execute(asleep).fetchall(), "it sleeps")
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        async with asyncio.timeout(20):
            assert [row[0] for row in await store.arun(read("beta", BOUND))] == ["beta"]
        await asyncio.to_thread(until, lambda: not other.execute(asleep).fetchall(), "the query has ended")


def test_abandoned_read_closes_its_connection(postgres_url: str) -> None:
    with StoreConnection.connect(postgres_url, autocommit=True) as connection:
        fetching = connection._pipelined_reads.fetch([Statement("select 'not for you', pg_sleep(0.1)")])
        next(fetching)
        fetching.close()
        assert connection.closed


async def test_reads_without_pipelining_return_the_same(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a pooler, or with an older client library."""
    monkeypatch.setattr(connections, "BATCHES", False)
    assert [row[0] for row in await store.arun(read("beta", BOUND))] == ["beta"]
    (own, two), *_ = await store.arun(Flow(_several, writes=False))
    assert (own[0][0], two) == ("acme", [(2,)])


@pytest.mark.slow
def test_canary_reads_are_pipelined_unless_disabled(postgres_url: str) -> None:
    """Fails with a psycopg whose generators have changed: then HOLDFAST_DISABLE=pipeline is the workaround."""
    program = (
        "from holdfast import App; from holdfast.stores.postgres import connections;"
        f"app = App({postgres_url!r}, tenant='acme'); print(connections.BATCHES, app.limits.list())"
    )
    for disabled, expected in (("", "True []"), ("pipeline", "False []")):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"HOLDFAST_DISABLE": disabled},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stdout.strip() == expected, done.stderr


async def test_connection_lost_during_a_read_is_replaced(store: PostgresStore) -> None:
    ((_, backend),) = await store.arun(ALONE)
    text = "select pg_backend_pid(), case when pg_backend_pid() = %(first)s::int then pg_sleep(60)::text end"
    waits = asyncio.create_task(store.arun(read("acme", text, first=backend)))
    with psycopg.connect(store.url, autocommit=True) as other:
        asleep = "select 1 from pg_stat_activity where query like '%%pg_sleep(60)::text%%' and pid = %s"
        await asyncio.to_thread(until, lambda: other.execute(asleep, (backend,)).fetchall(), "it sleeps")
        other.execute("select pg_terminate_backend(%s, 10000)", (backend,))
    async with asyncio.timeout(20):
        ((second, _),) = await waits
    assert second != backend


def _mixed() -> Steps[Any]:
    """A flow with a statement that is not a marked read and depends on its transaction."""
    first = yield from reading("acme", BOUND)
    yield Statement("select set_config('holdfast.tenant', 'other', true)")
    second = yield Statement(BOUND)
    third = yield from reading("acme", BOUND)
    return [rows[0][0] for rows in (first, second, third)]


async def test_unmarked_statements_keep_their_transaction(store: PostgresStore) -> None:
    assert await store.arun(Flow(_mixed, writes=False)) == ["acme", "other", "acme"]
    assert await asyncio.to_thread(store.run, Flow(_mixed, writes=False)) == ["acme", "other", "acme"]


def _several() -> Steps[Any]:
    inner = read_together(reading("acme", BOUND), reading("acme", "select 2"))
    others = (reading("beta", BOUND), _mixed(), reading("acme", "select 3"))
    return (yield from read_together(inner, *others))


async def test_combined_reads_each_use_their_tenant(store: PostgresStore) -> None:
    for results in (
        await store.arun(Flow(_several, writes=False)),
        await store.arun(Flow(_several)),  # a writing flow is always a transaction
        await asyncio.to_thread(store.run, Flow(_several, writes=False)),
        await asyncio.to_thread(store.run, Flow(_several)),
    ):
        (own, two), theirs, left, three = results
        assert (own[0][0], two, theirs[0][0], three) == ("acme", [(2,)], "beta", [(3,)])
        assert left == ["acme", "other", "acme"]

"""The connection that an event loop keeps for itself: no caller waits in vain for it, and none is leaked."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from typing import LiteralString

import psycopg
import pytest
import pytest_asyncio
from psycopg import sql

from holdfast.features.postgres import PostgresStore
from holdfast.stores.flow import Flow, Statement, Steps
from holdfast.stores.job_reads import Reader
from holdfast.stores.postgres import pools
from holdfast.stores.postgres.base import Calls
from tests.support.waiting import until

pytestmark = pytest.mark.req("CX-15", "SC-18")


@pytest_asyncio.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_url, pool_size=1, answer_within=5.0)
    yield store
    await store.aclose()


def _who() -> Steps[int]:
    rows = yield Statement("select pg_backend_pid()")
    return int(rows[0][0])


def _refused() -> Steps[int]:
    yield Statement("select 1 / 0")
    return 0


WHO = Flow(_who, writes=False, single=True)


def _rows(url: str, query: LiteralString) -> int:
    with psycopg.connect(url) as connection:
        return len(connection.execute(query).fetchall())


async def test_sequential_calls_share_a_connection_and_concurrent_ones_wait(store: PostgresStore) -> None:
    first = await store.arun(WHO)
    assert {await store.arun(WHO) for _ in range(5)} == {first}
    # One connection for all of them: a waiting caller gets it before the loop keeps it.
    assert await asyncio.gather(*(store.arun(WHO) for _ in range(20))) == [first] * 20
    with pytest.raises(Exception, match="division by zero"):
        await store.arun(Flow(_refused, writes=False))
    assert await store.arun(WHO) == first, "the connection works after a failed transaction"
    cancelled = asyncio.create_task(store.arun(Flow(_sleeps, writes=False, single=True)))
    asleep = "select 1 from pg_stat_activity where query = 'select pg_sleep(60)' and state = 'active'"
    await asyncio.to_thread(until, lambda: _rows(store.url, asleep), "it sleeps")
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    async with asyncio.timeout(20):
        assert await store.arun(WHO), "a cancelled caller leaves a connection for the next"


def _sleeps() -> Steps[int]:
    yield Statement("select pg_sleep(60)")
    return 0


async def test_lost_connection_is_replaced_and_closed_with_the_loop(store: PostgresStore) -> None:
    first = await store.arun(WHO)
    with psycopg.connect(store.url, autocommit=True) as other:
        other.execute("select pg_terminate_backend(%s, 10000)", (first,))
    second = await store.arun(WHO)
    assert second != first
    ((connections,),) = (by_use.values() for by_use in store._pools._loop_pools.values())
    kept = connections._kept
    await store.leave_loop()
    assert kept is not None
    assert kept.closed
    others = "select 1 from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    await asyncio.to_thread(until, lambda: _rows(store.url, others) == 0, "it is closed")


async def test_unused_connection_returns_to_the_pool(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "KEPT_FOR", 0.02)
    first = await store.arun(WHO)
    ((connections,),) = (by_use.values() for by_use in store._pools._loop_pools.values())
    await asyncio.to_thread(until, lambda: connections._pool.get_stats()["pool_available"] == 1, "it is back")
    assert await store.arun(WHO) == first


async def test_reads_of_one_transaction_bind_the_tenant_of_each_read(store: PostgresStore) -> None:
    reads = Reader()
    reads.dialect = Calls("holdfast").dialect

    def read(*tenants: str) -> Steps[list[str]]:
        results = []
        for tenant in tenants:
            rows = yield from reads._query(tenant, "select {scope}() || count(*)::text from {job}")
            results.append(rows[0][0])
        yield Statement("select holdfast.enter('elsewhere')")
        rows = yield from reads._query(tenants[-1], "select {scope}()")
        return [*results, rows[0][0]]

    tenants_read = ("a", "a", "b", "a")
    flow = Flow(functools.partial(read, *tenants_read), writes=False)
    expected = [f"{tenant}0" for tenant in tenants_read] + ["a"]
    assert await store.arun(flow) == expected
    assert await asyncio.to_thread(store.run, flow) == expected


async def test_process_opens_at_most_the_reported_connections(postgres_url: str) -> None:
    store = PostgresStore(postgres_url, pool_size=2, answer_within=20.0)
    hot = Flow(_rests, writes=False, single=True, hot=True)
    plain = Flow(_rests, writes=False, single=True)
    stop_listening = store.listen(lambda _: None)
    ours = "select 1 from pg_stat_activity where application_name = 'holdfast' and datname = current_database()"
    try:
        async_calls = [store.arun(each) for each in [hot, plain] * 6]
        sync_calls = [asyncio.to_thread(store.run, plain) for _ in range(6)]
        counting = asyncio.to_thread(until, lambda: _rows(store.url, ours) == 7, "each pool is at its limit")
        await asyncio.gather(*async_calls, *sync_calls, counting)
        assert _rows(store.url, ours) == store.most_connections == 7
        (finding,) = [each for each in await asyncio.to_thread(store.diagnose) if each.name == "connections"]
        assert finding.ok
        assert finding.says.endswith("(server); a worker process opens 7 at most")
        with psycopg.connect(store.url, autocommit=True) as connection:
            here = sql.Identifier(connection.info.dbname)
            connection.execute(sql.SQL("alter database {} connection limit 14").format(here))
            (finding,) = [each for each in await asyncio.to_thread(store.diagnose) if each.name == "connections"]
        assert (finding.ok, "of 14 are free (database)" in finding.says) == (False, True)
    finally:
        stop_listening()
        await store.aclose()


def _rests() -> Steps[None]:
    yield Statement("select pg_sleep(0.3)")

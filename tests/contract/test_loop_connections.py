"""The connection that an event loop keeps at hand: nobody waits in vain for it, and none is lost."""

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


async def test_one_after_another_on_the_same_and_many_at_once_all_get_theirs(store: PostgresStore) -> None:
    first = await store.arun(WHO)
    assert {await store.arun(WHO) for _ in range(5)} == {first}
    # One connection for all of them: who waits for it gets it before it is kept.
    assert await asyncio.gather(*(store.arun(WHO) for _ in range(20))) == [first] * 20
    with pytest.raises(Exception, match="division by zero"):
        await store.arun(Flow(_refused, writes=False))
    assert await store.arun(WHO) == first, "a transaction that failed leaves a connection that works"
    broken_off = asyncio.create_task(store.arun(Flow(_sleeps, writes=False, single=True)))
    asleep = "select 1 from pg_stat_activity where query = 'select pg_sleep(60)' and state = 'active'"
    await asyncio.to_thread(until, lambda: _rows(store.url, asleep), "it sleeps")
    broken_off.cancel()
    await asyncio.gather(broken_off, return_exceptions=True)
    async with asyncio.timeout(20):
        assert await store.arun(WHO), "whoever breaks off leaves one for the next"


def _sleeps() -> Steps[int]:
    yield Statement("select pg_sleep(60)")
    return 0


async def test_one_that_was_cut_is_replaced_and_the_last_is_closed_with_the_loop(store: PostgresStore) -> None:
    first = await store.arun(WHO)
    with psycopg.connect(store.url, autocommit=True) as other:
        other.execute("select pg_terminate_backend(%s, 10000)", (first,))
    second = await store.arun(WHO)
    assert second != first
    ((connections,),) = (lanes.values() for lanes in store._pools._loop_pools.values())
    kept = connections._kept
    await store.leave_loop()
    assert kept is not None
    assert kept.closed
    others = "select 1 from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    await asyncio.to_thread(until, lambda: _rows(store.url, others) == 0, "it is closed")


async def test_what_nobody_uses_goes_back_to_the_pool_which_closes_what_is_idle(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "KEPT_FOR", 0.02)
    first = await store.arun(WHO)
    ((connections,),) = (lanes.values() for lanes in store._pools._loop_pools.values())
    await asyncio.to_thread(until, lambda: connections._pool.get_stats()["pool_available"] == 1, "it is back")
    assert await store.arun(WHO) == first


async def test_reads_of_one_transaction_bind_it_once_and_each_to_its_own_tenant(store: PostgresStore) -> None:
    reads = Reader()
    reads.dialect = Calls("holdfast").dialect

    def look(*tenants: str) -> Steps[list[str]]:
        said = []
        for tenant in tenants:
            rows = yield from reads._ask(tenant, "select {scope}() || count(*)::text from {job}")
            said.append(rows[0][0])
        yield Statement("select holdfast.enter('elsewhere')")
        rows = yield from reads._ask(tenants[-1], "select {scope}()")
        return [*said, rows[0][0]]

    asked = ("a", "a", "b", "a")
    flow = Flow(functools.partial(look, *asked), writes=False)
    expected = [f"{tenant}0" for tenant in asked] + ["a"]
    assert await store.arun(flow) == expected
    assert await asyncio.to_thread(store.run, flow) == expected


async def test_a_process_opens_no_more_than_it_says_and_the_doctor_compares(postgres_url: str) -> None:
    store = PostgresStore(postgres_url, pool_size=2, answer_within=20.0)
    hot = Flow(_rests, writes=False, single=True, hot=True)
    plain = Flow(_rests, writes=False, single=True)
    hush = store.listen(lambda _: None)
    ours = "select 1 from pg_stat_activity where application_name = 'holdfast' and datname = current_database()"
    try:
        asked = [store.arun(each) for each in [hot, plain] * 6]
        beside = [asyncio.to_thread(store.run, plain) for _ in range(6)]
        counting = asyncio.to_thread(until, lambda: _rows(store.url, ours) == 7, "each has come to its pool's limit")
        await asyncio.gather(*asked, *beside, counting)
        assert _rows(store.url, ours) == store.most_connections == 7
        (found,) = [each for each in await asyncio.to_thread(store.diagnose) if each.name == "connections"]
        assert found.ok
        assert found.says.endswith("(server); a worker process opens 7 at most")
        with psycopg.connect(store.url, autocommit=True) as connection:
            here = sql.Identifier(connection.info.dbname)
            connection.execute(sql.SQL("alter database {} connection limit 14").format(here))
            (found,) = [each for each in await asyncio.to_thread(store.diagnose) if each.name == "connections"]
        assert (found.ok, "of 14 are free (database)" in found.says) == (False, True)
    finally:
        hush()
        await store.aclose()


def _rests() -> Steps[None]:
    yield Statement("select pg_sleep(0.3)")

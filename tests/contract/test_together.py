"""Reads whose questions are sent together: one way there and back, bound to their tenant, and nothing left behind."""

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
from holdfast.errors import InvalidInput, StoreError
from holdfast.features.postgres import PostgresStore
from holdfast.stores.flow import Flow, Statement, Steps, read_together
from holdfast.stores.postgres import connections, pipeline
from holdfast.stores.postgres.connections import AsyncStoreConnection, StoreConnection
from holdfast.stores.postgres.pipeline import PREPARE_AFTER
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


def kept(store: PostgresStore) -> AsyncStoreConnection:
    ((lane,),) = (lanes.values() for lanes in store._pools._loop_pools.values())
    assert lane._kept is not None
    return lane._kept


@pytest.mark.parametrize("noun", ["schedules", "jobs"])
async def test_a_list_is_one_way_there_and_back(postgres_url: str, tmp_path: Path, noun: str) -> None:
    app = App(postgres_url, name="counts")
    app.schedules.add("nightly", "@daily", kind="report")
    app.enqueue("report", {})
    look = app.schedules.alist if noun == "schedules" else app.jobs.alist
    for _ in range(PREPARE_AFTER + 2):
        assert len(await look()) == 1
    store = app._store
    assert isinstance(store, PostgresStore)
    with (tmp_path / "trace").open("w+") as told:
        kept(store).pgconn.trace(told.fileno())
        assert len(await look()) == 1
        kept(store).pgconn.untrace()
        told.seek(0)
        said = told.read()
    assert said.count("ReadyForQuery") == 1, said
    await store.aclose()


async def test_each_is_bound_to_its_own_tenant_and_leaves_the_connection_bound_to_none(store: PostgresStore) -> None:
    ((free, backend),) = await store.arun(ALONE)
    assert not free
    for _ in range(2 * PREPARE_AFTER):
        for tenant in ("acme", "beta"):
            assert await store.arun(read(tenant, BOUND)) == [(tenant, backend)]
    assert await store.arun(ALONE) == [(free or "", backend)]


async def test_values_come_as_they_are_whatever_their_size(store: PostgresStore) -> None:
    """The same text with values of other types is another statement to the server."""
    text = "select %(n)s::bigint, %(n)s::text, '100 %%' || %(word)s::text, %(none)s::text"
    for _ in range(2 * PREPARE_AFTER):
        for n in (1, 70_000, 2**40, None):
            told = await store.arun(read("acme", text, n=n, word="a % b", none=None))
            assert told == [(n, None if n is None else str(n), "100 %a % b", None)]


async def test_more_texts_than_are_prepared_are_answered_all_the_same(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
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


async def test_what_fails_is_told_and_the_next_reads_its_own_answer(store: PostgresStore) -> None:
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


async def test_after_a_transaction_was_rolled_back_there_is_nothing_prepared(store: PostgresStore) -> None:
    """By the driver, which then deallocates all that is prepared on its connection, if it has prepared anything."""
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
        await store.arun(ALONE)  # it is the next statement of its own that the driver does it with
        await asyncio.to_thread(store.run, ALONE)
        assert await store.arun(read("acme", "select %(n)s::int", n=8)) == [(8,)]
        assert await asyncio.to_thread(store.run, read("acme", "select %(n)s::int", n=8)) == [(8,)]


async def test_whoever_breaks_off_leaves_no_answer_for_the_next(store: PostgresStore) -> None:
    await store.arun(ALONE)
    broken_off = asyncio.create_task(store.arun(read("acme", "select 'not for you', pg_sleep(60)")))
    with psycopg.connect(store.url, autocommit=True) as other:
        asleep = "select 1 from pg_stat_activity where query like 'select ''not for you''%' and state = 'active'"
        await asyncio.to_thread(until, lambda: other.execute(asleep).fetchall(), "it sleeps")
        broken_off.cancel()
        await asyncio.gather(broken_off, return_exceptions=True)
        async with asyncio.timeout(20):
            assert [row[0] for row in await store.arun(read("beta", BOUND))] == ["beta"]
        await asyncio.to_thread(until, lambda: not other.execute(asleep).fetchall(), "nobody sleeps")


def test_a_connection_that_is_left_in_the_middle_is_nobodys_any_more(postgres_url: str) -> None:
    with StoreConnection.connect(postgres_url, autocommit=True) as connection:
        asked = connection._pipelined_reads.fetch([Statement("select 'not for you', pg_sleep(0.1)")])
        next(asked)
        asked.close()
        assert connection.closed


async def test_without_batches_it_is_four_questions_and_the_same_answer(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a pooler, and with a library that is older."""
    monkeypatch.setattr(connections, "BATCHES", False)
    assert [row[0] for row in await store.arun(read("beta", BOUND))] == ["beta"]
    (own, two), *_ = await store.arun(Flow(_several, writes=False))
    assert (own[0][0], two) == ("acme", [(2,)])


def test_canary_reads_are_sent_together_unless_that_is_switched_off(postgres_url: str) -> None:
    """Red with a psycopg whose generators have changed: then HOLDFAST_DISABLE=pipeline is the way out."""
    program = (
        "from holdfast import App; from holdfast.stores.postgres import connections;"
        f"app = App({postgres_url!r}); print(connections.BATCHES, app._store.run(app._store.limits.list('acme')))"
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


async def test_a_connection_that_is_cut_in_the_middle_is_replaced(store: PostgresStore) -> None:
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


def _leaves() -> Steps[Any]:
    """Something that is no read of ours, and counts on the transaction that it is in."""
    first = yield from reading("acme", BOUND)
    yield Statement("select set_config('holdfast.tenant', 'other', true)")
    second = yield Statement(BOUND)
    third = yield from reading("acme", BOUND)
    return [rows[0][0] for rows in (first, second, third)]


async def test_what_is_no_read_of_ours_has_its_transaction(store: PostgresStore) -> None:
    assert await store.arun(Flow(_leaves, writes=False)) == ["acme", "other", "acme"]
    assert await asyncio.to_thread(store.run, Flow(_leaves, writes=False)) == ["acme", "other", "acme"]


def _several() -> Steps[Any]:
    inner = read_together(reading("acme", BOUND), reading("acme", "select 2"))
    others = (reading("beta", BOUND), _leaves(), reading("acme", "select 3"))
    return (yield from read_together(inner, *others))


async def test_side_by_side_each_gets_its_own_answer_under_its_own_tenant(store: PostgresStore) -> None:
    for told in (
        await store.arun(Flow(_several, writes=False)),
        await store.arun(Flow(_several)),  # one that writes is a transaction, as ever
        await asyncio.to_thread(store.run, Flow(_several, writes=False)),
        await asyncio.to_thread(store.run, Flow(_several)),
    ):
        (own, two), theirs, left, three = told
        assert (own[0][0], two, theirs[0][0], three) == ("acme", [(2,)], "beta", [(3,)])
        assert left == ["acme", "other", "acme"]

"""The server changes under its clients: read-only for a while, unreachable for long, or with unusual settings."""

from __future__ import annotations

import asyncio
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg import sql

from holdfast import App, State
from holdfast.errors import StoreUnavailable
from holdfast.features.postgres import PostgresStore
from holdfast.stores.postgres import pools
from tests.app.conftest import NewApp
from tests.support.processes import free_port
from tests.support.workers import work_off, working

FAR = datetime.max.replace(tzinfo=UTC)


def set_database(url: str, statement: str, *, and_disconnect: bool) -> None:
    """Change a setting of the database; only new connections see it."""
    with psycopg.connect(url, autocommit=True, options="-c default_transaction_read_only=off") as connection:
        connection.execute(sql.SQL(statement).format(sql.Identifier(connection.info.dbname)))
        if and_disconnect:
            others = "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
            # With a timeout the call waits for the backend to exit; without one it only sends the signal.
            connection.execute(f"select pg_terminate_backend(pid, 20000) {others}")


@pytest.mark.req("CX-15", "SC-11")
def test_connections_to_a_read_only_server_are_replaced(postgres_url: str) -> None:
    """As after a failover: connections opened meanwhile lead to a standby, and a pool would keep them for an hour."""
    with closing(App(postgres_url)) as app, closing(App(postgres_url)) as worker_app:

        @worker_app.job()
        async def add(a: int) -> int:
            return a + 1

        with working(worker_app, beat=0.3):
            assert app.enqueue("add", {"a": 1}).result(timeout=20) == 2
            set_database(postgres_url, "alter database {} set default_transaction_read_only = on", and_disconnect=True)
            with pytest.raises(StoreUnavailable) as refused:
                app.enqueue("add", {"a": 2})
            assert refused.value.code == "store_read_only"
            set_database(postgres_url, "alter database {} reset default_transaction_read_only", and_disconnect=False)
            assert app.enqueue("add", {"a": 3}).result(timeout=20) == 4


@pytest.mark.req("CX-15", "SC-11")
@pytest.mark.parametrize("way", ["sync", "async"])
def test_pool_keeps_reconnecting_however_long_the_server_is_unreachable(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool's own delays double: after an outage of four minutes it would sleep for four more."""
    monkeypatch.setattr(pools, "RECONNECT_AFTER", 0.1)
    unreachable = PostgresStore(f"postgresql://user@127.0.0.1:{free_port()}/none", answer_within=0.3)
    request = unreachable.health.get("default")

    async def poll() -> None:
        async with asyncio.timeout(12):
            while _failures(unreachable) < 7:
                with pytest.raises(StoreUnavailable):
                    await (unreachable.arun(request) if way == "async" else asyncio.to_thread(unreachable.run, request))
        await unreachable.aclose()

    asyncio.run(poll())


def _failures(store: Any) -> int:
    loop_pools = [each._pool for pools in store._pools._loop_pools.values() for each in pools.values()]
    opened = [pool for pool in (store._pools._thread_pool, *loop_pools) if pool is not None]
    return sum(pool.get_stats().get("connections_errors", 0) for pool in opened)


@pytest.mark.req("CX-15", "DP-3")
def test_time_beyond_the_python_range_does_not_block_workers(new_app: NewApp, url: str) -> None:
    if url.startswith("postgresql"):
        set_database(url, "alter database {} set timezone = 'Asia/Tokyo'", and_disconnect=False)
    app = new_app()

    @app.job()
    async def add(a: int) -> int:
        return a + 1

    far, near = add.using(deadline=FAR).enqueue(1), add.enqueue(2)
    if url.startswith("postgresql"):
        with psycopg.connect(url) as connection, pytest.raises(psycopg.Error, match="out of range"):
            connection.execute("select holdfast.enqueue('add', '{\"a\": 3}'::json, deadline_at => 'infinity')")
    work_off(app)
    assert [far.get().state, near.get().state] == [State.SUCCEEDED, State.SUCCEEDED]
    assert {job.state for job in app.jobs.list()} == {State.SUCCEEDED}


@pytest.mark.req("CX-15", "SC-19")
@pytest.mark.parametrize("way", ["sync", "async"])
def test_first_write_after_a_restart_succeeds(postgres_url: str, way: str) -> None:
    """An idle pool holds dead connections by then: a cancel sent over one would fail with an unknown outcome."""

    async def cancel_all(app: App) -> None:
        handles = [await app.aenqueue("later") for _ in range(4)]
        for part in (handles[:2], handles[2:]):
            # Open several connections, which are all dead afterwards.
            if way == "async":
                await asyncio.gather(*(handle.aget() for handle in handles))
            else:
                await asyncio.gather(*(asyncio.to_thread(handle.get) for handle in handles))
            set_database(postgres_url, "alter database {} set work_mem = '4MB'", and_disconnect=True)
            for handle in part:
                await (handle.acancel() if way == "async" else asyncio.to_thread(handle.cancel))
        assert {(await handle.aget()).state for handle in handles} == {State.CANCELLED}
        await app.aclose()

    asyncio.run(cancel_all(App(postgres_url)))

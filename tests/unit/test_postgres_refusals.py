"""What an operator reads when PostgreSQL cannot be used: the reason once, its own code, the role that is missing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from psycopg import sql

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.errors import HoldfastError, Refused, StoreUnavailable
from holdfast.features.assembly import open_store
from tests.support.postgres_server import PostgresServer
from tests.support.processes import free_port

pytestmark = pytest.mark.req("CX-15", "JF-8")


def wrong_password(url: str) -> str:
    password = psycopg.conninfo.conninfo_to_dict(url)["password"]
    return url.replace(f":{password}@", ":wrong@")


def test_wrong_password_has_its_own_code_and_is_not_waited_for(postgres_url: str) -> None:
    with closing(App(wrong_password(postgres_url))) as app:
        for call in (
            session_of(app).store.schema,
            lambda: app.enqueue("x"),
            lambda: asyncio.run(_aenqueue(app)),
            app.worker,
        ):
            begin = time.monotonic()
            with pytest.raises(StoreUnavailable) as caught:
                call()
            assert (caught.value.code, "password" in str(caught.value.fix)) == ("login_refused", True)
            assert time.monotonic() - begin < 10


async def _aenqueue(app: App) -> None:
    try:
        await app.aenqueue("x")
    finally:
        await session_of(app).store.leave_loop()


def test_unknown_login_has_the_same_code(postgres_url: str) -> None:
    with closing(open_store(postgres_url.replace("://postgres:", "://nobody_by_that_name:"))) as store:
        with pytest.raises(StoreUnavailable) as caught:
            store.schema()
        assert caught.value.code == "login_refused"


def test_reason_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers report each failed operation, whose text has the reason of the last failed attempt to connect."""
    monkeypatch.setattr("holdfast.stores.postgres.store.CONNECT_WITHIN", 0.3)
    with closing(open_store(f"postgresql://postgres@127.0.0.1:{free_port()}/none")) as store:
        for _ in range(3):
            with pytest.raises(HoldfastError) as caught:
                store.run(store.clock.now())
            store.outage.failed(caught.value)
            text = str(caught.value)
            assert (text.count("cannot be reached"), text.count("no connection within")) == (1, 1), text
            assert "cannot be reached" not in store.outage.reason
            assert caught.value.code == "store_unavailable"


@pytest.fixture
def producer(postgres_url: str) -> Iterator[str]:
    name = "holdfast_only_produces"
    password = sql.Literal(psycopg.conninfo.conninfo_to_dict(postgres_url)["password"])
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(sql.SQL("drop role if exists {}").format(sql.Identifier(name)))
        admin.execute(sql.SQL("create role {} login password {}").format(sql.Identifier(name), password))
        admin.execute(sql.SQL("grant holdfast_producer to {}").format(sql.Identifier(name)))
        yield postgres_url.replace("://postgres:", f"://{name}:")
        admin.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


def test_worker_with_the_login_of_a_producer_is_told_the_missing_role(producer: str) -> None:
    with closing(App(producer)) as app:
        app.enqueue("x")
        with pytest.raises(Refused) as caught:
            asyncio.run(app.worker().run())
        assert caught.value.code == "not_allowed"
        assert "grant holdfast_executor to holdfast_only_produces" in str(caught.value.fix)


@pytest.mark.slow
@pytest.mark.req("DP-16")
def test_many_events_do_not_fill_the_log_of_the_server(postgres_url: str, postgres_server: PostgresServer) -> None:
    """The server keeps 256 requests to summarize a range of the index on xid; it logs each request beyond."""
    event = """
        insert into holdfast.event_rest (job_id, tenant, kind, type, to_state, attempt, at, actor, meta)
        select ('ffffffff' || substr(gen_random_uuid()::text, 9))::uuid, 'default', 'mail.send',
               'enqueue', 'queued', 0, now(), 'me',
               jsonb_build_object('text', repeat('x', 1500)) from generate_series(1, 55000)
    """
    with psycopg.connect(postgres_url) as connection:
        connection.execute("set local session_replication_role = replica")
        connection.execute(event.encode())
        size = connection.execute("select pg_relation_size('holdfast.event_rest')").fetchone()
        assert size is not None
        assert size[0] > 80 * 2**20, "more than 256 ranges of 32 pages"
        connection.rollback()
    assert "range summarization" not in postgres_server.log()

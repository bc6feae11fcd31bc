"""Enqueueing on the caller's connection changes none of its settings, and unusable connections are refused."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from psycopg.rows import dict_row
from sqlalchemy.pool import NullPool

from holdfast import App, Kind
from holdfast.app.internals import session_of
from holdfast.errors import HoldfastError, InvalidSetting, SchemaMismatch, StoreUnavailable
from tests.support.caller_connections import Borrower, Django, path_of, sqlalchemy_url

pytestmark = pytest.mark.req("HF-3")


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[App]:
    with closing(App(postgres_url, name="tests", enqueued_by="tester")) as app:
        yield app


@pytest.fixture
def sqlite(sqlite_url: str) -> Iterator[App]:
    with closing(App(sqlite_url, name="tests", enqueued_by="tester")) as app:
        session_of(app).make_ready()
        yield app


def send_of(app: App) -> Kind[[str], str]:
    @app.job()
    def send(to: str) -> str:
        return to

    return send


def setting(connection: psycopg.Connection[Any], name: str) -> str | None:
    row = connection.execute("select current_setting(%s, true)", (name,)).fetchone()
    assert row is not None
    value: str | None = row[0]
    return value


# --- PostgreSQL: transaction settings ---


@pytest.mark.req("JF-1", "JF-2")
@pytest.mark.parametrize("key", [None, "k-1"])
def test_tenant_and_actor_of_the_transaction_are_restored(postgres: App, key: str | None) -> None:
    options: Any = {"tenant": "acme"} | ({"key": key} if key else {})
    with psycopg.connect(session_of(postgres).store.url) as connection:
        connection.execute(
            "select set_config('holdfast.tenant', 'mine', true), set_config('holdfast.actor', 'me', true)"
        )
        for _ in range(8):  # psycopg prepares frequent statements, which are then planned differently
            send = postgres._kinds["send"].kind if "send" in postgres._kinds else send_of(postgres)
            send.using(connection=connection, **options).enqueue("x")
            assert setting(connection, "holdfast.tenant") == "mine"
            assert setting(connection, "holdfast.actor") == "me"
        with pytest.raises(HoldfastError):
            postgres.enqueue("x", connection=connection, parent="01a1de87-6b74-70b8-bbed-192362a7945f")
        assert setting(connection, "holdfast.tenant") == "mine"
    assert {job.tenant for job in postgres.jobs.list(tenant="*")} == {"acme"}


@pytest.mark.req("JF-1", "JF-2")
def test_enqueue_does_not_widen_what_the_transaction_can_see(postgres: App) -> None:
    """A transaction without a tenant does not get one by enqueueing for it."""
    postgres.enqueue("theirs", tenant="acme")
    with psycopg.connect(session_of(postgres).store.url) as connection:
        postgres.enqueue("x", tenant="acme", connection=connection)
        assert not setting(connection, "holdfast.tenant")
        connection.execute("select holdfast.enter('other')")
        postgres.enqueue("x", tenant="acme", connection=connection)
        assert setting(connection, "holdfast.tenant") == "other"


def test_psycopg_connection_settings_are_unchanged(postgres: App) -> None:
    with psycopg.connect(
        session_of(postgres).store.url, row_factory=dict_row, cursor_factory=psycopg.RawCursor
    ) as connection:
        connection.execute("create schema shop")
        connection.execute("set search_path = shop, public")
        connection.execute("create table json (says text)")
        before = (connection.autocommit, connection.row_factory, connection.cursor_factory, connection.isolation_level)
        handle = postgres.enqueue("x", {"n": 1}, connection=connection)
        after = (connection.autocommit, connection.row_factory, connection.cursor_factory, connection.isolation_level)
        assert before == after
        connection.execute("insert into json values ($1)", ("mine",))
        assert connection.execute("select says from shop.json").fetchall() == [{"says": "mine"}]
        assert connection.execute("show search_path").fetchone() == {"search_path": "shop, public"}
    assert handle.get().payload == {"n": 1}


async def test_asyncpg_codecs_are_unchanged(postgres: App) -> None:
    import json

    connection = await asyncpg.connect(session_of(postgres).store.url)
    for name in ("json", "jsonb"):
        await connection.set_type_codec(name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
    async with connection.transaction():
        handle = await postgres.aenqueue("x", {"n": [1]}, key="k", connection=connection)
        assert await connection.fetchval("select $1::jsonb", {"a": 1}) == {"a": 1}
    await connection.close()
    assert (handle.get().payload, handle.created) == ({"n": [1]}, True)


def test_autocommit_connection_enqueues_immediately(postgres: App) -> None:
    with psycopg.connect(session_of(postgres).store.url, autocommit=True) as connection:
        handle = postgres.enqueue("x", connection=connection)
        assert handle.get().kind == "x"
        assert not setting(connection, "holdfast.tenant")
        with connection.transaction(force_rollback=True):
            postgres.enqueue("y", connection=connection)
    engine = sa.create_engine(sqlalchemy_url(session_of(postgres).store.url, "psycopg"), poolclass=NullPool)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as other:
        postgres.enqueue("z", connection=other)
    assert {job.kind for job in postgres.jobs.list()} == {"x", "z"}


def test_sqlalchemy_connection_with_streamed_results_works(postgres: App) -> None:
    engine = sa.create_engine(sqlalchemy_url(session_of(postgres).store.url, "psycopg"), poolclass=NullPool)
    with engine.connect().execution_options(stream_results=True, max_row_buffer=1) as connection:
        postgres.enqueue("x", connection=connection)
        connection.commit()
    assert len(postgres.jobs.list()) == 1


def test_aborted_transaction_is_reported(postgres: App) -> None:
    with psycopg.connect(session_of(postgres).store.url) as connection:
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("select 1 from missing")
        with pytest.raises(HoldfastError) as caught:
            postgres.enqueue("x", connection=connection)
        assert caught.value.code == "transaction_aborted"


def test_serialization_failure_is_raised_as_the_driver_error(postgres: App) -> None:
    """Callers that retry the whole transaction expect the driver's exception."""
    with psycopg.connect(session_of(postgres).store.url, autocommit=True) as connection:
        connection.execute("create table note (n integer)")
    with psycopg.connect(session_of(postgres).store.url) as one:
        one.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        one.execute("select count(*) from note")
        one.execute("insert into note values (1)")
        with psycopg.connect(session_of(postgres).store.url) as other:
            other.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
            other.execute("select count(*) from note")
            other.execute("insert into note values (2)")
        with pytest.raises(psycopg.errors.SerializationFailure):
            postgres.enqueue("x", connection=one)
        one.rollback()
    assert postgres.jobs.list() == []


def test_postgres_database_without_the_schema_is_reported(postgres: App, empty_postgres_url: str) -> None:
    with psycopg.connect(empty_postgres_url) as connection:
        connection.execute("create table note (says text)")
        with pytest.raises(SchemaMismatch) as caught:
            postgres.enqueue("x", connection=connection)
        assert caught.value.code == "not_migrated"
        connection.execute("insert into note values ('still usable')")


# --- SQLite: file and mode ---


def test_sqlite_connection_settings_are_unchanged(sqlite: App) -> None:
    with closing(sqlite3.connect(path_of(session_of(sqlite).store.url))) as connection:
        connection.row_factory, connection.text_factory = as_dict, bytes
        before = (connection.isolation_level, connection.row_factory, connection.text_factory, pragmas(connection))
        handle = sqlite.enqueue("x", {"n": 1}, key="k", connection=connection)
        again = sqlite.enqueue("x", {"n": 1}, key="k", connection=connection)
        connection.commit()
        assert (again.id, again.reason) == (handle.id, "duplicate_key")
        assert before == (
            connection.isolation_level,
            connection.row_factory,
            connection.text_factory,
            pragmas(connection),
        )
    assert handle.get().payload == {"n": 1}


def as_dict(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


def pragmas(connection: sqlite3.Connection) -> list[Any]:
    names = ("journal_mode", "synchronous", "foreign_keys", "wal_autocheckpoint", "busy_timeout", "temp_store")
    return [connection.execute(f"PRAGMA {name}").fetchone() for name in names]


@pytest.mark.parametrize("level", ["", "DEFERRED", "IMMEDIATE", "EXCLUSIVE"])
def test_legacy_mode_opens_the_transaction_as_an_insert_would(sqlite: App, level: Any) -> None:
    with closing(sqlite3.connect(path_of(session_of(sqlite).store.url), isolation_level=level)) as connection:
        sqlite.enqueue("x", connection=connection)
        assert connection.in_transaction
        connection.rollback()
        assert sqlite.jobs.list() == []
        sqlite.enqueue("x", connection=connection)
        connection.commit()
        assert len(sqlite.jobs.list()) == 1
        with pytest.raises(HoldfastError):
            sqlite.enqueue("x", parent="01a1de87-6b74-70b8-bbed-192362a7945f", connection=connection)
        connection.commit()


def test_enqueue_without_a_transaction_is_atomic(sqlite: App, monkeypatch: pytest.MonkeyPatch) -> None:
    first = sqlite.enqueue("x")
    with closing(sqlite3.connect(path_of(session_of(sqlite).store.url), isolation_level=None)) as connection:
        handle = sqlite.enqueue("x", connection=connection)
        assert handle.get().kind == "x"
        monkeypatch.setattr("holdfast.kind.new_id", lambda: first.id)
        with pytest.raises(HoldfastError):
            sqlite.enqueue("x", key="k", connection=connection)
        assert not connection.in_transaction
        monkeypatch.undo()
        assert sqlite.enqueue("x", key="k", connection=connection).created  # the failed call did not keep the key


def test_locked_file_is_reported_with_its_code(sqlite: App) -> None:
    path = path_of(session_of(sqlite).store.url)
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as writer,
        closing(sqlite3.connect(path, timeout=0)) as other,
    ):
        writer.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable) as caught:
            sqlite.enqueue("x", connection=other)
        assert caught.value.code == "database_locked"
        assert not other.in_transaction
        writer.execute("COMMIT")
        sqlite.enqueue("x", connection=other)
        other.commit()
    assert len(sqlite.jobs.list()) == 1


def test_connection_to_another_file_is_refused(sqlite: App, tmp_path: Path) -> None:
    for other in (str(tmp_path / "other.db"), ":memory:"):
        with closing(sqlite3.connect(other)) as connection:
            connection.execute("create table note (says text)")
            with pytest.raises(InvalidSetting) as caught:
                sqlite.enqueue("x", connection=connection)
            assert caught.value.code == "other_database"
            assert "with a kit that is kit.url" in str(caught.value)
            assert not connection.in_transaction
    link = tmp_path / "link.db"
    link.symlink_to(path_of(session_of(sqlite).store.url))
    with closing(sqlite3.connect(link)) as connection:  # a symlink to the same file is accepted
        sqlite.enqueue("x", connection=connection)
        connection.commit()
    assert len(sqlite.jobs.list()) == 1


def test_connection_to_another_database_type_is_refused(sqlite: App, postgres: App) -> None:
    with (
        closing(sqlite3.connect(path_of(session_of(sqlite).store.url))) as file,
        psycopg.connect(session_of(postgres).store.url) as server,
    ):
        for app, connection in ((sqlite, server), (postgres, file)):
            with pytest.raises(InvalidSetting) as caught:
                app.enqueue("x", connection=connection)
            assert caught.value.code == "other_database"


def test_sqlite_file_without_the_schema_is_reported_inside_a_transaction(new_sqlite_url: str) -> None:
    """Outside a transaction the first use creates the tables; inside one it would have to wait for itself."""
    with closing(App(new_sqlite_url)) as app, closing(sqlite3.connect(path_of(new_sqlite_url))) as connection:
        connection.execute("create table note (says text)")
        connection.execute("insert into note values ('mine')")
        with pytest.raises(SchemaMismatch) as caught:
            app.enqueue("x", connection=connection)
        assert caught.value.code == "not_migrated"
        assert connection.in_transaction
        connection.commit()
        app.enqueue("x", connection=connection)
        connection.commit()
        assert len(app.jobs.list()) == 1


# --- unusable connections ---


@pytest.mark.parametrize("given", [object(), "postgresql://localhost/x", 7])
def test_unsupported_connection_is_refused_with_the_supported_list(sqlite: App, given: object) -> None:
    with pytest.raises(InvalidSetting) as caught:
        sqlite.enqueue("x", connection=given)
    assert caught.value.code == "unsupported_connection"
    assert "asyncpg" in str(caught.value)


def test_sync_and_async_connections_cannot_be_mixed(sqlite: App, postgres: App) -> None:
    async def with_sync(app: App, connection: object) -> None:
        await app.aenqueue("x", connection=connection)

    async def with_async(url: str) -> None:
        connection = await psycopg.AsyncConnection.connect(url)
        try:
            postgres.enqueue("x", connection=connection)
        finally:
            await connection.close()

    with pytest.raises(InvalidSetting) as caught:
        asyncio.run(with_async(session_of(postgres).store.url))
    assert caught.value.code == "async_connection"
    django: Borrower = Django(session_of(sqlite).store.url)
    with (
        closing(sqlite3.connect(path_of(session_of(sqlite).store.url))) as file,
        psycopg.connect(session_of(postgres).store.url) as server,
    ):
        for app, connection in ((sqlite, file), (postgres, server), (sqlite, django.connection)):
            with pytest.raises(InvalidSetting) as caught:
                asyncio.run(with_sync(app, connection))
            assert caught.value.code == "sync_connection"
    assert (sqlite.jobs.list(), postgres.jobs.list()) == ([], [])

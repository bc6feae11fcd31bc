"""``App(pool=…)``: every operation runs on connections of the application's own pool or engine."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Coroutine, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import psycopg_pool
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.errors import Conflict, InvalidArguments, InvalidSetting, NotFound
from holdfast.testing import Kit
from tests.support.caller_connections import sqlalchemy_url
from tests.support.concurrency import in_a_fork
from tests.support.workers import work_off

pytestmark = pytest.mark.req("JF-22")

NAME = "shop"  # what the application's connections call themselves


async def _json_codec(connection: Any) -> None:
    """As many applications do: values of ``json`` are Python objects."""
    for name in ("json", "jsonb"):
        await connection.set_type_codec(name, schema="pg_catalog", encoder=json.dumps, decoder=json.loads)


def _repeatable_read(connection: psycopg.Connection[Any]) -> None:
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ


class Pooled:
    """A pool of some kind with the app on it. ``call`` runs an operation in the form that the pool needs."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind, self.url, self._runner = kind, url, asyncio.Runner()
        self.is_async = kind not in ("psycopg", "engine")
        named = f"{url}{'&' if '?' in url else '?'}application_name={NAME}"
        self.pool: Any = self.do(self._open(named))
        self.app = App(None if kind != "asyncpg" else url, pool=self.pool, name="tests")

    async def _open(self, url: str) -> Any:
        if self.kind == "psycopg":
            return psycopg_pool.ConnectionPool(url, min_size=1, max_size=2, open=True, configure=_repeatable_read)
        if self.kind == "async psycopg":
            pool = psycopg_pool.AsyncConnectionPool(url, min_size=1, max_size=2, open=False)
            await pool.open(wait=True)
            return pool
        if self.kind == "asyncpg":
            return await asyncpg.create_pool(
                self.url, min_size=1, max_size=2, init=_json_codec, server_settings={"application_name": NAME}
            )
        if self.kind == "engine":
            return sa.create_engine(sqlalchemy_url(url, "psycopg"), pool_size=2)
        driver = self.kind.removeprefix("async engine ")
        options = {"connect_args": {"server_settings": {"application_name": NAME}}} if driver == "asyncpg" else {}
        return create_async_engine(sqlalchemy_url(self.url if options else url, driver), pool_size=2, **options)

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(work)

    def call(self, owner: Any, name: str, /, *args: Any, **options: Any) -> Any:
        """An operation such as ``app.jobs.list``, or its async form."""
        if not self.is_async:
            return getattr(owner, name)(*args, **options)
        return self.do(getattr(owner, f"a{name}")(*args, **options))

    def query(self, sql: str) -> list[Any]:
        """The rows of a query of the application itself."""

        async def on_engine() -> list[Any]:
            async with self.pool.connect() as connection:
                return [tuple(row) for row in await connection.execute(sa.text(sql))]

        async def on_pool() -> list[Any]:
            if self.kind == "asyncpg":
                return [tuple(row) for row in await self.pool.fetch(sql)]
            async with self.pool.connection() as connection:
                return list(await (await connection.execute(sql)).fetchall())

        if self.kind == "engine":
            with self.pool.connect() as connection:
                return [tuple(row) for row in connection.execute(sa.text(sql))]
        if self.kind == "psycopg":
            with self.pool.connection() as connection:
                return list(connection.execute(sql).fetchall())
        return list(self.do(on_pool() if "engine" not in self.kind else on_engine()))

    def close(self) -> None:
        self.call(self.app, "close")
        assert self.query("select 1") == [(1,)], "the pool is the application's, and still open"
        closing_pool = self.pool.dispose() if "engine" in self.kind else self.pool.close()
        if self.is_async:
            self.do(closing_pool)
        self._runner.close()


KINDS = ("psycopg", "async psycopg", "asyncpg", "engine", "async engine asyncpg", "async engine psycopg")


@pytest.fixture(params=KINDS)
def pooled(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[Pooled]:
    with closing(Pooled(request.param, postgres_url)) as pooled:
        yield pooled


def backends(url: str) -> dict[str, set[str]]:
    """The states of the connections to the database, by the name of their program."""
    states: dict[str, set[str]] = {}
    with psycopg.connect(url, application_name="observer") as connection:
        rows = connection.execute(
            "select application_name, state from pg_stat_activity where datname = current_database()"
            " and pid <> pg_backend_pid() and backend_type = 'client backend'"
        )
        for name, state in rows:
            states.setdefault(name, set()).add(state)
    return states


def add(app: App) -> Any:
    @app.job
    def total(numbers: list[int], note: str = "") -> int:
        return sum(numbers)

    return total


@pytest.mark.every_case
def test_operations_run_on_connections_of_the_pool(pooled: Pooled) -> None:
    app, call = pooled.app, pooled.call
    total = add(app)
    first = call(total, "enqueue", [1, 2], note="é 50 % 'quoted' \\ {\"a\"}")
    many = call(app, "enqueue_many", [total.prepare([n]) for n in range(3)])
    assert call(app.jobs, "get", first.id).payload == {"numbers": [1, 2], "note": "é 50 % 'quoted' \\ {\"a\"}"}
    assert [job.id for job in call(app.jobs, "list", kind="total")] == [*(each.id for each in reversed(many)), first.id]
    assert call(app.jobs, "cancel", first.id, reason="not needed")
    last = call(app.jobs, "history", first.id)[-1]
    assert last.to_state == "cancelled"
    assert call(app.jobs, "count").counts["queued"] == 3
    call(app.limits, "set", queue="default", concurrency=2)
    assert [limit.concurrency for limit in call(app.limits, "list")] == [2]
    call(app.schedules, "add", "nightly", "0 3 * * *", kind="total", payload={"numbers": [1]})
    assert call(app.schedules, "get", "nightly").payload == {"numbers": [1]}
    assert call(app.health, "get").verdict
    keyed = total.using(key="once")
    call(keyed, "enqueue", [1])
    with pytest.raises(Conflict):
        call(keyed, "enqueue", [2])
    with pytest.raises(InvalidArguments):
        call(total, "enqueue", "x")
    with pytest.raises(NotFound):
        call(app.jobs, "get", str(uuid.uuid4()))
    assert backends(pooled.url) == {NAME: {"idle"}}, "no connection of our own, and no open transaction"


@pytest.mark.every_case
@pytest.mark.req("DP-20")
@pytest.mark.parametrize("kind", KINDS)
def test_settings_of_the_database_change_no_result(kind: str, postgres_url: str) -> None:
    shown = "select current_setting('default_transaction_isolation'), split_part(current_setting('datestyle'), ',', 1)"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        for setting in ("default_transaction_isolation = 'repeatable read'", "datestyle = 'German'"):
            admin.execute(f'alter database "{admin.info.dbname}" set {setting}'.encode())
    with closing(Pooled(kind, postgres_url)) as pooled:
        app, call = pooled.app, pooled.call
        handle = call(add(app), "enqueue", [1])
        for concurrency in (2, 3):
            call(app.limits, "set", queue="default", concurrency=concurrency)
        call(app, "send_event", "paid", {"a": 1})
        assert call(app.jobs, "get", handle.id).created_at.tzinfo is not None
        assert call(app.jobs, "history", handle.id)[0].at.tzinfo is not None
        assert pooled.query(shown) == [("repeatable read", "German")], "as the application has set it"


@pytest.mark.every_case
def test_connections_go_back_as_they_were_lent(pooled: Pooled) -> None:
    asked = "select gen_random_uuid(), now(), '{\"a\": 1}'::json, current_setting('holdfast.tenant', true)"
    before = [type(value) for value in pooled.query(asked)[0][:3]]
    pooled.call(add(pooled.app), "enqueue", [1])
    pooled.call(pooled.app.jobs, "list")
    after = pooled.query(asked)[0]
    assert [type(value) for value in after[:3]] == before
    assert not after[3]
    if pooled.kind == "psycopg":
        for _ in range(2):
            with pooled.pool.connection() as connection:
                assert not connection.autocommit
                assert connection.isolation_level is psycopg.IsolationLevel.REPEATABLE_READ
                assert connection._notice_handlers == []


@pytest.mark.every_case
def test_warnings_and_fixes_of_the_database_arrive(pooled: Pooled, caplog: pytest.LogCaptureFixture) -> None:
    pooled.call(pooled.app.policies, "set", unknown_kinds="warn")
    pooled.call(add(pooled.app), "enqueue", [1])
    assert "Accepted: " in caplog.text
    with pytest.raises(InvalidSetting) as refused:
        pooled.call(session_of(pooled.app), "run", session_of(pooled.app).store.leases.open("holder", 1e11, "default"))
    assert refused.value.fix is not None


@pytest.mark.every_case
def test_connections_that_the_server_has_closed_are_replaced(pooled: Pooled) -> None:
    """A read and an enqueue are repeated. A cancellation must not start on such a connection."""
    total, jobs = add(pooled.app), pooled.app.jobs
    first = pooled.call(total, "enqueue", [1])
    for owner, name, args in ((jobs, "cancel", [first.id]), (total, "enqueue", [[2]]), (jobs, "list", [])):
        with psycopg.connect(pooled.url, autocommit=True) as connection:
            connection.execute(
                "select pg_terminate_backend(pid, 10000) from pg_stat_activity where application_name = %s", (NAME,)
            )
        pooled.call(owner, name, *args)
    assert sorted(job.state for job in pooled.call(jobs, "list")) == ["cancelled", "queued"]


@pytest.mark.every_case
def test_a_worker_runs_jobs_of_such_an_app(pooled: Pooled) -> None:
    """Its exchanges have connections of their own, on its own event loop."""
    total = add(pooled.app)
    job = pooled.call(total, "enqueue", [1, 2])
    work_off(pooled.app)
    assert pooled.call(pooled.app.jobs, "get", job.id).state == "succeeded"
    assert total.enqueue([3]).id, "a sync call with an async pool uses a connection of ours"


def test_the_kit_has_its_own_database(postgres_url: str) -> None:
    with closing(Pooled("psycopg", postgres_url)) as pooled, Kit(pooled.app) as kit:
        assert kit.run(add(pooled.app), [1, 2]) == 3
        assert set(backends(postgres_url)) == {NAME}


def test_a_forked_child_leaves_the_pool_to_its_parent(postgres_url: str) -> None:
    with closing(Pooled("psycopg", postgres_url)) as pooled:
        total = add(pooled.app)
        total.enqueue([1])

        def enqueue() -> set[str]:
            total.enqueue([2])
            return set(backends(postgres_url))

        assert in_a_fork(enqueue) == {NAME, "holdfast"}
        assert len(pooled.app.jobs.list()) == 2


def test_engine_on_a_sqlite_file(sqlite_url: str) -> None:
    """SQLite has no connections to save: the store keeps its own, with the settings that it relies on."""
    engine = sa.create_engine(sqlite_url)
    with closing(App(pool=engine, name="tests")) as app:
        total = add(app)
        with engine.begin() as connection:
            total.using(connection=connection).enqueue([1])
        total.enqueue([2])
        assert len(app.jobs.list()) == 2
        assert session_of(app).store.url == sqlite_url
    engine.dispose()


def test_mistakes_are_named(postgres_url: str, sqlite_url: str, tmp_path: Path) -> None:
    engines = [
        sa.create_engine(sqlalchemy_url(postgres_url, "psycopg2")),
        sa.create_engine("sqlite://"),
        sa.create_engine(f"sqlite:///{tmp_path}/other.db"),
    ]
    given: list[tuple[Any, str | None, str]] = [
        (engines[0], None, "unsupported_pool"),
        (object(), postgres_url, "unsupported_pool"),
        (engines[1], None, "other_database"),
        (engines[2], sqlite_url, "other_database"),
        (engines[2], postgres_url, "unsupported_pool"),
    ]
    for pool, url, code in given:
        with pytest.raises(InvalidSetting) as refused:
            App(url, pool=pool)
        assert refused.value.code == code
    with pytest.raises(InvalidSetting) as refused:
        App(pool=asyncio.run(_unopened(postgres_url)))
    assert refused.value.code == "missing_url"


async def _unopened(url: str) -> Any:
    return asyncpg.create_pool(url)

"""A database that a test has used is reset for the next test, or dropped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from holdfast.features.assembly import open_store
from tests.support.postgres_databases import TemplateDatabases
from tests.support.postgres_server import GivenServer, PostgresServer
from tests.support.stores import forward, put, put_one, spec, work

pytestmark = pytest.mark.req("ARCH")

TABLES = (
    "select oid::regclass::text from pg_class where relkind in ('r', 'S') and relnamespace = 'holdfast'::regnamespace"
)
OID = "select oid from pg_database where datname = current_database()"


@pytest.fixture(scope="module")
def databases(postgres_server: PostgresServer | GivenServer) -> Iterator[TemplateDatabases]:
    if not postgres_server.reuses:
        pytest.skip("databases are not reused on this server")
    with closing(TemplateDatabases(postgres_server)) as databases:
        yield databases


def oid_of(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        ((oid,),) = connection.execute(OID).fetchall()
        return int(oid)


def picture(dsn: str) -> dict[str, object]:
    """Every row of every table, and the position of each sequence."""
    with psycopg.connect(dsn) as connection:
        names = [name for (name,) in connection.execute(TABLES).fetchall()]
        # log_cnt of a sequence may differ.
        rows = {name: "last_value, is_called" if name.endswith("_seq") else "*" for name in names}
        return {
            name: connection.execute(f"select {what} from {name}".encode()).fetchall() for name, what in rows.items()
        }


def use(dsn: str, jobs: int) -> None:
    with closing(open_store(dsn)) as store:
        forward(store, 3600)
        put_one(store, key="once")
        put(store, *(spec() for _ in range(jobs)))
        work(store, want=3)


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [3, 600])  # to be deleted, and to be truncated
def test_reset_removes_rows_and_restores_sequences(databases: TemplateDatabases, jobs: int) -> None:
    with databases.fresh() as dsn:
        first, new = oid_of(dsn), picture(dsn)
        use(dsn, jobs)
        assert picture(dsn) != new
    with databases.fresh() as again:
        assert oid_of(again) == first
        assert picture(again) == new
        use(again, 1)  # and it works


def test_two_databases_in_use_are_different(databases: TemplateDatabases) -> None:
    with databases.fresh() as one, databases.fresh() as two:
        assert oid_of(one) != oid_of(two)


def test_old_connections_are_ended_and_find_no_database(databases: TemplateDatabases) -> None:
    with databases.fresh() as dsn:
        first = oid_of(dsn)
        left = psycopg.connect(dsn)
    with databases.fresh() as again, closing(left):
        assert oid_of(again) == first
        with pytest.raises(psycopg.OperationalError):
            left.execute("select 1")
        with pytest.raises(psycopg.OperationalError, match="does not exist"):
            psycopg.connect(dsn)


ALTERING = [
    "create table extra (n int)",
    "create index on holdfast.job (kind)",
    "create temporary table mine (n int)",
    "alter table holdfast.job disable trigger all",
    "alter sequence holdfast.event_seq increment 2",
    "grant select on holdfast.job to public",
    "analyze holdfast.migration",
    "create or replace function holdfast.extra() returns int language sql as 'select 1'",
    "do $$ begin execute format('alter database %I set work_mem = %L', current_database(), '8MB'); end $$",
    "do $$ begin execute format('revoke connect on database %I from public', current_database()); end $$",
]


@pytest.mark.parametrize("statement", ALTERING)
def test_altered_database_is_dropped(databases: TemplateDatabases, statement: str) -> None:
    with databases.fresh() as dsn:
        first = oid_of(dsn)
        with psycopg.connect(dsn) as connection:
            connection.execute(statement.encode())
    with databases.fresh() as again:
        assert oid_of(again) != first


@pytest.mark.slow
def test_database_is_dropped_after_server_crash() -> None:
    server = PostgresServer(in_memory=True)
    server.start()
    try:
        ours = TemplateDatabases(server)
        with ours.fresh() as dsn:
            first, new = oid_of(dsn), picture(dsn)
            use(dsn, 3)
            server.restart("immediate")
        with ours.fresh() as again:
            assert oid_of(again) != first
            assert picture(again) == new
    finally:
        server.destroy()

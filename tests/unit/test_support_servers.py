"""The test servers are real: they start, keep committed data through a crash, and leave nothing behind."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tests.support.postgres_databases import TemplateDatabases
from tests.support.postgres_server import GivenServer, PostgresServer

pytestmark = pytest.mark.req("DP-20")

ROOT = Path(__file__).parents[2]


@pytest.fixture
def server(postgres_server: PostgresServer | GivenServer) -> PostgresServer | GivenServer:
    return postgres_server


@pytest.fixture
def database(server: PostgresServer | GivenServer) -> Iterator[str]:
    with TemplateDatabases(server).empty() as dsn:
        yield dsn


def value(dsn: str, query: str) -> object:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def test_server_has_requested_version(server: PostgresServer | GivenServer) -> None:
    version = value(server.dsn(), "SELECT current_setting('server_version_num')::int / 10000")
    assert version == server.version


def test_commits_are_durable(server: PostgresServer | GivenServer) -> None:
    assert value(server.dsn(), "SHOW fsync") == "on"
    assert value(server.dsn(), "SHOW synchronous_commit") == "on"


def test_committed_rows_survive_a_crash_and_open_transactions_do_not(
    server: PostgresServer | GivenServer, database: str
) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS n")
    with closing(psycopg.connect(database)) as unfinished:
        unfinished.execute("INSERT INTO kept VALUES (2)")
        server.restart("immediate")
        with pytest.raises(psycopg.OperationalError):
            unfinished.commit()
    assert value(database, "SELECT array_agg(n) FROM kept") == [1]


def test_databases_copied_from_a_template_are_separate(server: PostgresServer | GivenServer, database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE shared AS SELECT 1 AS n")
    template = str(value(database, "SELECT current_database()"))
    copy = server.create_database(f"{template}_copy", template=template)
    try:
        with psycopg.connect(copy) as connection:
            connection.execute("INSERT INTO shared VALUES (2)")
        assert value(database, "SELECT count(*) FROM shared") == 1
    finally:
        server.drop_database(f"{template}_copy")


@pytest.mark.slow
def test_destroyed_server_leaves_nothing_behind() -> None:
    server = PostgresServer()
    server.start()
    dsn, directory = server.dsn(), data_directory(server.dsn())
    server.destroy()
    assert not answers(dsn)
    assert not directory.exists()


@pytest.mark.slow
def test_killed_test_run_leaves_nothing_behind() -> None:
    program = (
        "import sys; from tests.support.postgres_server import PostgresServer\n"
        "server = PostgresServer(); server.start(); print(server.dsn(), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        dsn = run.stdout.readline().strip()
        directory = data_directory(dsn)
        run.kill()
    assert eventually(lambda: not answers(dsn))
    assert eventually(lambda: not directory.exists())


def data_directory(dsn: str) -> Path:
    return Path(str(value(dsn, "SHOW data_directory")))


def answers(dsn: str) -> bool:
    try:
        psycopg.connect(dsn, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def eventually(condition: Callable[[], bool], within: float = 10) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return condition()

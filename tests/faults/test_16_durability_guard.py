"""Fault 16: doctor and health report a database with weakened durability settings."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest

from holdfast import App
from holdfast.features.assembly import open_store
from holdfast.features.sqlite import SqliteStore
from holdfast.stores.requests import Finding
from holdfast.stores.sqlite.store import diagnose
from tests.cli.processes import run
from tests.support.postgres_server import PostgresServer

pytestmark = pytest.mark.req("SC-1", "DP-19", "DP-22")

WEAK = ("fsync", "synchronous_commit", "full_page_writes")


@contextmanager
def weakened(url: str, setting: str) -> Iterator[None]:
    """Run the server with that setting off, for every new session."""
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"alter system set {setting} = off")
        admin.execute("select pg_reload_conf()")
        try:
            yield
        finally:
            admin.execute(f"alter system reset {setting}")
            admin.execute("select pg_reload_conf()")


@pytest.fixture
def weak_server() -> Iterator[PostgresServer]:
    """A server without settings on its command line: the settings of the other test servers cannot be overridden."""
    server = PostgresServer(18, in_memory=True)
    for setting in WEAK:
        server._settings.pop(setting)
    try:
        server.start()
        yield server
    finally:
        server.destroy()


def unsound(url: str) -> list[Finding]:
    with closing(open_store(url)) as store:
        return [finding for finding in store.diagnose() if not finding.ok and finding.name not in ("role", "login")]


@pytest.mark.slow
def test_doctor_reports_each_weak_setting(weak_server: PostgresServer) -> None:
    url = weak_server.create_database("weak")
    with closing(open_store(url)) as store:
        store.migrate()
    assert unsound(url) == []
    for setting in WEAK:
        with weakened(url, setting):
            (finding,) = unsound(url)
            assert (finding.name, finding.says) == (setting, f"{setting} = off")
            assert finding.fix is not None
            assert "lost" in finding.fix
        assert unsound(url) == []
    with weakened(url, "synchronous_commit"):
        doctor = run("doctor", url=url)
    assert doctor.returncode == 1
    assert "synchronous_commit = off" in doctor.stdout


def test_health_warns_of_weak_durability(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        name = admin.info.dbname
        admin.execute(f'alter database "{name}" set synchronous_commit = off')
    with closing(App(postgres_url)) as app:
        health = app.health.get()
    assert health.verdict == "warn"
    (weak,) = [reason for reason in health.reasons if reason.code == "weak_durability"]
    assert "synchronous_commit = off" in weak.says


# -- SQLite: the setting belongs to a connection, and all our connections set it -------------------------------


def test_sqlite_store_sets_durability_on_every_connection(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with closing(sqlite3.connect(path)) as before:
        before.execute("pragma journal_mode = delete")
        before.execute("pragma synchronous = off")
        before.execute("create table mine (n)")
    path.chmod(0o600)
    with closing(SqliteStore(f"sqlite:///{path}?synchronous=OFF")) as store:
        store.migrate()
        with store._connections.take() as one, store._connections.take() as two:
            for connection in (one, two):
                assert connection.execute("pragma synchronous").fetchone() == (2,)
                assert connection.execute("pragma journal_mode").fetchone() == ("wal",)
        assert all(finding.ok for finding in store.diagnose())


@pytest.mark.parametrize("weak", ["synchronous = off", "synchronous = normal", "journal_mode = delete"])
def test_doctor_reports_weak_sqlite_connection(tmp_path: Path, weak: str) -> None:
    path = tmp_path / "jobs.db"
    with closing(SqliteStore(f"sqlite:///{path}")) as store:
        status = store.migrate()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"pragma {weak}")
        (finding,) = [each for each in diagnose(connection, str(path), status) if not each.ok]
    assert finding.name == "durability"
    assert finding.fix is not None


def test_doctor_reports_in_memory_database() -> None:
    with closing(open_store("sqlite:///:memory:")) as store:
        store.migrate()
        assert [finding.name for finding in store.diagnose() if not finding.ok] == ["durability"]

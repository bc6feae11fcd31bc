"""Listeners of a SQLite file hear of each commit, with and without reports of the kernel, and rarely read when idle."""

from __future__ import annotations

import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from holdfast.features.sqlite import SqliteStore
from holdfast.stores.sqlite import listener
from tests.support.waiting import until

pytestmark = pytest.mark.req("JF-6", "SC-1")


@contextmanager
def nothing(path: str) -> Iterator[None]:
    yield


@pytest.fixture(params=["reported", "polled"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteStore]:
    if request.param == "polled":
        monkeypatch.setattr(listener, "_reports", nothing)
    elif sys.platform != "linux":
        pytest.skip("only Linux reports writes")
    with closing(SqliteStore(f"sqlite:///{tmp_path / 'jobs.db'}")) as opened:
        opened.migrate()
        yield opened


class Reads:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        read = listener._version

        def counted(connection: sqlite3.Connection) -> int:
            self.count += 1
            return read(connection)  # type: ignore[arg-type]

        monkeypatch.setattr(listener, "_version", counted)


def commit(store: SqliteStore) -> None:
    """As another process does."""
    with closing(sqlite3.connect(store._connections.path)) as connection, connection:
        connection.execute("UPDATE holdfast_clock SET shift = shift + 1")


def test_each_commit_is_heard(store: SqliteStore) -> None:
    heard = threading.Semaphore(0)
    stop = store.listen(lambda _: heard.release())
    assert heard.acquire(timeout=10)  # of earlier commits
    for _ in range(30):
        while heard.acquire(blocking=False):
            pass
        commit(store)
        assert heard.acquire(timeout=10)
    stop()


def test_a_commit_that_takes_long_is_heard(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writes are reported long before it can be seen."""
    monkeypatch.setattr(listener, "EXPECTING_FOR", 0.01)
    heard = threading.Semaphore(0)
    stop = store.listen(lambda _: heard.release())
    assert heard.acquire(timeout=10)
    with closing(sqlite3.connect(store._connections.path, isolation_level=None)) as connection:
        connection.execute("PRAGMA cache_size = 1")  # so that it writes to the log before it commits
        connection.execute("CREATE TABLE large (a)")
        assert heard.acquire(timeout=10)
        connection.execute("BEGIN IMMEDIATE")
        for _ in range(50):
            connection.execute("INSERT INTO large VALUES (zeroblob(20000))")
        time.sleep(0.2)
        while heard.acquire(blocking=False):
            pass
        connection.execute("COMMIT")
        assert heard.acquire(timeout=10)
    stop()


def test_idle_listeners_read_rarely(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "ACTIVE_FOR", 0.1)
    reads = Reads(monkeypatch)
    heard = threading.Event()
    stop = store.listen(lambda _: heard.set())
    assert heard.wait(10)
    time.sleep(0.3)
    before = reads.count
    time.sleep(1.0)
    assert reads.count - before <= 250
    commit(store)
    until(lambda: reads.count > before, "it still reads")
    stop()


def test_listeners_follow_a_replaced_file(store: SqliteStore, tmp_path: Path) -> None:
    heard = threading.Semaphore(0)
    stop = store.listen(lambda _: heard.release())
    assert heard.acquire(timeout=10)
    with closing(SqliteStore(f"sqlite:///{tmp_path / 'other.db'}")) as other:
        other.migrate()
    for suffix in ("", "-wal", "-shm"):
        (tmp_path / f"jobs.db{suffix}").unlink(missing_ok=True)
    (tmp_path / "other.db").rename(tmp_path / "jobs.db")
    assert heard.acquire(timeout=10)  # at the new start
    while heard.acquire(blocking=False):
        pass
    commit(store)
    assert heard.acquire(timeout=10)
    stop()

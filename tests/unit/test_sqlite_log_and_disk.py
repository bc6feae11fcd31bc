"""SQLite's write-ahead log stays short and is checkpointed by one process at a time; disk errors are reported."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Never

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.features.sqlite import SqliteStore
from holdfast.stores.sqlite import connections
from tests.support.stores import put, put_one, spec

pytestmark = pytest.mark.req("SC-1", "SC-19")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(f"sqlite:///{path}")) as opened:
        opened.migrate()
        yield opened


def count(store: SqliteStore) -> int:
    return sum(store.run(store.jobs.counts("default")).values())


def sound(path: Path) -> bool:
    with closing(sqlite3.connect(path)) as connection:
        return bool(connection.execute("pragma integrity_check").fetchone() == ("ok",))


# -- the write-ahead log -----------------------------------------------------------------------------------------


@pytest.fixture
def small_log(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteStore]:
    """The same file, with a checkpoint due after a few writes."""
    monkeypatch.setattr(connections, "CHECKPOINT_BYTES", 400_000)
    with closing(SqliteStore(store.url)) as opened:
        yield opened


def test_commit_succeeds_if_checkpoint_fails(
    small_log: SqliteStore, path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error here would make callers write again."""

    def too_many_open_files(path: str) -> Never:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    monkeypatch.setattr(connections, "_try_lock", too_many_open_files)
    for number in range(40):
        put(small_log, *(spec() for _ in range(10)))
        assert count(small_log) == 10 * (number + 1)
    assert Path(f"{path}-wal").stat().st_size > 400_000
    assert caplog.text.count("cannot be checkpointed") == 1


def test_log_is_checkpointed_and_truncated(small_log: SqliteStore, path: Path) -> None:
    log = Path(f"{path}-wal")
    sizes = []
    put_one(small_log)  # also checkpoints the creation of the tables
    for _ in range(40):
        put_one(small_log)
        sizes.append(log.stat().st_size)
    assert max(sizes) < 2 * connections.CHECKPOINT_BYTES
    assert {each.name for each in path.parent.iterdir()} == {path.name, f"{path.name}-wal", f"{path.name}-shm"}
    # Not with every write: most of the time the log grows.
    shrunk = sum(after < before for before, after in pairwise(sizes))
    assert 2 <= shrunk <= 20
    assert path.stat().st_size > 20 * 4096


HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_only_one_process_checkpoints(small_log: SqliteStore, path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, f"{path}-wal"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        before = path.stat()
        for _ in range(20):
            put_one(small_log)
        assert Path(f"{path}-wal").stat().st_size > 2 * connections.CHECKPOINT_BYTES
        assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
        other.communicate()
    put_one(small_log)
    assert path.stat().st_size > before.st_size
    assert count(small_log) == 21
    assert sound(path)


# -- errors of the disk ------------------------------------------------------------------------------------------


@pytest.mark.req("DP-22")
def test_full_disk_is_reported_and_nothing_is_partly_written(store: SqliteStore) -> None:
    kept = put_one(store)
    with store._connections.take() as connection:  # the one that the next write will use
        pages = connection.execute("pragma page_count").fetchone()[0]
        connection.execute(f"pragma max_page_count = {pages + 2}")
    with pytest.raises(StoreUnavailable) as refused:
        put(store, *(spec(payload={"text": "x" * 4000}) for _ in range(50)))
    assert refused.value.code == "disk_full"
    with store._connections.take() as connection:
        assert not connection.in_transaction
        connection.execute("pragma max_page_count = 1000000")
    whole = (
        "select (select count(*) from holdfast_job), (select count(*) from holdfast_job_state), (select count(*)"
        " from holdfast_event)"
    )
    with store._connections.take() as connection:
        jobs, states, events = connection.execute(whole).fetchone()
    assert jobs == states == events
    assert store.run(store.jobs.get(kept, "default")) is not None
    put_one(store, payload={"text": "x" * 4000})


def test_read_only_database_is_reported(store: SqliteStore) -> None:
    with store._connections.take() as connection:
        connection.execute("pragma query_only = on")
    with pytest.raises(StoreUnavailable, match="readonly"):
        put_one(store)
    assert count(store) == 0


def test_damaged_file_is_reported(store: SqliteStore, path: Path) -> None:
    put_one(store)
    store.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.write(os.urandom(size))
    with pytest.raises(StoreUnavailable) as refused:
        count(store)
    assert refused.value.code == "not_a_database"

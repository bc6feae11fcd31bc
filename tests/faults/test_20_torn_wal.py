"""Faults 20 and 21: SQLite's write-ahead log is truncated, has a flipped bit, or cannot be checkpointed.

A truncated or damaged log is read up to the last complete commit: earlier commits are kept, and nothing is partial. (A
disk that keeps synced data never damages a log; a disk that lies does.)
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.features.assembly import open_store
from holdfast.features.sqlite import SqliteStore
from holdfast.stores.sqlite import connections
from holdfast.stores.sqlite import store as sqlite
from tests.faults.checker import check
from tests.support.stores import claim, open_lease, put, put_one, settle, spec

pytestmark = pytest.mark.req("SC-1", "SC-19", "CX-15")

COMMITS = 60
FRAME, HEADER = 4096 + 24, 32


class Log:
    """A copy of a database with a log of many commits, and the length of the log after each job's commit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commits: list[tuple[int, str]] = []
        with closing(open_store(f"sqlite:///{folder}/first.db")) as store:
            store.migrate()
            self.before = put_one(store)
        # Closing checkpointed the log into the file.
        with closing(open_store(f"sqlite:///{folder}/first.db")) as store:
            wal = folder / "first.db-wal"
            for _ in range(COMMITS):
                job = put_one(store)
                self.commits.append((wal.stat().st_size, job))
            shutil.copy(folder / "first.db", folder / "kept.db")
            shutil.copy(wal, folder / "kept.db-wal")
        self.bytes = (folder / "kept.db-wal").read_bytes()

    def reopened(self, number: int, log: bytes) -> tuple[str, set[str]]:
        """Open the database with this log; returns its URL and the jobs in it."""
        path = self.folder / f"copy-{number}.db"
        shutil.copy(self.folder / "kept.db", path)
        Path(f"{path}-wal").write_bytes(log)
        url = f"sqlite:///{path}"
        with closing(open_store(url)) as store:
            store.migrate()
            with closing(sqlite3.connect(path)) as connection:
                assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
                jobs = {row[0] for row in connection.execute("select id from holdfast_job")}
            check(url, jobs, ended=False)
            # Work continues from there.
            done = put(store, spec())
            claims = claim(store, open_lease(store), 1000)
            assert settle(store, claims) == []
        check(url, [*jobs, *done])
        return url, jobs

    def committed(self, length: int) -> set[str]:
        """Return the jobs whose commits end before that byte."""
        return {self.before, *(job for end, job in self.commits if end <= length)}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    return Log(tmp_path_factory.mktemp("log"))


@pytest.mark.slow
def test_truncated_log_keeps_every_complete_commit(log: Log, choice: random.Random) -> None:
    ends = [end for end, _ in log.commits]
    lengths = [0, HEADER - 1, HEADER, ends[0] - 1, ends[0], ends[-1] - 1, ends[-1]]
    lengths += [choice.randrange(len(log.bytes)) for _ in range(7)]
    for number, length in enumerate(lengths):
        _, jobs = log.reopened(number, log.bytes[:length])
        assert jobs == log.committed(length), f"truncated at {length}"


@pytest.mark.slow
def test_log_with_flipped_bit_keeps_commits_before_it(log: Log, choice: random.Random) -> None:
    offsets = [0, 8, HEADER + 1, HEADER + 24, *(choice.randrange(HEADER, len(log.bytes)) for _ in range(7))]
    for number, offset in enumerate(offsets):
        damaged = bytearray(log.bytes)
        damaged[offset] ^= 1 << choice.randrange(8)
        _, jobs = log.reopened(100 + number, bytes(damaged))
        frame = HEADER + (offset - HEADER) // FRAME * FRAME if offset >= HEADER else 0
        # The damaged frame and all frames after it are ignored.
        assert jobs == log.committed(frame), f"flipped at {offset}"


# -- 21: a long reader -----------------------------------------------------------------------------------------


def test_doctor_reports_log_growth_under_long_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CHECKPOINT_BYTES", 400_000)
    monkeypatch.setattr(sqlite, "WAL_ALARM", 2_000_000)
    path = tmp_path / "jobs.db"
    log = Path(f"{path}-wal")

    def reported(store: SqliteStore) -> bool:
        (finding,) = [each for each in store.diagnose() if each.name == "write-ahead log"]
        assert finding.ok or (finding.fix is not None and "reader" in finding.fix)
        return not finding.ok

    with closing(SqliteStore(f"sqlite:///{path}")) as store:
        store.migrate()
        ids = put(store, *(spec() for _ in range(20)))
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("begin")
            assert reader.execute("select count(*) from holdfast_job").fetchone() == (20,)
            while log.stat().st_size < 2_500_000:
                ids += put(store, *(spec(payload={"text": "x" * 500}) for _ in range(20)))
            assert reported(store)
            assert reader.execute("select count(*) from holdfast_job").fetchone() == (20,), (
                "the reader's view has not changed"
            )
            reader.execute("rollback")
        # The next write checkpoints the log, and the one after restarts it.
        for _ in range(3):
            ids += put(store, spec())
        assert log.stat().st_size < 400_000
        assert not reported(store)
    check(f"sqlite:///{path}", ids, ended=False)


def test_short_readers_do_not_grow_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CHECKPOINT_BYTES", 200_000)
    path = tmp_path / "jobs.db"
    sizes = []
    with closing(SqliteStore(f"sqlite:///{path}")) as store, closing(sqlite3.connect(path)) as reader:
        store.migrate()
        put_one(store)  # also checkpoints the pages of the migration
        for _ in range(150):
            put_one(store)
            reader.execute("select count(*) from holdfast_job").fetchone()
            sizes.append(Path(f"{path}-wal").stat().st_size)
    assert max(sizes) < 600_000

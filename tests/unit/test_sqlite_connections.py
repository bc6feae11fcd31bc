"""One SQLite file shared by threads, forks and processes, each with its own connections."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.engine.states import State
from holdfast.errors import StoreUnavailable
from holdfast.features.sqlite import SqliteStore
from holdfast.stores.flow import Flow, Rows, Statement, Steps
from holdfast.stores.sqlite import connections
from tests.faults.sqlite_faults import statements, watching
from tests.support.concurrency import in_a_fork, together
from tests.support.stores import put_one, spec

pytestmark = pytest.mark.req("SC-1", "SC-18", "SC-19")

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(f"sqlite:///{path}")) as opened:
        opened.migrate()
        yield opened


def query(statement: str) -> Flow[Rows]:
    def steps() -> Steps[Rows]:
        rows = yield Statement(statement)
        return rows

    return Flow(steps, writes=False)


def pragma(store: SqliteStore, name: str) -> object:
    return store.run(query(f"pragma {name}"))[0][0]


def count(store: SqliteStore) -> int:
    return sum(store.run(store.jobs.counts("default")).values())


# -- settings of a connection ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [("journal_mode", "wal"), ("synchronous", 2), ("foreign_keys", 1), ("wal_autocheckpoint", 0)],
)
def test_every_connection_is_durable(store: SqliteStore, name: str, value: object) -> None:
    """Including connections opened for other threads."""
    flows = [lambda: pragma(store, name) for _ in range(4)]
    assert together(*flows) == [value] * 4


def test_doctor_reports_durability_settings(store: SqliteStore) -> None:
    (durability,) = [finding for finding in store.diagnose() if finding.name == "durability"]
    assert durability.ok
    assert "wal" in durability.says
    assert "FULL" in durability.says


def test_readers_do_not_wait_for_a_writer_and_see_committed_data(store: SqliteStore, path: Path) -> None:
    put_one(store)
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("begin immediate")
        writer.execute("update holdfast_clock set shift = 7")
        assert count(store) == 1
        assert store.run(query("select shift from holdfast_clock")) == [(0,)]
        writer.execute("commit")
    assert store.run(query("select shift from holdfast_clock")) == [(7,)]


def test_lock_timeout_is_reported(store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "BUSY_SECONDS", 0.02)
    with closing(SqliteStore(store.url)) as hasty, closing(sqlite3.connect(path)) as writer:
        writer.execute("begin immediate")
        with pytest.raises(StoreUnavailable) as refused:
            put_one(hasty)
        assert refused.value.code == "database_locked"
        writer.rollback()
        put_one(hasty)


def test_exclusive_lock_is_reported(store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers are locked out too, and opening the file gives the same error as writing."""
    monkeypatch.setattr(connections, "BUSY_SECONDS", 0.02)
    store.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("pragma locking_mode = exclusive")
        other.execute("begin exclusive")
        with closing(SqliteStore(store.url)) as hasty, pytest.raises(StoreUnavailable) as refused:
            count(hasty)
        assert refused.value.code == "database_locked"


def test_lock_timeout_is_not_retried(store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that timed out is not retried: a minute would become five."""
    monkeypatch.setattr(connections, "BUSY_SECONDS", 0.02)
    with closing(sqlite3.connect(path)) as writer, watching(store.url, path.parent):
        writer.execute("begin immediate")
        with closing(SqliteStore(store.url)) as hasty, pytest.raises(StoreUnavailable):
            put_one(hasty)
        assert statements(path.parent).count("BEGIN IMMEDIATE") == 1


def test_readers_do_not_wait_behind_blocked_writers(store: SqliteStore, path: Path) -> None:
    """However many writers wait for a lock, and however few threads there are."""

    async def ask(writer: sqlite3.Connection) -> int:
        writing = [asyncio.create_task(store.arun(store.jobs.enqueue([spec()], "default"))) for _ in range(10)]
        await asyncio.sleep(0)
        seen = await asyncio.wait_for(store.arun(store.jobs.counts("default")), timeout=20)
        writer.rollback()
        await asyncio.gather(*writing)
        return sum(seen.values())

    with closing(sqlite3.connect(path)) as writer:
        writer.execute("begin immediate")
        assert asyncio.run(ask(writer)) == 0
    assert count(store) == 10


def test_store_sees_changes_of_other_processes(store: SqliteStore) -> None:
    """If one of two stores on a file reinstalls the triggers, the other continues with the new ones."""
    job = put_one(store)
    with closing(SqliteStore(store.url)) as other:
        other.run(other.jobs.operate("cancel", [job], "no", "me", "default"))
        stored = store.run(store.jobs.get(job, "default"))
        assert stored is not None
        assert stored.state is State.CANCELLED
        with closing(sqlite3.connect(store.url.removeprefix("sqlite:///"))) as by_hand:
            by_hand.execute("update holdfast_migration set digest = 'older' where name = 'code'")
            by_hand.commit()
        other.migrate()
    put_one(store)
    assert count(store) == 2


# -- forks and processes -----------------------------------------------------------------------------------------


def test_forked_child_opens_its_own_connections(store: SqliteStore, path: Path) -> None:
    put_one(store)  # the parent has an idle connection now

    def child() -> int:
        put_one(store)
        seen = count(store)
        store.close()  # must not close the parent's connections
        return seen

    with store._connections.take() as held:  # and one in use
        assert held.execute("select count(*) from holdfast_job").fetchone() == (1,)
        assert in_a_fork(child) == 2
        assert held.execute("select count(*) from holdfast_job").fetchone() == (2,)
    put_one(store)
    assert count(store) == 3
    assert sound(path)


def test_forked_child_starts_its_own_threads(store: SqliteStore) -> None:
    asyncio.run(store.arun(store.jobs.counts("default")))  # the parent's helper threads are not in the child

    def child() -> int:
        async def count_jobs() -> int:
            counts = await asyncio.wait_for(store.arun(store.jobs.counts("default")), timeout=10)
            return sum(counts.values())

        return asyncio.run(count_jobs())

    put_one(store)
    assert in_a_fork(child) == 1


MANY = """
import sys
from holdfast.features.assembly import open_store
from tests.support.stores import put_one, work
store = open_store(sys.argv[1])
done = 0
for _ in range(25):
    put_one(store)
    done += len(work(store))
store.close()
print(done)
"""


@pytest.mark.slow
def test_several_processes_share_one_file(store: SqliteStore, path: Path) -> None:
    command = [sys.executable, "-c", MANY, store.url]
    processes = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    # One process may run the jobs of another, but each job runs once.
    assert sum(int(output) for output in outputs) == 100
    assert store.run(store.jobs.counts("default")) == {State.SUCCEEDED: 100}
    assert store.run(query("select count(*), count(distinct position) from holdfast_job_state")) == [(100, 100)]
    assert sound(path)


def sound(path: Path) -> bool:
    with closing(sqlite3.connect(path)) as connection:
        return bool(connection.execute("pragma integrity_check").fetchone() == ("ok",))


# -- removed and replaced files ------------------------------------------------------------------------------------


def remove(path: Path) -> None:
    for part in ("", "-wal", "-shm"):
        Path(f"{path}{part}").unlink(missing_ok=True)


def test_removed_file_is_not_written_to(store: SqliteStore, path: Path) -> None:
    """SQLite would continue to write to the unlinked file, and accepted jobs would be lost."""
    put_one(store)
    remove(path)
    with pytest.raises(StoreUnavailable) as refused:
        put_one(store)
    assert refused.value.code == "database_gone"
    assert not path.exists()
    with pytest.raises(StoreUnavailable), store.transaction():
        pass
    assert not path.exists()


def test_replaced_file_is_used_from_then_on(store: SqliteStore, path: Path, tmp_path: Path) -> None:
    put_one(store)
    restored = tmp_path / "restored.db"
    with closing(SqliteStore(f"sqlite:///{restored}")) as other:
        other.migrate()
        kept = put_one(other)
    remove(path)
    restored.rename(path)
    new = put_one(store)
    with closing(SqliteStore(store.url)) as reader:
        assert reader.run(reader.jobs.get(kept, "default")) is not None
        assert reader.run(reader.jobs.get(new, "default")) is not None
        log = Path(f"{path}-wal")
        assert log.exists()
        store.close()  # the last connection to the old file would delete the log of the new one
        assert log.exists()

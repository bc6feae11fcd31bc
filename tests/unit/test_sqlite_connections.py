"""One SQLite file, many hands: threads, forks and processes, each with connections of its own."""

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
from tests.support.forks import in_a_fork
from tests.support.stores import put_one, spec
from tests.support.threads import together

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


def asked(statement: str) -> Flow[Rows]:
    def steps() -> Steps[Rows]:
        rows = yield Statement(statement)
        return rows

    return Flow(steps, writes=False)


def pragma(store: SqliteStore, name: str) -> object:
    return store.run(asked(f"pragma {name}"))[0][0]


def count(store: SqliteStore) -> int:
    return sum(store.run(store.jobs.counts("default")).values())


# -- how a connection is set up ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [("journal_mode", "wal"), ("synchronous", 2), ("foreign_keys", 1), ("wal_autocheckpoint", 0)],
)
def test_every_connection_is_durable(store: SqliteStore, name: str, value: object) -> None:
    """Also those made for other threads: several at once need several."""
    flows = [lambda: pragma(store, name) for _ in range(4)]
    assert together(*flows) == [value] * 4


def test_the_doctor_sees_it(store: SqliteStore) -> None:
    (durability,) = [finding for finding in store.diagnose() if finding.name == "durability"]
    assert durability.ok
    assert "wal" in durability.says
    assert "FULL" in durability.says


def test_readers_do_not_wait_for_a_writer_and_see_what_was_committed(store: SqliteStore, path: Path) -> None:
    put_one(store)
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("begin immediate")
        writer.execute("update clock set shift = 7")
        assert count(store) == 1
        assert store.run(asked("select shift from clock")) == [(0,)]
        writer.execute("commit")
    assert store.run(asked("select shift from clock")) == [(7,)]


def test_a_lock_that_is_never_given_up_is_named(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "BUSY_SECONDS", 0.02)
    with closing(SqliteStore(store.url)) as hasty, closing(sqlite3.connect(path)) as writer:
        writer.execute("begin immediate")
        with pytest.raises(StoreUnavailable) as refused:
            put_one(hasty)
        assert refused.value.code == "database_locked"
        writer.rollback()
        put_one(hasty)


def test_a_file_that_another_keeps_for_itself_is_named(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even readers get in; whoever opens it is told the same as whoever writes."""
    monkeypatch.setattr(connections, "BUSY_SECONDS", 0.02)
    store.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("pragma locking_mode = exclusive")
        other.execute("begin exclusive")
        with closing(SqliteStore(store.url)) as hasty, pytest.raises(StoreUnavailable) as refused:
            count(hasty)
        assert refused.value.code == "database_locked"


def test_a_lock_is_waited_for_once(store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was waited for as long as there is patience is not waited for again: a minute would be five."""
    monkeypatch.setattr(connections, "BUSY_SECONDS", 0.02)
    with closing(sqlite3.connect(path)) as writer, watching(store.url, path.parent):
        writer.execute("begin immediate")
        with closing(SqliteStore(store.url)) as hasty, pytest.raises(StoreUnavailable):
            put_one(hasty)
        assert statements(path.parent).count("BEGIN IMMEDIATE") == 1


def test_who_reads_does_not_wait_behind_those_who_write(store: SqliteStore, path: Path) -> None:
    """However many wait for somebody else's lock, and in however few threads."""

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


def test_nothing_is_remembered_that_another_process_can_change(store: SqliteStore) -> None:
    """Two stores on one file, one of which lays the triggers anew: the other goes on, by the new ones."""
    job = put_one(store)
    with closing(SqliteStore(store.url)) as other:
        other.run(other.jobs.operate("cancel", [job], "no", "me", "default"))
        found = store.run(store.jobs.get(job, "default"))
        assert found is not None
        assert found.state is State.CANCELLED
        with closing(sqlite3.connect(store.url.removeprefix("sqlite:///"))) as by_hand:
            by_hand.execute("update migration set digest = 'older' where name = 'code'")
            by_hand.commit()
        other.migrate()
    put_one(store)
    assert count(store) == 2


# -- forks and processes -----------------------------------------------------------------------------------------


def test_a_forked_child_uses_connections_of_its_own(store: SqliteStore, path: Path) -> None:
    put_one(store)  # the parent has an idle connection now

    def child() -> int:
        put_one(store)
        seen = count(store)
        store.close()  # must not close what is the parent's
        return seen

    with store._connections.take() as held:  # and one at work
        assert held.execute("select count(*) from job").fetchone() == (1,)
        assert in_a_fork(child) == 2
        assert held.execute("select count(*) from job").fetchone() == (2,)
    put_one(store)
    assert count(store) == 3
    assert sound(path)


def test_a_forked_child_has_threads_of_its_own(store: SqliteStore) -> None:
    asyncio.run(store.arun(store.jobs.counts("default")))  # the parent's helper threads are not in the child

    def child() -> int:
        async def look() -> int:
            counts = await asyncio.wait_for(store.arun(store.jobs.counts("default")), timeout=10)
            return sum(counts.values())

        return asyncio.run(look())

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
    # What one put in another may have taken, but each was taken once.
    assert sum(int(output) for output in outputs) == 100
    assert store.run(store.jobs.counts("default")) == {State.SUCCEEDED: 100}
    assert store.run(asked("select count(*), count(distinct position) from job_state")) == [(100, 100)]
    assert sound(path)


def sound(path: Path) -> bool:
    with closing(sqlite3.connect(path)) as connection:
        return bool(connection.execute("pragma integrity_check").fetchone() == ("ok",))


# -- a file that is not there any more -----------------------------------------------------------------------------


def remove(path: Path) -> None:
    for part in ("", "-wal", "-shm"):
        Path(f"{path}{part}").unlink(missing_ok=True)


def test_nothing_is_written_to_a_file_that_was_removed(store: SqliteStore, path: Path) -> None:
    """SQLite would go on with the file that has no name any more, and nobody would ever see what was accepted."""
    put_one(store)
    remove(path)
    with pytest.raises(StoreUnavailable) as refused:
        put_one(store)
    assert refused.value.code == "database_gone"
    assert not path.exists()
    with pytest.raises(StoreUnavailable), store.transaction():
        pass
    assert not path.exists()


def test_a_file_that_took_the_place_of_another_is_used_from_then_on(
    store: SqliteStore, path: Path, tmp_path: Path
) -> None:
    put_one(store)
    restored = tmp_path / "restored.db"
    with closing(SqliteStore(f"sqlite:///{restored}")) as other:
        other.migrate()
        kept = put_one(other)
    remove(path)
    restored.rename(path)
    new = put_one(store)
    with closing(SqliteStore(store.url)) as somebody:
        assert somebody.run(somebody.jobs.get(kept, "default")) is not None
        assert somebody.run(somebody.jobs.get(new, "default")) is not None
        log = Path(f"{path}-wal")
        assert log.exists()
        store.close()  # the last connection to the old file would take the log of the new one with it
        assert log.exists()

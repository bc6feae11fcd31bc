"""A SQLite file that is unusable for a moment or locked by another process: callers that can wait do so and block no
other work."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, State
from holdfast.errors import StoreUnavailable
from tests.faults.sqlite_faults import LASTING, REACHABLE, Counted, allow, deny, watching
from tests.support.caller_connections import path_of
from tests.support.workers import work_off

pytestmark = pytest.mark.req("CX-15", "SC-19", "HF-3")
on_a_bad_disk = pytest.mark.skipif(not REACHABLE, reason="SQLite's system calls cannot be reached in this Python")


@on_a_bad_disk
@pytest.mark.parametrize("fate", ["broken", "handles"])
def test_worker_waits_for_a_file_that_cannot_be_read_yet(sqlite_url: str, fate: str, tmp_path: Path) -> None:
    """As for a server that is being restarted."""
    with closing(App(sqlite_url)) as outside:
        handle = outside.enqueue("quick")
    with watching(sqlite_url, tmp_path) as watch, closing(App(sqlite_url)) as app:
        app.job("quick")(lambda: "done")
        watch.inject((1, fate), 0.4)  # type: ignore[arg-type]
        work_off(app)
        assert not (tmp_path / LASTING).exists()
        assert app.jobs.handle(handle.id).result(timeout=1) == "done"


def test_event_loop_runs_while_the_migration_waits_for_a_lock(new_sqlite_url: str) -> None:
    """The wait happens outside the loop: here the loop itself releases the lock."""

    async def enqueue(app: App) -> bool:
        with closing(sqlite3.connect(path_of(new_sqlite_url), isolation_level=None)) as other:
            other.execute("pragma journal_mode = wal")
            other.execute("begin immediate")
            enqueuing = asyncio.create_task(app.aenqueue("x"))
            await asyncio.sleep(0)
            assert not enqueuing.done()
            other.execute("rollback")
            handle = await enqueuing
        await app.aclose()
        return handle.created

    with closing(App(new_sqlite_url)) as app:
        assert asyncio.run(enqueue(app))


@on_a_bad_disk
def test_failed_enqueue_leaves_no_transaction_open(sqlite_url: str) -> None:
    """Without an open transaction the savepoint is the transaction, and releasing it commits: on a full disk it would
    have stayed open, holding the write lock."""
    with closing(App(sqlite_url)) as app, closing(connect(sqlite_url, isolation_level=None)) as connection:
        app.enqueue("x", connection=connection)
        deny("full")
        try:
            with pytest.raises(StoreUnavailable) as refused:
                app.enqueue("x", connection=connection)
        finally:
            allow()
        assert refused.value.code == "disk_full"
        assert not connection.in_transaction
        app.enqueue("x", connection=connection)
        assert len(app.jobs.list()) == 2


def test_transaction_opened_for_the_job_can_write(sqlite_url: str) -> None:
    """Reading the tables first would take a snapshot, and the write would fail if another process wrote since."""
    with closing(App(sqlite_url)) as app, watching(sqlite_url) as watch:
        app.jobs.list()
        for number in range(1, 12):
            with closing(App(sqlite_url)) as newcomer, closing(connect(sqlite_url, factory=Counted)) as connection:
                watch.inject((number, "written"), 0.0)
                newcomer.enqueue("x", connection=connection)
                connection.commit()
                watch.clear()
        assert len(app.jobs.list()) == 11


def test_transaction_begun_by_the_caller_can_write(sqlite_url: str) -> None:
    with closing(App(sqlite_url)) as app, watching(sqlite_url) as watch:
        app.jobs.list()
        for number in range(2, 12):
            with (
                closing(App(sqlite_url)) as newcomer,
                closing(connect(sqlite_url, factory=Counted, isolation_level=None)) as connection,
            ):
                watch.inject((number, "written"), 0.0)
                connection.execute("begin")
                newcomer.enqueue("x", connection=connection)
                connection.execute("commit")
                watch.clear()
        assert len(app.jobs.list()) == 10


@on_a_bad_disk
def test_marked_job_is_not_reported_lost_when_the_lease_renewal_fails(sqlite_url: str) -> None:
    """The lease is renewed after the mark, and that can be retried later: a caller that got an error would mark the job
    again and be refused."""
    with closing(App(sqlite_url)) as app, watching(sqlite_url) as watch, closing(app.repository()) as repository:
        first, second = (app.enqueue("x") for _ in range(2))
        (work,) = repository.claim()
        watch.inject((1, "full", "UPDATE lease SET until"), 30.0)
        repository.mark_success(work.id)
        watch.clear()
        assert {first.state(), second.state()} == {State.SUCCEEDED, State.QUEUED}
        (work,) = repository.claim()
        repository.mark_success(work.id)


def connect(url: str, **settings: Any) -> sqlite3.Connection:
    """A program's own connection."""
    connection: sqlite3.Connection = sqlite3.connect(path_of(url), timeout=30, **settings)
    return connection

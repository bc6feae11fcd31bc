"""Fault 8: a worker is stopped past its lease and then continued: its late result is refused.

SIGSTOP simulates a suspended laptop, a frozen container or a machine short of memory.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import App, State
from holdfast.app.internals import session_of
from tests.faults.checker import RECOVERY_LIMIT, check
from tests.faults.effects import effects, runs
from tests.faults.snapshot import take_snapshot
from tests.faults.workload import enqueue_jobs, wait_for_all
from tests.support.waiting import until
from tests.support.worker_processes import Crew, WorkerProcess

pytestmark = pytest.mark.req("DP-7", "DP-8", "CX-15", "JF-4", "SC-19")


def freeze_outside_a_write(app: App, worker: WorkerProcess) -> None:
    """On SQLite a process that is stopped within a write keeps the file's only lock, and all others wait until it
    continues or is killed. A lease cannot help there, so this function avoids that moment (the guide describes it)."""

    def frozen() -> bool:
        worker.freeze()
        if not session_of(app).store.embedded:
            return True
        with closing(sqlite3.connect(session_of(app).store.url.removeprefix("sqlite:///"), timeout=0.2)) as connection:
            try:
                connection.execute("begin immediate")
            except sqlite3.OperationalError:
                worker.thaw()
                return False
            connection.execute("rollback")
            return True

    until(frozen, "the worker is stopped and holds no lock")


def test_late_result_of_frozen_worker_is_refused(app: App, crew: Crew, folder: Path) -> None:
    zombie = crew.start_one(concurrency=3)
    ids = enqueue_jobs(app, 3, kind="hold")
    until(lambda: len(effects(folder)) == 3, "the first worker runs all jobs")
    freeze_outside_a_write(app, zombie)
    other = crew.start_one(lease=2.5, concurrency=3)
    until(lambda: len(effects(folder)) == 6, "another worker runs the same jobs")
    (folder / "go").touch()
    wait_for_all(app, 3)
    before = take_snapshot(session_of(app).store.url)
    zombie.thaw()
    until(
        lambda: "lost" in zombie.said() or "no longer claimed by this worker" in zombie.said(),
        "the frozen worker logs that it lost its lease",
    )
    # It opens a new lease and processes jobs again.
    other.stop()
    more = enqueue_jobs(app, 3)
    wait_for_all(app, 6)
    snapshot = check(session_of(app).store.url, [*ids, *more], folder=folder, within=RECOVERY_LIMIT)
    for job in ids:
        assert (snapshot.rows[job], snapshot.ledgers[job]) == (before.rows[job], before.ledgers[job])
        (end,) = [event for event in snapshot.ledgers[job] if event.type == "succeed"]
        assert other.is_author(end.actor)
        assert (snapshot.rows[job].state, end.attempt, runs(folder)[job]) == (State.SUCCEEDED, 2, 2)
    assert all(zombie.is_author(snapshot.ledgers[job][-1].actor) for job in more)

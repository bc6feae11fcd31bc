"""Fault 8: a worker stands still past its lease and goes on as if nothing had happened: its late result is refused.

SIGSTOP is what a suspended laptop, a frozen container or a machine short of memory looks like.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import App, State
from tests.faults.checker import IN_TIME, check
from tests.faults.effects import effects, runs
from tests.faults.load import load
from tests.faults.picture import take_picture
from tests.faults.waiting import all_ended
from tests.support.waiting import until
from tests.support.worker_processes import Crew, WorkerProcess

pytestmark = pytest.mark.req("DP-7", "DP-8", "CX-15", "JF-4", "SC-19")


def freeze_outside_a_write(app: App, worker: WorkerProcess) -> None:
    """On SQLite whoever is stopped in the middle of a write keeps the file's one lock: then everybody waits, until it
    goes on or is killed. No lease can help there, so that moment is left out (and is in the guide)."""

    def frozen() -> bool:
        worker.freeze()
        if not app._store.embedded:
            return True
        with closing(sqlite3.connect(app._store.url.removeprefix("sqlite:///"), timeout=0.2)) as connection:
            try:
                connection.execute("begin immediate")
            except sqlite3.OperationalError:
                worker.thaw()
                return False
            connection.execute("rollback")
            return True

    until(frozen, "it is stopped and holds no lock")


def test_a_frozen_workers_late_result_is_refused(app: App, crew: Crew, folder: Path) -> None:
    zombie = crew.start_one(concurrency=3)
    ids = load(app, 3, kind="hold")
    until(lambda: len(effects(folder)) == 3, "the first worker has its hands full")
    freeze_outside_a_write(app, zombie)
    other = crew.start_one(lease=2.5, concurrency=3)
    until(lambda: len(effects(folder)) == 6, "another runs the same jobs")
    (folder / "go").touch()
    all_ended(app, 3)
    before = take_picture(app._store.url)
    zombie.thaw()
    until(
        lambda: "lost" in zombie.said() or "no longer claimed by this worker" in zombie.said(),
        "it is told, and notes it",
    )
    # It goes on with a new lease, and is of use again.
    other.stop()
    more = load(app, 3)
    all_ended(app, 6)
    picture = check(app._store.url, [*ids, *more], folder=folder, within=IN_TIME)
    for job in ids:
        assert (picture.rows[job], picture.ledgers[job]) == (before.rows[job], before.ledgers[job])
        (end,) = [step for step in picture.ledgers[job] if step.type == "succeed"]
        assert other.is_author(end.actor)
        assert (picture.rows[job].state, end.attempt, runs(folder)[job]) == (State.SUCCEEDED, 2, 2)
    assert all(zombie.is_author(picture.ledgers[job][-1].actor) for job in more)

"""Fault 22: several processes fire schedules, each as if it were the only one, and some are killed meanwhile.

Every time of every schedule is handled once: one row, one job, none skipped. The schedule that all processes declare
exists once.
"""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import App, State
from holdfast.app.internals import session_of
from holdfast.features.schedules.model import Overlap
from tests.faults.schedule_processes import STOP_FILE, advance_clock, start, stop
from tests.support.schedules import MONDAY, set_time
from tests.support.waiting import until

pytestmark = pytest.mark.req("SC-9", "CX-15")

POLICIES: tuple[Overlap, ...] = ("allow", "skip", "queue")


def fire_schedules(app: App, folder: Path, choice: random.Random, *, rounds: int, processes: int, kills: int) -> None:
    set_time(app, MONDAY)
    for overlap in POLICIES:
        app.schedules.add(overlap, "every 1s", kind="beat", overlap=overlap, missed="all")
    running = [start(session_of(app).store.url, folder) for _ in range(processes)]
    try:
        until(lambda: len(app.schedules.list()) == 4, "the declared schedule exists")
        for number in range(rounds):
            advance_clock(app, MONDAY + timedelta(seconds=number * 4), 4)
            if number < kills:
                victim = choice.randrange(processes)
                stop(running[victim])
                running[victim] = start(session_of(app).store.url, folder)
        (folder / STOP_FILE).touch()
        for each in running:
            each.join(20)
    finally:
        for each in running:
            stop(each)
    check(app, rounds * 4)


def check(app: App, seconds: int) -> None:
    due = [MONDAY + timedelta(seconds=n) for n in range(1, seconds + 1)]
    statuses = {}
    for name in (*POLICIES, "declared"):
        fires = app.schedules.history(name, limit=1000)[::-1]
        assert [fire.due_at for fire in fires] == due, name
        statuses[name] = Counter(fire.status for fire in fires)
        jobs = [fire.job_id for fire in fires if fire.job_id is not None]
        assert len(set(jobs)) == len(jobs), name
    # No worker runs the jobs: with skip and queue the first one is still queued at the end.
    assert statuses["allow"] == statuses["declared"] == {"fired": seconds}
    assert statuses["skip"] == {"fired": 1, "skipped": seconds - 1}
    assert statuses["queue"] == {"fired": 1, "waiting": seconds - 1}
    states = Counter(job.state for job in app.jobs.list(limit=1000))
    assert states == {State.QUEUED: 2 * seconds + 2, State.CANCELLED: seconds - 1}


def test_four_processes_fire_each_time_once(app: App, folder: Path, choice: random.Random) -> None:
    fire_schedules(app, folder, choice, rounds=4, processes=4, kills=3)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_six_processes_fire_each_time_once_for_long(app: App, folder: Path, choice: random.Random) -> None:
    fire_schedules(app, folder, choice, rounds=20, processes=6, kills=20)

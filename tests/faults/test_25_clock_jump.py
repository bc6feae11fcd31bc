"""Fault 25: workers and enqueuers whose clocks are an hour ahead and an hour behind: leases, delays and order do not
care.
"""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import App, State
from tests.faults.checker import IN_TIME, check
from tests.faults.effects import effects, runs
from tests.faults.load import PATIENT, load
from tests.faults.skew import SKEW_VARIABLE
from tests.faults.waiting import all_ended
from tests.support.stores import put, put_one, spec
from tests.support.waiting import until
from tests.support.worker_processes import ROOT, Crew, environment

pytestmark = pytest.mark.req("SC-19", "DP-7", "DP-8", "SC-2")

HOUR = 3600

ENQUEUE = """
from tests.faults.victim import app, work
print(work.enqueue(number=1).id, work.using(delay=0.4).enqueue(number=2).id)
app.close()
"""


def enqueue_elsewhere(url: str, folder: Path, skew: int) -> list[str]:
    """Two jobs, the second with a delay, by a program whose clock is wrong."""
    done = subprocess.run(
        [sys.executable, "-c", ENQUEUE],
        cwd=ROOT,
        env=environment(url, folder, {SKEW_VARIABLE: str(skew)}),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.slow
def test_leases_delays_and_order(app: App, crew: Crew, folder: Path) -> None:
    url = app._store.url
    ahead = enqueue_elsewhere(url, folder, HOUR)
    here = put(app._store, *(spec("work", retry=PATIENT) for _ in range(2)))
    behind = enqueue_elsewhere(url, folder, -HOUR)
    workers = [crew.start_one(extra={SKEW_VARIABLE: str(skew)}, lease=2.0, concurrency=1) for skew in (HOUR, -HOUR)]
    clocks = [put_one(app._store, "clock", retry=PATIENT) for _ in range(6)]
    slow = load(app, 2, nap=2.5)  # longer than a lease, by which each would judge the other as long gone
    ids = [*ahead, *here, *behind, *clocks, *slow]
    all_ended(app, len(ids))
    picture = check(url, ids, folder=folder)
    assert {row.state for row in picture.rows.values()} == {State.SUCCEEDED}
    assert all(count == 1 for count in runs(folder).values()), "nobody was taken for dead"
    # Claimed in the order in which they were enqueued, whatever their ids say.
    takes = {job: next(step for step in picture.ledgers[job] if step.type == "take") for job in ids}
    at_once = [ahead[0], *here, behind[0], *clocks]
    for actor in {take.actor for take in takes.values()}:  # of two at once nobody can say who was first
        own = [job for job in at_once if takes[job].actor == actor]
        assert sorted(own, key=lambda job: takes[job].seq) == own
    # The delay was counted by the database.
    for job in (ahead[1], behind[1]):
        assert takes[job].at - picture.ledgers[job][0].at >= 0.4
    told = [float(app._store.run(app._store.jobs.result(job, "*")).value) - time.time() for job in clocks]  # type: ignore[union-attr]
    assert all(abs(abs(each) - HOUR) < 60 for each in told), "the clocks were not wrong: the test proves nothing"
    assert len(crew.alive) == len(workers)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_worker_with_a_wrong_clock_that_dies_is_found_in_time(app: App, crew: Crew, folder: Path) -> None:
    victim = crew.start_one(extra={SKEW_VARIABLE: str(HOUR)})
    ids = load(app, 2, kind="hold")
    until(lambda: len(effects(folder)) == 2, "it has begun")
    victim.kill()
    (folder / "go").touch()
    crew.start_one(extra={SKEW_VARIABLE: str(-HOUR)})
    all_ended(app, 2)
    check(app._store.url, ids, folder=folder, within=IN_TIME)


@pytest.mark.slow
def test_a_database_whose_clock_jumps_loses_nothing(app: App, crew: Crew, folder: Path) -> None:
    """The one clock that counts goes an hour ahead, and back: leases may end early, and no job ends twice."""
    crew.start(2)
    ids = load(app, 40, nap=0.05)
    for shift in (HOUR, 0, -HOUR, 0):
        before = len(effects(folder))
        app._store.run(app._store.clock.set(timedelta(seconds=shift), None))
        until(lambda before=before: len(effects(folder)) > before, "work goes on")  # type: ignore[misc]
        ids += load(app, 20, nap=0.05)
    all_ended(app, len(ids))
    check(app._store.url, ids, folder=folder)

"""Fault 25: workers and callers with clocks an hour ahead and behind: leases, delays and order are unaffected."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import App, State
from holdfast.app.internals import session_of
from tests.faults.checker import RECOVERY_LIMIT, check
from tests.faults.effects import effects, runs
from tests.faults.workload import PATIENT, enqueue_jobs, wait_for_all
from tests.support.stores import put, put_one, spec
from tests.support.waiting import until
from tests.support.worker_processes import ROOT, Crew, environment

pytestmark = pytest.mark.req("SC-19", "DP-7", "DP-8", "SC-2")

HOUR = 3600
CLOCK_SKEW = "HOLDFAST_TEST_CLOCK_SKEW"  # read by tests/faults/worker_app.py

ENQUEUE = """
from tests.faults.worker_app import app, work
print(work.enqueue(number=1).id, work.using(delay=0.4).enqueue(number=2).id)
app.close()
"""


def enqueue_with_skew(url: str, folder: Path, skew: int) -> list[str]:
    """Enqueue two jobs, the second with a delay, in a program with a wrong clock."""
    done = subprocess.run(
        [sys.executable, "-c", ENQUEUE],
        cwd=ROOT,
        env=environment(url, folder, {CLOCK_SKEW: str(skew)}),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.slow
def test_leases_delays_and_order_ignore_worker_clocks(app: App, crew: Crew, folder: Path) -> None:
    url = session_of(app).store.url
    ahead = enqueue_with_skew(url, folder, HOUR)
    here = put(session_of(app).store, *(spec("work", retry=PATIENT) for _ in range(2)))
    behind = enqueue_with_skew(url, folder, -HOUR)
    workers = [crew.start_one(extra={CLOCK_SKEW: str(skew)}, lease=2.0, concurrency=1) for skew in (HOUR, -HOUR)]
    clocks = [put_one(session_of(app).store, "clock", retry=PATIENT) for _ in range(6)]
    slow = enqueue_jobs(app, 2, nap=2.5)  # longer than a lease, as each worker sees the other
    ids = [*ahead, *here, *behind, *clocks, *slow]
    wait_for_all(app, len(ids))
    snapshot = check(url, ids, folder=folder)
    assert {row.state for row in snapshot.rows.values()} == {State.SUCCEEDED}
    assert all(count == 1 for count in runs(folder).values()), "no worker was considered lost"
    # Jobs are claimed in the order of their enqueue, whatever their ids.
    takes = {job: next(event for event in snapshot.ledgers[job] if event.type == "take") for job in ids}
    at_once = [ahead[0], *here, behind[0], *clocks]
    for actor in {take.actor for take in takes.values()}:  # the order between two workers is undefined
        own = [job for job in at_once if takes[job].actor == actor]
        assert sorted(own, key=lambda job: takes[job].seq) == own
    # The database measured the delay.
    for job in (ahead[1], behind[1]):
        assert takes[job].at - snapshot.ledgers[job][0].at >= 0.4
    errors = [
        float(session_of(app).store.run(session_of(app).store.jobs.result(job, "*")).value) - time.time()  # type: ignore[union-attr]
        for job in clocks
    ]
    assert all(abs(abs(each) - HOUR) < 60 for each in errors), "the clocks were not wrong: the test proves nothing"
    assert len(crew.alive) == len(workers)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_killed_worker_with_wrong_clock_is_recovered_in_time(app: App, crew: Crew, folder: Path) -> None:
    victim = crew.start_one(extra={CLOCK_SKEW: str(HOUR)})
    ids = enqueue_jobs(app, 2, kind="hold")
    until(lambda: len(effects(folder)) == 2, "both jobs run")
    victim.kill()
    (folder / "go").touch()
    crew.start_one(extra={CLOCK_SKEW: str(-HOUR)})
    wait_for_all(app, 2)
    check(session_of(app).store.url, ids, folder=folder, within=RECOVERY_LIMIT)


@pytest.mark.slow
def test_clock_jumps_of_the_database_lose_no_job(app: App, crew: Crew, folder: Path) -> None:
    """The database's clock jumps an hour ahead and back: leases may end early, but no job ends twice."""
    crew.start(2)
    ids = enqueue_jobs(app, 40, nap=0.05)
    for shift in (HOUR, 0, -HOUR, 0):
        before = len(effects(folder))
        session_of(app).store.run(session_of(app).store.clock.set(timedelta(seconds=shift), None))
        until(lambda before=before: len(effects(folder)) > before, "more jobs run")  # type: ignore[misc]
        ids += enqueue_jobs(app, 20, nap=0.05)
    wait_for_all(app, len(ids))
    check(session_of(app).store.url, ids, folder=folder)

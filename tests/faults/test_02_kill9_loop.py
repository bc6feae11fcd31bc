"""Fault 2: workers are killed with SIGKILL at random moments; every job still ends exactly once."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from holdfast import App, State
from holdfast.app.internals import session_of
from tests.faults.checker import RECOVERY_LIMIT, check
from tests.faults.effects import effects
from tests.faults.workload import enqueue_jobs, state_counts, wait_for_all
from tests.support.waiting import until
from tests.support.worker_processes import Crew

pytestmark = pytest.mark.req("CX-15", "SC-4", "CX-10", "DP-8")


def kill_workers(
    app: App, crew: Crew, folder: Path, choice: random.Random, *, jobs: int, kills: int, pause: float
) -> None:
    ids = enqueue_jobs(app, jobs // 2, nap=0.02) + enqueue_jobs(app, jobs - jobs // 2, kind="awork")
    crew.start(3)
    until(lambda: effects(folder), "the first job runs")
    for _ in range(kills):
        # A random moment, also while a worker starts, claims or settles.
        time.sleep(choice.uniform(0.0, pause))
        crew.kill_one(choice)
        if not state_counts(app).get(State.QUEUED):
            ids += enqueue_jobs(app, 50, nap=0.02)
        crew.start(1)
    wait_for_all(app, len(ids), limit=120)
    snapshot = check(session_of(app).store.url, ids, folder=folder, within=RECOVERY_LIMIT)
    assert {row.state for row in snapshot.rows.values()} == {State.SUCCEEDED}
    lost = sum(event.type == "lease_expired" for ledger in snapshot.ledgers.values() for event in ledger)
    print(f"{len(ids)} jobs, {kills} kills, {lost} attempts lost with their workers")


def test_no_job_is_lost_in_four_kills(app: App, crew: Crew, folder: Path, choice: random.Random) -> None:
    kill_workers(app, crew, folder, choice, jobs=250, kills=4, pause=0.5)


@pytest.mark.slow
def test_no_job_is_lost_in_ten_kills(app: App, crew: Crew, folder: Path, choice: random.Random) -> None:
    kill_workers(app, crew, folder, choice, jobs=600, kills=10, pause=0.5)


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_no_job_is_lost_in_five_hundred_kills(app: App, crew: Crew, folder: Path, choice: random.Random) -> None:
    kill_workers(app, crew, folder, choice, jobs=3_000, kills=500, pause=1.0)

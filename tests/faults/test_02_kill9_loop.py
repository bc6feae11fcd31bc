"""Fault 2: workers are killed with -9 at random moments, again and again; every job ends once all the same."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from holdfast import App, State
from tests.faults.checker import IN_TIME, check
from tests.faults.effects import effects
from tests.faults.load import load
from tests.faults.waiting import all_ended, counts
from tests.support.waiting import until
from tests.support.worker_processes import Crew

pytestmark = pytest.mark.req("CX-15", "SC-4", "CX-10", "DP-8")


def play(app: App, crew: Crew, folder: Path, choice: random.Random, *, jobs: int, kills: int, pause: float) -> None:
    ids = load(app, jobs // 2, nap=0.02) + load(app, jobs - jobs // 2, kind="awork")
    crew.start(3)
    until(lambda: effects(folder), "somebody works")
    for _ in range(kills):
        # At any moment of a worker's life: also while it starts, claims or settles.
        time.sleep(choice.uniform(0.0, pause))
        crew.kill_one(choice)
        if not counts(app).get(State.QUEUED):
            ids += load(app, 50, nap=0.02)
        crew.start(1)
    all_ended(app, len(ids), limit=120)
    picture = check(app._store.url, ids, folder=folder, within=IN_TIME)
    assert {row.state for row in picture.rows.values()} == {State.SUCCEEDED}
    lost = sum(step.type == "lapse" for ledger in picture.ledgers.values() for step in ledger)
    print(f"{len(ids)} jobs, {kills} kills, {lost} attempts lost with their workers")


def test_four_kills(app: App, crew: Crew, folder: Path, choice: random.Random) -> None:
    play(app, crew, folder, choice, jobs=250, kills=4, pause=0.5)


@pytest.mark.slow
def test_ten_kills(app: App, crew: Crew, folder: Path, choice: random.Random) -> None:
    play(app, crew, folder, choice, jobs=600, kills=10, pause=0.5)


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_five_hundred_kills(app: App, crew: Crew, folder: Path, choice: random.Random) -> None:
    play(app, crew, folder, choice, jobs=3_000, kills=500, pause=1.0)

"""Fault 45: workers are killed under concurrency limits. Replayed from the ledger, no limit is exceeded (SC-16)."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import App, State
from holdfast.app.internals import session_of
from holdfast.engine.job import Job
from tests.faults.checker import RECOVERY_LIMIT, check
from tests.faults.effects import effects
from tests.faults.workload import PATIENT, wait_for_all
from tests.support.ledger import most_at_once
from tests.support.stores import put, spec
from tests.support.waiting import until
from tests.support.worker_processes import Crew

pytestmark = pytest.mark.req("SC-16", "DP-8")

LIMITS = {"all": 7, "kind:work": 5, "key:a": 1, "key:b": 2, "resource:gpu": 2}


def counted_by(job: Job) -> Iterator[str]:
    yield "all"
    yield f"kind:{job.kind}"
    yield from job.uses or ()


def kill_workers(app: App, crew: Crew, folder: Path, choice: random.Random, *, count: int, kills: int) -> None:
    app.limits.set(concurrency=LIMITS["all"])
    app.limits.set(kind="work", concurrency=LIMITS["kind:work"])
    app.limits.set(key="*", concurrency=LIMITS["key:a"])
    app.limits.set(key="b", concurrency=LIMITS["key:b"])
    app.limits.set(resource="gpu", concurrency=LIMITS["resource:gpu"])
    uses = [(), ("key:a",), ("key:b",), ("key:b", "resource:gpu"), ("resource:gpu",)]
    specs = [
        spec(choice.choice(["work", "awork"]), retry=PATIENT, uses=choice.choice(uses), priority=choice.randrange(3))
        for _ in range(count)
    ]
    ids = put(session_of(app).store, *specs)
    crew.start(3)
    until(lambda: effects(folder), "the first job runs")
    for _ in range(kills):
        time.sleep(choice.uniform(0.0, 0.3))
        crew.kill_one(choice)
        crew.start(1)
    wait_for_all(app, count)
    snapshot = check(session_of(app).store.url, ids, folder=folder, within=RECOVERY_LIMIT)
    assert {row.state for row in snapshot.rows.values()} == {State.SUCCEEDED}
    most = most_at_once(session_of(app).store, counted_by)
    over = {name: most[name] for name, limit in LIMITS.items() if most.get(name, 0) > limit}
    assert not over, f"more concurrent jobs than {LIMITS}"
    assert most["key:a"] == LIMITS["key:a"], "the limit is used fully"
    assert [(limit.running, limit.waiting) for limit in app.limits.list()] == [(0, 0)] * 5, "all slots are free"


def test_limits_hold_in_two_kills(app: App, crew: Crew, folder: Path, choice: random.Random) -> None:
    kill_workers(app, crew, folder, choice, count=150, kills=2)


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_limits_hold_in_hundred_kills(app: App, crew: Crew, folder: Path, choice: random.Random) -> None:
    kill_workers(app, crew, folder, choice, count=6_000, kills=100)

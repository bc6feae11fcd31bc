"""Fault 40: the process is gone around the moment in which a failure becomes a retry: one retry, not none, not two.

In Holdfast the failure and its retry are one transaction, so there is no gap; these kill the process on both sides
of it, and inside it where the store's transaction has an inside.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from holdfast import App, Backoff, Retry, State
from tests.faults.checker import check
from tests.faults.crashing import GONE, Point, When, flows, start
from tests.faults.effects import runs
from tests.faults.waiting import all_ended
from tests.support.stores import put_one

pytestmark = pytest.mark.req("SC-12", "CX-9", "CX-15")

THREE = Retry(max_attempts=3, max_crashes=100, backoff=Backoff(base=0.02, factor=1.0, cap=0.02, jitter=False))


@pytest.mark.parametrize("when", ["before", "within", "after"])
def test_a_failure_has_one_retry(app: App, folder: Path, when: When) -> None:
    """A job that always fails, and may three times. However the first failure was met by the crash, it has three."""
    if when == "within" and not app.store.embedded:
        pytest.skip("one statement, committed by the server: it has no inside")
    job = put_one(app.store, "shout", payload={"text": "no"}, retry=THREE)
    victim = start(app.store.url, folder, Point("settling", when), burst=True)
    victim.join(20)
    assert victim.exitcode == GONE, f"no worker has settled: {flows(folder)}"
    rescuer = start(app.store.url, folder, burst=False)
    try:
        all_ended(app, 1)
    finally:
        rescuer.kill()
        rescuer.join(10)
    picture = check(app.store.url, [job], within=10.0)
    steps = Counter(step.verb for step in picture.ledgers[job])
    lost = 0 if when == "after" else 1
    assert steps["lapse"] == lost, "a crash is counted as one, and not as a failure"
    assert (steps["fail"], steps["bury"]) == (3, 1)
    assert steps["retry"] == 2 + lost
    assert picture.rows[job].state is State.DEAD_LETTER
    found = app.get(job)
    assert found is not None
    assert (found.retries, found.crashes, found.attempt) == (2, lost, 3 + lost)
    assert not runs(folder), "this handler leaves no effects"

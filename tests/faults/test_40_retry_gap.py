"""Fault 40: the process is gone around the moment in which a failure becomes a retry: one retry, not none, not two.

In Holdfast the failure and its retry are one transaction, so there is no gap; these kill the process on both sides
of it, and inside it where the store's transaction has an inside.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from holdfast import App, Backoff, Retry, State
from tests.faults.checker import IN_TIME, check
from tests.faults.crashing import GONE, Point, When, flows, start
from tests.faults.effects import runs
from tests.faults.waiting import all_ended
from tests.support.stores import put_one
from tests.support.waiting import until

pytestmark = pytest.mark.req("SC-12", "CX-9", "CX-15")

THREE = Retry(max_attempts=3, max_crashes=100, backoff=Backoff(base=0.02, factor=1.0, cap=0.02, jitter=False))
# Long enough for a successor not to be due, and taken by the victim, before the turn that made it is over.
SLOWLY = Retry(max_attempts=3, max_crashes=100, backoff=Backoff(base=0.6, factor=1.0, cap=0.6, jitter=False))


@pytest.mark.parametrize("when", ["before", "within", "after"])
def test_a_failure_has_one_retry(app: App, folder: Path, when: When) -> None:
    """A job that always fails, and may three times. However the first failure was met by the crash, it has three."""
    if when == "within" and not app._store.embedded:
        pytest.skip("one statement, committed by the server: it has no inside")
    job = put_one(app._store, "shout", payload={"text": "no"}, retry=THREE)
    victim = start(app._store.url, folder, Point("settling", when), burst=True, lease_ttl=1.5)
    victim.join(60)
    assert victim.exitcode == GONE, f"no worker has settled: {flows(folder)}"
    rescuer = start(app._store.url, folder, burst=False, lease_ttl=30.0)  # it is not the one to lose anything
    try:
        all_ended(app, 1)
    finally:
        rescuer.kill()
        rescuer.join(10)
    picture = check(app._store.url, [job], within=IN_TIME)
    steps = Counter(step.type for step in picture.ledgers[job])
    lost = 0 if when == "after" else 1
    assert steps["lapse"] == lost, "a crash is counted as one, and not as a failure"
    assert (steps["fail"], steps["bury"]) == (3, 1)
    assert steps["retry"] == 2 + lost
    assert picture.rows[job].state is State.DEAD_LETTER
    found = app.jobs.get(job)
    assert (found.retries, found.crashes, found.attempt) == (2, lost, 3 + lost)
    assert not runs(folder), "this handler leaves no effects"


@pytest.mark.slow
@pytest.mark.req("SC-6")
@pytest.mark.parametrize("when", ["before", "within", "after"])
def test_a_failure_has_one_successor(app: App, folder: Path, when: When) -> None:
    """The same where each retry is a job of its own, and the worker's death makes one, too."""
    if when == "within" and not app._store.embedded:
        pytest.skip("one statement, committed by the server: it has no inside")
    job = put_one(app._store, "shout", payload={"text": "no"}, retry=SLOWLY, retry_as="new_job")
    victim = start(app._store.url, folder, Point("settling", when), burst=True, lease_ttl=1.5)
    victim.join(60)
    assert victim.exitcode == GONE, f"no worker has settled: {flows(folder)}"
    lost = 0 if when == "after" else 1
    rescuer = start(app._store.url, folder, burst=False, lease_ttl=30.0)  # it is not the one to lose anything
    try:
        until(lambda: app.jobs.chain(job)[-1].state is State.DEAD_LETTER, "the last of them is dead")
    finally:
        rescuer.kill()
        rescuer.join(10)
    tries = app.jobs.chain(job)
    picture = check(app._store.url, [each.id for each in tries], within=IN_TIME)
    steps = Counter(step.type for ledger in picture.ledgers.values() for step in ledger)
    assert (steps["lapse"], steps["fail"], steps["bury"], steps["retry"]) == (lost, 3, 1, 0)
    assert len(tries) == 3 + lost
    assert [each.attempt for each in tries] == [1] * len(tries), "each was begun once"
    assert [each.state for each in tries] == [*[State.FAILED] * (2 + lost), State.DEAD_LETTER]
    assert (tries[-1].retries, tries[-1].crashes) == (2, lost)

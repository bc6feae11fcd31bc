"""Fault 28: a handler blocks the event loop for three leases, another keeps the interpreter to itself: neither is
taken for dead.

Heartbeats come from a thread, so a blocked loop does not matter. A handler that holds the interpreter's lock in C
does: the heartbeat has to get it back several times to be sent. What is promised, and tested, is a hundredth of a
lease at a time; a handler that keeps it longer than the whole lease *is* taken for dead, like any other process
that does not answer, and then nothing worse happens than that its job runs again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import App, Retry, State
from tests.faults.checker import IN_TIME, check
from tests.faults.effects import effects, runs
from tests.faults.load import load
from tests.faults.waiting import all_ended
from tests.support.waiting import until
from tests.support.worker_processes import Crew

pytestmark = pytest.mark.req("JF-4", "DP-8", "CX-10")

LEASE = 2.0


@pytest.mark.slow
def test_no_false_rescue(app: App, crew: Crew, folder: Path) -> None:
    three = crew.start(3, lease=LEASE, concurrency=1)
    until(lambda: app.health.get().lease_active == 3, "all have come up")
    ids = load(app, 1, kind="block", seconds=3 * LEASE)
    until(lambda: len(effects(folder, "begun")) == 1, "one blocks")
    ids += load(app, 1, kind="hog", seconds=3 * LEASE, breath=LEASE / 100)
    until(lambda: len(effects(folder, "begun")) == 2, "another hogs, and the third would find a lapsed lease")
    more = load(app, 5)
    all_ended(app, 7)
    picture = check(app._store.url, [*ids, *more], folder=folder)
    assert {row.state for row in picture.rows.values()} == {State.SUCCEEDED}
    assert all(count == 1 for count in runs(folder).values()), runs(folder)
    assert all(len(effects(folder, "ended")) == 2 for _ in ids)
    assert all(lease.ended is None for lease in picture.leases.values())
    assert all(each.alive for each in three)
    busy = {picture.ledgers[job][-1].actor for job in ids}
    assert any(picture.ledgers[job][-1].actor not in busy for job in more), "the third was at work"


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_hog_that_keeps_it_longer_than_a_lease_harms_nobody(app: App, crew: Crew, folder: Path) -> None:
    """It cannot be told from a dead process. Its job may be run again, ends once, and others are not held up."""
    crew.start_one(lease=0.3, concurrency=1)
    ids = load(app, 1, kind="hog", retry=Retry(max_crashes=1), seconds=0.1, breath=0.8)
    until(lambda: effects(folder, "begun"), "it hogs")
    crew.start_one(lease=0.3, concurrency=2)
    others = load(app, 5)
    all_ended(app, 6)
    picture = check(app._store.url, [*ids, *others], folder=folder, within=IN_TIME)
    assert {picture.rows[job].state for job in others} == {State.SUCCEEDED}
    assert picture.rows[ids[0]].state in (State.SUCCEEDED, State.DEAD_LETTER)

"""Fault 36: SIGTERM under load: what runs may end, the rest stays in the queue, and heartbeats go on to the last."""

from __future__ import annotations

import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import App, State
from tests.faults.checker import IN_TIME, check
from tests.faults.effects import effects, runs
from tests.faults.load import load
from tests.faults.picture import take_picture
from tests.faults.tiny_disk import full
from tests.faults.waiting import all_ended
from tests.support.waiting import until
from tests.support.worker_processes import Crew, WorkerProcess

pytestmark = pytest.mark.req("SC-13", "JF-4", "CX-15")


def kept_until(app: App, worker: WorkerProcess) -> float:
    (lease,) = [each for each in take_picture(app._store.url).leases.values() if worker.is_author(each.holder)]
    return lease.until


@pytest.mark.slow
def test_what_runs_ends_and_the_rest_stays(app: App, crew: Crew, folder: Path) -> None:
    """The drain takes longer than a lease, and somebody sweeps meanwhile: nobody is taken for dead."""
    leaving = crew.start_one(lease=2.0, concurrency=3, grace=60.0)
    running = load(app, 3, kind="hold")
    until(lambda: len(effects(folder)) == 3, "its hands are full")
    waiting = load(app, 20)
    leaving.ask_to_stop()
    crew.start_one(lease=0.6, options=("--queues", "elsewhere"))  # only sweeps
    at_first = kept_until(app, leaving)
    until(lambda: kept_until(app, leaving) > at_first + 2.0, "it is kept alive for longer than it would last")
    (folder / "go").touch()
    assert leaving.wait() == 0
    picture = take_picture(app._store.url)
    assert [picture.rows[job].state for job in running] == [State.SUCCEEDED] * 3
    assert all(leaving.is_author(picture.ledgers[job][-1].actor) for job in running)
    assert {picture.rows[job].state for job in waiting} == {State.QUEUED}, "it took nothing more"
    assert not any(step.type == "lapse" for ledger in picture.ledgers.values() for step in ledger)
    crew.start_one(lease=30.0)
    all_ended(app, 23)
    check(app._store.url, [*running, *waiting], folder=folder)
    assert set(runs(folder).values()) == {1}


@pytest.mark.slow
def test_what_does_not_end_in_time_is_handed_back(app: App, crew: Crew, folder: Path) -> None:
    leaving = crew.start_one(lease=30.0, grace=0.3)
    ids = load(app, 2, kind="ahold")
    until(lambda: len(effects(folder)) == 2, "it has begun")
    leaving.ask_to_stop()
    assert leaving.wait() == 0
    picture = take_picture(app._store.url)
    # At once, not when the lease has lapsed; a duty that was under way may have seen to what is due.
    assert {picture.rows[job].state for job in ids} <= {State.RETRY_WAITING, State.QUEUED}
    seen = {step.type for ledger in picture.ledgers.values() for step in ledger}
    assert seen - {"due"} == {"enqueue", "take", "snooze"}
    (folder / "go").touch()
    crew.start_one(lease=30.0)
    all_ended(app, 2)
    check(app._store.url, ids, folder=folder)
    assert all(app._store.run(app._store.jobs.get(job, "*")).crashes == 0 for job in ids)  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_killed_in_the_middle_of_the_drain(app: App, crew: Crew, folder: Path) -> None:
    """As an orchestrator does when its own patience ends before the worker's grace."""
    leaving = crew.start_one(grace=60.0)
    ids = load(app, 4, kind="hold")
    until(lambda: len(effects(folder)) == 4, "it has begun")
    leaving.ask_to_stop()
    until(lambda: "Stopping" in leaving.said(), "it drains")
    with pytest.raises(subprocess.TimeoutExpired):
        leaving.wait(0.3)
    leaving.kill()
    (folder / "go").touch()
    crew.start_one()
    all_ended(app, 4)
    check(app._store.url, ids, folder=folder, within=IN_TIME)


def test_a_worker_that_cannot_settle_leaves_all_the_same(tiny_disk: Path, folder: Path) -> None:
    """It has been asked to stop and its grace is over: the lease will lapse, and somebody else will see to the job."""
    url = f"sqlite:///{tiny_disk}/jobs.db"
    with closing(App(url)) as app, Crew(url, folder) as crew:
        app._store.migrate()
        leaving = crew.start_one(grace=0.3)
        load(app, 2, kind="ahold")
        until(lambda: len(effects(folder)) == 2, "it has begun")
        with full(app, tiny_disk):
            (folder / "go").touch()  # both end now, and the disk is full
            until(lambda: "Database unavailable" in leaving.said(), "it cannot settle them")
            leaving.ask_to_stop()
            try:
                left = leaving.wait(30.0)
            finally:
                leaving.kill()
    assert left == 0

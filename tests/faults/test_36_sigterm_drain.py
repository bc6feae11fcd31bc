"""Fault 36: SIGTERM under load: running jobs may end, the others stay queued, and heartbeats continue to the end."""

from __future__ import annotations

import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import App, State
from holdfast.app.internals import session_of
from tests.faults.checker import RECOVERY_LIMIT, check
from tests.faults.effects import effects, runs
from tests.faults.snapshot import take_snapshot
from tests.faults.tiny_disk import full
from tests.faults.workload import enqueue_jobs, wait_for_all
from tests.support.waiting import until
from tests.support.worker_processes import Crew, WorkerProcess

pytestmark = pytest.mark.req("SC-13", "JF-4", "CX-15")


def lease_end(app: App, worker: WorkerProcess) -> float:
    (lease,) = [
        each for each in take_snapshot(session_of(app).store.url).leases.values() if worker.is_author(each.holder)
    ]
    return lease.until


@pytest.mark.slow
def test_running_jobs_end_and_queued_jobs_stay(app: App, crew: Crew, folder: Path) -> None:
    """The drain takes longer than a lease while another worker sweeps: the lease is renewed."""
    leaving = crew.start_one(lease=2.0, concurrency=3, grace=60.0)
    running = enqueue_jobs(app, 3, kind="hold")
    until(lambda: len(effects(folder)) == 3, "the worker runs three jobs")
    waiting = enqueue_jobs(app, 20)
    leaving.ask_to_stop()
    crew.start_one(lease=0.6, options=("--queues", "elsewhere"))  # only sweeps
    at_first = lease_end(app, leaving)
    until(lambda: lease_end(app, leaving) > at_first + 2.0, "the lease is renewed")
    (folder / "go").touch()
    assert leaving.wait() == 0
    snapshot = take_snapshot(session_of(app).store.url)
    assert [snapshot.rows[job].state for job in running] == [State.SUCCEEDED] * 3
    assert all(leaving.is_author(snapshot.ledgers[job][-1].actor) for job in running)
    assert {snapshot.rows[job].state for job in waiting} == {State.QUEUED}, "the worker claimed no more jobs"
    assert not any(event.type == "lease_expired" for ledger in snapshot.ledgers.values() for event in ledger)
    crew.start_one(lease=30.0)
    wait_for_all(app, 23)
    check(session_of(app).store.url, [*running, *waiting], folder=folder)
    assert set(runs(folder).values()) == {1}


@pytest.mark.slow
def test_job_that_exceeds_grace_is_returned_to_the_queue(app: App, crew: Crew, folder: Path) -> None:
    leaving = crew.start_one(lease=30.0, grace=0.3)
    ids = enqueue_jobs(app, 2, kind="ahold")
    until(lambda: len(effects(folder)) == 2, "both jobs run")
    leaving.ask_to_stop()
    assert leaving.wait() == 0
    snapshot = take_snapshot(session_of(app).store.url)
    # At once, not when the lease has expired; a maintenance task may already have promoted the jobs.
    assert {snapshot.rows[job].state for job in ids} <= {State.RETRY_WAITING, State.QUEUED}
    seen = {event.type for ledger in snapshot.ledgers.values() for event in ledger}
    assert seen - {"due"} == {"enqueue", "take", "snooze"}
    (folder / "go").touch()
    crew.start_one(lease=30.0)
    wait_for_all(app, 2)
    check(session_of(app).store.url, ids, folder=folder)
    assert all(session_of(app).store.run(session_of(app).store.jobs.get(job, "*")).crashes == 0 for job in ids)  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_worker_killed_while_draining_is_recovered(app: App, crew: Crew, folder: Path) -> None:
    """An orchestrator kills a worker whose grace is longer than its own timeout."""
    leaving = crew.start_one(grace=60.0)
    ids = enqueue_jobs(app, 4, kind="hold")
    until(lambda: len(effects(folder)) == 4, "all jobs run")
    leaving.ask_to_stop()
    until(lambda: "Stopping" in leaving.said(), "the worker drains")
    with pytest.raises(subprocess.TimeoutExpired):
        leaving.wait(0.3)
    leaving.kill()
    (folder / "go").touch()
    crew.start_one()
    wait_for_all(app, 4)
    check(session_of(app).store.url, ids, folder=folder, within=RECOVERY_LIMIT)


def test_worker_that_cannot_settle_still_stops(tiny_disk: Path, folder: Path) -> None:
    """After its grace the worker stops; its lease expires, and another worker recovers the jobs."""
    url = f"sqlite:///{tiny_disk}/jobs.db"
    with closing(App(url)) as app, Crew(url, folder) as crew:
        app.migrate()
        leaving = crew.start_one(grace=0.3)
        enqueue_jobs(app, 2, kind="ahold")
        until(lambda: len(effects(folder)) == 2, "both jobs run")
        with full(app, tiny_disk):
            (folder / "go").touch()  # both jobs end while the disk is full
            until(lambda: "Database unavailable" in leaving.said(), "the worker cannot settle them")
            leaving.ask_to_stop()
            try:
                left = leaving.wait(30.0)
            finally:
                leaving.kill()
    assert left == 0

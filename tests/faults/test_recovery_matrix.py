"""SC-11: a process is killed at every row of the recovery matrix; the queue keeps its order.

| before the crash | a run exists | it has ended | required action | Holdfast |
|---|---|---|---|---|
| queued | - | - | stays in the queue | the same: nothing to do |
| running | no | - | create a failed run, retry | impossible: one write starts the job and records its run |
| running | yes | no | mark it failed, retry | the lease expires: a crash is recorded, and the job runs again |
| running | yes | yes | complete the job | impossible: one write ends the run and the job |
| reservation | - | - | expire it, continue | see test_41_reservation_crash.py |

The impossible rows are tested within, before and after the one write. The guide `docs/guides/recovery.md` has the same
table for users.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import App, State
from holdfast.app.internals import session_of
from tests.faults.checker import RECOVERY_LIMIT, check
from tests.faults.crash_points import EXIT_CODE, CrashPoint, When, start_worker
from tests.faults.effects import effects, runs
from tests.faults.snapshot import Snapshot, take_snapshot
from tests.faults.workload import enqueue_jobs, wait_for_all
from tests.support.stores import claim, open_lease, put, spec
from tests.support.waiting import until
from tests.support.worker_processes import ROOT, Crew

pytestmark = pytest.mark.req("SC-11", "CX-15", "DP-8")

GUIDE = ROOT / "docs" / "guides" / "recovery.md"

# Row of the matrix: the test that kills a process there.
MATRIX = {
    "queued": "test_queued_jobs_keep_their_order_after_kill",
    "running, no run": "test_crash_around_claim_is_recovered",
    "running, a run that has not ended": "test_job_of_killed_worker_runs_again",
    "running, a run that has ended": "test_crash_around_settlement_is_recovered",
}


def event_types(snapshot: Snapshot, job: str) -> list[str]:
    return [event.type for event in snapshot.ledgers[job]]


def finish(app: App, folder: Path, ids: list[str]) -> Snapshot:
    """Process the remaining jobs with another worker."""
    rescuer = start_worker(
        session_of(app).store.url, folder, burst=False, lease_ttl=30.0
    )  # this worker must not lose its lease
    try:
        wait_for_all(app, len(ids))
    finally:
        rescuer.kill()
        rescuer.join(10)
    return check(session_of(app).store.url, ids, folder=folder, within=RECOVERY_LIMIT)


def crash(app: App, folder: Path, point: CrashPoint) -> None:
    victim = start_worker(session_of(app).store.url, folder, point, burst=True, lease_ttl=1.5)
    victim.join(60)
    assert victim.exitcode == EXIT_CODE, f"no worker reached {point}"


@pytest.mark.slow
def test_queued_jobs_keep_their_order_after_kill(app: App, crew: Crew, folder: Path) -> None:
    """All workers are killed and the enqueuing app is closed: the queue is only in the database."""
    crew.start(2, options=("--queues", "elsewhere"))
    ids = put(session_of(app).store, *(spec("work", payload={"number": n}, priority=n % 3) for n in range(30)))
    until(lambda: all("started:" in member.said() for member in crew.members), "both workers run")
    crew.kill_all()
    app.close()
    snapshot = take_snapshot(session_of(app).store.url)
    assert {row.state for row in snapshot.rows.values()} == {State.QUEUED}
    assert all(event_types(snapshot, job) == ["enqueue"] for job in ids)
    crew.start_one(concurrency=1)
    wait_for_all(app, 30)
    snapshot = check(session_of(app).store.url, ids, folder=folder)
    begun = sorted(ids, key=lambda job: next(event.seq for event in snapshot.ledgers[job] if event.type == "take"))
    assert begun == sorted(ids, key=lambda job: (-(ids.index(job) % 3), ids.index(job)))


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "within", "after"])
def test_crash_around_claim_is_recovered(app: App, folder: Path, when: When) -> None:
    """Before and within the claim the job is queued without a run; after it the job is running with a run."""
    if when == "within" and not session_of(app).store.embedded:
        pytest.skip("one statement, committed by the server: it has no inside")
    ids = enqueue_jobs(app, 1)
    crash(app, folder, CrashPoint("claiming", when))
    snapshot = take_snapshot(session_of(app).store.url)
    begun = when == "after"
    assert {row.state for row in snapshot.rows.values()} == {State.IN_PROGRESS if begun else State.QUEUED}
    assert {event_types(snapshot, job)[-1] for job in ids} == {"take" if begun else "enqueue"}
    assert not effects(folder), "no handler has run"
    snapshot = finish(app, folder, ids)
    rest = ["lease_expired", "retry", "due", "take", "succeed"] if begun else ["succeed"]
    assert [event_types(snapshot, job) for job in ids] == [["enqueue", "take", *rest]] * len(ids)


def test_claimed_job_without_run_is_not_counted_as_crash(app: App, folder: Path) -> None:
    """The job was claimed but not started, as in a prefetch: it has no run, and gets none."""
    ids = enqueue_jobs(app, 3)
    assert len(claim(session_of(app).store, open_lease(session_of(app).store, "gone", ttl=30.0), 3, begin=False)) == 3
    session_of(app).store.run(session_of(app).store.clock.set(timedelta(seconds=60), None))
    snapshot = finish(app, folder, ids)
    assert all(event_types(snapshot, job) == ["enqueue", "claim", "lease_expired", "take", "succeed"] for job in ids)
    assert all(session_of(app).store.run(session_of(app).store.jobs.get(job, "*")).crashes == 0 for job in ids)  # type: ignore[union-attr]


@pytest.mark.slow
def test_job_of_killed_worker_runs_again(app: App, crew: Crew, folder: Path) -> None:
    victim = crew.start_one()
    ids = enqueue_jobs(app, 3, kind="hold")
    until(lambda: len(effects(folder)) == 3, "all jobs run")
    victim.kill()
    (folder / "go").touch()
    snapshot = finish(app, folder, ids)
    for job in ids:
        assert event_types(snapshot, job) == ["enqueue", "take", "lease_expired", "retry", "due", "take", "succeed"]
        assert runs(folder)[job] == 2
        first, second = session_of(app).store.run(session_of(app).store.jobs.attempts(job, "*"))
        assert (first.outcome, first.error_code, second.outcome) == ("crashed", "worker_lost", "succeeded")


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "within", "after"])
def test_crash_around_settlement_is_recovered(app: App, folder: Path, when: When) -> None:
    """After the settlement the run and the job have ended; before and within it, neither. The effect already exists:
    outside the database a job runs at least once."""
    if when == "within" and not session_of(app).store.embedded:
        pytest.skip("one statement, committed by the server: it has no inside")
    ids = enqueue_jobs(app, 1)
    crash(app, folder, CrashPoint("settling", when))
    snapshot = take_snapshot(session_of(app).store.url)
    ended = when == "after"
    assert snapshot.rows[ids[0]].state is (State.SUCCEEDED if ended else State.IN_PROGRESS)
    assert runs(folder)[ids[0]] == 1
    assert (app.jobs.get(ids[0]).finished_at is not None) == ended
    finish(app, folder, ids)
    assert runs(folder)[ids[0]] == (1 if ended else 2)


def test_guide_has_every_row(request: pytest.FixtureRequest) -> None:
    text = GUIDE.read_text(encoding="utf-8")
    for row, test in MATRIX.items():
        assert f"`tests/faults/test_recovery_matrix.py::{test}`" in text, row
        assert hasattr(request.module, test)

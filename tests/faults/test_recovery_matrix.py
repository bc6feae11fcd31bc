"""SC-11: a process is killed at every row of the recovery matrix (source 002, section 4.5); the queue keeps its order.

| before the crash | a run exists | it has ended | the source's action | what Holdfast does |
|---|---|---|---|---|
| queued | - | - | stays in the queue | the same: nothing to do |
| running | no | - | make a failed run, retry | cannot be: a job is begun and its run recorded by one write |
| running | yes | no | mark it failed, retry | the lease lapses: a crash is recorded, and it is tried again |
| running | yes | yes | complete the job | cannot be: the run's end and the job's are one write |
| reservation | - | - | expire it, go on | reservations come later, and their crash with them (fault 41) |

A row that cannot be is tested where it would have to come about: within the one write, and on both sides of it. The
guide `docs/guides/recovery.md` has the same table in a user's words.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import App, State
from tests.faults.checker import IN_TIME, check
from tests.faults.crashing import GONE, Point, When, start
from tests.faults.effects import effects, runs
from tests.faults.load import load
from tests.faults.picture import Picture, take_picture
from tests.faults.waiting import all_ended
from tests.support.stores import claim, open_lease, put, spec
from tests.support.waiting import until
from tests.support.worker_processes import ROOT, Crew

pytestmark = pytest.mark.req("SC-11", "CX-15", "DP-8")

GUIDE = ROOT / "docs" / "guides" / "recovery.md"

# Row of the matrix: the test that kills a process there.
MATRIX = {
    "queued": "test_queued_jobs_stay_in_their_order",
    "running, no run": "test_gone_around_the_write_that_begins_a_run",
    "running, a run that has not ended": "test_gone_while_a_run_goes_on",
    "running, a run that has ended": "test_gone_around_the_write_that_ends_a_run",
}


def event_types(picture: Picture, job: str) -> list[str]:
    return [step.type for step in picture.ledgers[job]]


def finish(app: App, folder: Path, ids: list[str]) -> Picture:
    """Another worker does what is left."""
    rescuer = start(app._store.url, folder, burst=False, lease_ttl=30.0)  # it is not the one to lose anything
    try:
        all_ended(app, len(ids))
    finally:
        rescuer.kill()
        rescuer.join(10)
    return check(app._store.url, ids, folder=folder, within=IN_TIME)


def crash(app: App, folder: Path, point: Point) -> None:
    victim = start(app._store.url, folder, point, burst=True, lease_ttl=1.5)
    victim.join(60)
    assert victim.exitcode == GONE, f"no worker has come to {point}"


@pytest.mark.slow
def test_queued_jobs_stay_in_their_order(app: App, crew: Crew, folder: Path) -> None:
    """Every process is killed, the one that enqueued included as far as it matters: nothing of a queue is in memory."""
    crew.start(2, options=("--queues", "elsewhere"))
    ids = put(app._store, *(spec("work", payload={"number": n}, priority=n % 3) for n in range(30)))
    until(lambda: all("serves" in member.said() for member in crew.members), "they are up")
    crew.kill_all()
    app.close()
    picture = take_picture(app._store.url)
    assert {row.state for row in picture.rows.values()} == {State.QUEUED}
    assert all(event_types(picture, job) == ["enqueue"] for job in ids)
    crew.start_one(concurrency=1)
    all_ended(app, 30)
    picture = check(app._store.url, ids, folder=folder)
    begun = sorted(ids, key=lambda job: next(step.seq for step in picture.ledgers[job] if step.type == "take"))
    assert begun == sorted(ids, key=lambda job: (-(ids.index(job) % 3), ids.index(job)))


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "within", "after"])
def test_gone_around_the_write_that_begins_a_run(app: App, folder: Path, when: When) -> None:
    """Before and within it the job is queued and has no run. After it the job runs and has one: never one without the
    other."""
    if when == "within" and not app._store.embedded:
        pytest.skip("one statement, committed by the server: it has no inside")
    ids = load(app, 1)
    crash(app, folder, Point("claiming", when))
    picture = take_picture(app._store.url)
    begun = when == "after"
    assert {row.state for row in picture.rows.values()} == {State.IN_PROGRESS if begun else State.QUEUED}
    assert {event_types(picture, job)[-1] for job in ids} == {"take" if begun else "enqueue"}
    assert not effects(folder), "no handler has begun"
    picture = finish(app, folder, ids)
    rest = ["lapse", "retry", "due", "take", "succeed"] if begun else ["succeed"]
    assert [event_types(picture, job) for job in ids] == [["enqueue", "take", *rest]] * len(ids)


def test_what_was_only_held_goes_back_at_no_cost(app: App, folder: Path) -> None:
    """Claimed and not begun, as a worker's prefetch is: there is no run, and none is made up."""
    ids = load(app, 3)
    assert len(claim(app._store, open_lease(app._store, "gone", ttl=30.0), 3, begin=False)) == 3
    app._store.run(app._store.clock.set(timedelta(seconds=60), None))
    picture = finish(app, folder, ids)
    assert all(event_types(picture, job) == ["enqueue", "claim", "lapse", "take", "succeed"] for job in ids)
    assert all(app._store.run(app._store.jobs.get(job, "*")).crashes == 0 for job in ids)  # type: ignore[union-attr]


@pytest.mark.slow
def test_gone_while_a_run_goes_on(app: App, crew: Crew, folder: Path) -> None:
    victim = crew.start_one()
    ids = load(app, 3, kind="hold")
    until(lambda: len(effects(folder)) == 3, "all have begun")
    victim.kill()
    (folder / "go").touch()
    picture = finish(app, folder, ids)
    for job in ids:
        assert event_types(picture, job) == ["enqueue", "take", "lapse", "retry", "due", "take", "succeed"]
        assert runs(folder)[job] == 2
        first, second = app._store.run(app._store.jobs.attempts(job, "*"))
        assert (first.outcome, first.error_code, second.outcome) == ("crashed", "worker_lost", "succeeded")


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "within", "after"])
def test_gone_around_the_write_that_ends_a_run(app: App, folder: Path, when: When) -> None:
    """After it the run and the job have ended; before and within it, neither. The effect was there already: outside the
    database a job happens once or more."""
    if when == "within" and not app._store.embedded:
        pytest.skip("one statement, committed by the server: it has no inside")
    ids = load(app, 1)
    crash(app, folder, Point("settling", when))
    picture = take_picture(app._store.url)
    ended = when == "after"
    assert picture.rows[ids[0]].state is (State.SUCCEEDED if ended else State.IN_PROGRESS)
    assert runs(folder)[ids[0]] == 1
    found = app.jobs.get(ids[0])
    assert (found.finished_at is not None) == ended
    finish(app, folder, ids)
    assert runs(folder)[ids[0]] == (1 if ended else 2)


def test_the_guide_has_every_row(request: pytest.FixtureRequest) -> None:
    text = GUIDE.read_text(encoding="utf-8")
    for row, test in MATRIX.items():
        assert f"`tests/faults/test_recovery_matrix.py::{test}`" in text, row
        assert hasattr(request.module, test)

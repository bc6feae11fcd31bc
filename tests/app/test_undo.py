"""Undo of steps: ``ctx.step(…, undo=f)``."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Context, Reject, Retry, SyncContext
from holdfast.app.internals import session_of
from holdfast.engine.job import Job
from holdfast.engine.states import State
from holdfast.engine.steps import UNDO_KIND
from holdfast.features.jobs.timeline import timeline
from tests.app.conftest import NewApp
from tests.app.worker_process import worker_process
from tests.support.stores import forward
from tests.support.waiting import until
from tests.support.workers import work_off, working

pytestmark = pytest.mark.req("HF-18")
ONCE = Retry(max_attempts=1)


class Trip:
    """What the steps and their undo functions have done."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def book(self, what: str) -> str:
        self.done.append(f"book {what}")
        return f"{what} 7"

    def cancel(self, ref: str) -> None:
        self.done.append(f"cancel {ref}")

    async def acancel(self, ref: str) -> None:
        self.done.append(f"cancel {ref}")


def undo_jobs(app: App) -> list[Job]:
    return [*app.jobs.list(kind=UNDO_KIND)]


def undone(app: App, count: int = 1) -> list[Job]:
    """The undo jobs, when they have ended."""
    until(
        lambda: len(jobs := undo_jobs(app)) >= count and all(job.state.finished for job in jobs),
        "the undo jobs end",
    )
    return undo_jobs(app)


def test_steps_of_a_failed_job_are_undone_newest_first(app: App) -> None:
    trip = Trip()

    @app.job(retry=ONCE)
    async def travel(ctx: Context) -> None:
        flight = await ctx.step("flight", trip.book, "flight", undo=trip.cancel)
        await ctx.step("mail", trip.book, "mail")
        await ctx.step("hotel", trip.book, "hotel", undo=trip.acancel)
        raise Reject("no_car", f"none for {flight}")

    with working(app):
        job = travel.enqueue()
        (undo,) = undone(app)
    assert app.jobs.get(job.id).state is State.DEAD_LETTER
    assert trip.done == ["book flight", "book mail", "book hotel", "cancel hotel 7", "cancel flight 7"]
    assert undo.state is State.SUCCEEDED
    assert app.jobs.get(undo.id).id == undo.id
    assert [step.name for step in app.jobs.steps(undo.id)] == ["undo hotel", "undo flight"]


def test_sync_handler_that_waits_is_cancelled_and_undone(app: App) -> None:
    trip = Trip()

    @app.job
    def travel(ctx: SyncContext) -> None:
        def cancel_both(ref: str) -> None:
            trip.cancel(f"{ref}, {first}")

        first, second = ctx.gather(
            ctx.submit("flight", trip.book, "flight", undo=trip.cancel),
            ctx.step_options().submit("hotel", trip.book, "hotel", undo=cancel_both),
        )
        ctx.wait_for_event("paid", timeout="1d")
        trip.book(second)

    with working(app):
        job = travel.enqueue()
        until(lambda: app.jobs.get(job.id).state is State.RETRY_WAITING, "it waits")
        assert undo_jobs(app) == []
        app.jobs.cancel(job.id, reason="the customer is ill")
        undone(app)
    assert sorted(trip.done[:2]) == ["book flight", "book hotel"]
    assert trip.done[2:] == ["cancel hotel 7, flight 7", "cancel flight 7"]


def test_undo_that_fails_is_retried_and_does_not_repeat_the_others(app: App) -> None:
    trip = Trip()
    broken = [True]

    def flaky(ref: str) -> None:
        trip.done.append("try")
        if broken:
            broken.pop()
            raise ConnectionError("no answer")
        trip.cancel(ref)

    @app.job(retry=ONCE)
    async def travel(ctx: Context) -> None:
        await ctx.step("flight", trip.book, "flight", undo=flaky)
        await ctx.step("hotel", trip.book, "hotel", undo=trip.cancel)
        raise ValueError("no car")

    with working(app):
        travel.enqueue()
        until(lambda: any(job.state is State.RETRY_WAITING for job in undo_jobs(app)), "it is retried")
        forward(session_of(app).store, 3600)
        undone(app)
    assert trip.done[2:] == ["cancel hotel 7", "try", "try", "cancel flight 7"]


def test_job_that_succeeds_or_is_retried_is_not_undone(app: App) -> None:
    trip = Trip()
    failures: list[int] = []

    @app.job(retry=Retry(max_attempts=2, backoff="gentle"))
    async def travel(ctx: Context) -> str:
        ref: str = await ctx.step("flight", trip.book, "flight", undo=trip.cancel)
        failures.append(1)
        if len(failures) == 1:
            raise ValueError("not yet")
        return ref

    with working(app):
        job = travel.enqueue()
        until(lambda: failures, "it fails once")
        until(lambda: app.jobs.get(job.id).state is State.RETRY_WAITING, "it waits")
        forward(session_of(app).store, 60)
        until(lambda: app.jobs.get(job.id).state.finished, "it ends")
    assert app.jobs.get(job.id).state is State.SUCCEEDED
    assert (trip.done, undo_jobs(app)) == (["book flight"], [])


def test_an_argument_named_undo_that_is_no_function_belongs_to_the_step(app: App) -> None:
    seen: list[Any] = []

    def change(*, undo: bool) -> None:
        seen.append(undo)

    @app.job
    async def edit(ctx: Context) -> None:
        await ctx.step("change", change, undo=True)

    with working(app):
        edit.enqueue().result(timeout=20)
    assert seen == [True]


def test_timeline_of_the_job_says_when_it_was_compensated(app: App) -> None:
    trip = Trip()

    @app.job(retry=ONCE)
    async def travel(ctx: Context) -> None:
        await ctx.step("flight", trip.book, "flight", undo=trip.cancel)
        raise ValueError("no car")

    with working(app):
        job = travel.enqueue()
        (undo,) = undone(app)
    story = app.jobs.details(job.id)
    assert [(each.id, each.state) for each in story.undos] == [(undo.id, State.SUCCEEDED)]
    assert [str(row[2]) for row in timeline(story.history, story.votes, story.compensations)][-1] == "compensated"
    assert app.jobs.details(undo.id).undos == []


def test_redriven_job_begins_again_with_its_first_step(app: App) -> None:
    trip, fails = Trip(), [True]

    @app.job(retry=ONCE)
    async def travel(ctx: Context) -> str:
        ref: str = await ctx.step("flight", trip.book, "flight", undo=trip.cancel)
        if fails:
            raise ValueError("no car")
        return ref

    app.pauses.set(kind=UNDO_KIND, reason="later")
    job = travel.enqueue()
    work_off(app)
    with working(app):
        until(lambda: undo_jobs(app), "its end was noticed")
        (refused,) = app.jobs.redrive(job.id)
        assert (refused.refused, refused.reason) == (True, "undo_open"), "not while its steps are being undone"
        app.pauses.remove(kind=UNDO_KIND)
        undone(app)
        fails.clear()
        (verdict,) = app.jobs.redrive(job.id)
        assert not verdict.refused
        assert job.result(timeout=20) == "flight 7"
    assert trip.done == ["book flight", "cancel flight 7", "book flight"]


def test_fork_does_not_undo_the_steps_of_its_origin(app: App) -> None:
    trip = Trip()

    @app.job(retry=ONCE)
    async def travel(ctx: Context, fails: bool) -> None:
        await ctx.step("flight", trip.book, "flight", undo=trip.cancel)
        await ctx.step("hotel", trip.book, "hotel", undo=trip.cancel)
        raise ValueError("no car")

    job = travel.enqueue(True)
    with working(app):
        undone(app)
        app.jobs.fork(job.id, "hotel")
        undone(app, 2)
    assert trip.done[4:] == ["book hotel", "cancel hotel 7"]


def test_steps_that_the_code_no_longer_reaches_are_reported(new_app: NewApp) -> None:
    trip, app, other = Trip(), new_app(), new_app()

    @app.job(retry=ONCE)
    async def travel(ctx: Context) -> None:
        await ctx.step("flight", trip.book, "flight", undo=trip.cancel)
        raise ValueError("no car")

    @other.job("travel", retry=ONCE)
    async def changed(ctx: Context) -> None:
        raise ValueError("no car")

    app.pauses.set(kind=UNDO_KIND, reason="later")
    job = travel.enqueue()
    work_off(app)
    app.pauses.remove(kind=UNDO_KIND)
    with working(other):
        until(lambda: any(undo.error_code == "undo_incomplete" for undo in undo_jobs(app)), "it is not silent")
    assert app.jobs.get(job.id).state is State.DEAD_LETTER
    assert trip.done == ["book flight"]


@pytest.mark.slow
@pytest.mark.req("CX-15")
def test_undo_continues_where_its_killed_worker_was(app: App, url: str, tmp_path: Path) -> None:
    """The steps ran in a child process (``process=True``); the undo functions run in the worker."""
    session_of(app).make_ready()
    app.enqueue("travel")
    with worker_process("tests.app.undo_jobs", url, tmp_path, lease=1.0) as victim:
        assert victim.wait(timeout=60) == -signal.SIGKILL
    assert (tmp_path / "effects").read_text().split("\n") == ["book flight", "book hotel", "cancel hotel", ""]
    with worker_process("tests.app.undo_jobs", url, tmp_path, lease=30.0):
        (undo,) = undone(app)
    assert (undo.state, undo.crashes) == (State.SUCCEEDED, 1)
    assert (tmp_path / "effects").read_text().endswith("cancel hotel\ncancel flight\n"), "the first is not repeated"

"""Undo of steps: ``ctx.step(…, undo=f)``."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast import App, Context, Reject, Retry, SyncContext
from holdfast.app.internals import session_of
from holdfast.app.replayer import Replayer
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


def test_undo_that_fails_for_good_continues_with_the_earlier_steps_when_it_is_redriven(app: App) -> None:
    trip, broken = Trip(), [True]

    def refuse(ref: str) -> None:
        if broken:
            raise Reject("closed", "no answer")
        trip.cancel(ref)

    @app.job(retry=ONCE)
    async def travel(ctx: Context) -> None:
        await ctx.step("flight", trip.book, "flight", undo=trip.cancel)
        await ctx.step("hotel", trip.book, "hotel", undo=refuse)
        await ctx.step("car", trip.book, "car", undo=trip.cancel)
        raise ValueError("no room")

    with working(app):
        travel.enqueue()
        (undo,) = undone(app)
        assert (undo.state, trip.done[3:]) == (State.DEAD_LETTER, ["cancel car 7"])
        broken.clear()
        app.jobs.redrive(undo.id)
        until(lambda: app.jobs.get(undo.id).state is State.SUCCEEDED, "it is undone")
    assert trip.done[3:] == ["cancel car 7", "cancel hotel 7", "cancel flight 7"]


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


def test_undo_none_is_no_undo_and_another_value_is_refused(app: App) -> None:
    trip = Trip()

    @app.job(retry=ONCE)
    async def travel(ctx: Context) -> None:
        await ctx.step("flight", trip.book, "flight", undo=None)
        await ctx.step_options(unordered=True).step("hotel", trip.book, "hotel", undo=None)
        await ctx.step("car", trip.book, "car", undo=cast("Any", True))

    @app.job(retry=ONCE)
    def sync_travel(ctx: SyncContext) -> None:
        ctx.step("flight", trip.book, "flight", undo=None)
        ctx.submit("car", trip.book, "car", undo=cast("Any", "cancel"))

    with working(app):
        jobs = [travel.enqueue(), sync_travel.enqueue()]
        until(lambda: all(app.jobs.get(job.id).state.finished for job in jobs), "they end")
    assert [app.jobs.get(job.id).error_code for job in jobs] == ["not_callable", "not_callable"]
    assert sorted(trip.done) == ["book flight", "book flight", "book hotel"]
    assert undo_jobs(app) == []


def test_code_between_steps_has_no_effect_through_holdfast_during_an_undo(app: App, new_app: NewApp) -> None:
    trip, other, hooked = Trip(), new_app(), list[str]()

    @app.job
    async def mail(to: str) -> None: ...

    @app.job
    async def booked() -> None: ...

    app.subscriptions.set("bookings", "booking", "booked", payload={})

    @app.job(retry=ONCE)
    async def travel(ctx: Context) -> None:
        await mail.aenqueue("ada")
        await other.aenqueue("mail", {"to": "from another app"})
        await app.asend_event("booking", {})
        await asyncio.to_thread(app.send_event, "booking", {})
        await ctx.step("flight", trip.book, "flight", undo=trip.cancel)
        await mail.aenqueue("bob")
        await ctx.step("hotel", trip.book, "hotel", undo=trip.cancel)
        raise ValueError("no car")

    @app.job(retry=ONCE)
    def sync_travel(ctx: SyncContext) -> None:
        mail.enqueue("ada")
        app.send_event("booking", {})
        ctx.step("flight", trip.book, "flight", undo=trip.cancel)
        raise ValueError("no car")

    @app.hooks.around_enqueue
    def note(info: Any) -> Iterator[None]:
        hooked.append("enqueue")
        yield

    with working(app):
        travel.enqueue()
        sync_travel.enqueue()
        jobs = undone(app, 2)
        app.send_event("booking", {})
        until(lambda: len([*app.jobs.list(kind="booked")]) >= 4, "all events were delivered")
    assert [job.state for job in jobs] == [State.SUCCEEDED] * 2
    assert len([*app.jobs.list(kind="mail")]) == 4
    assert len([*app.jobs.list(kind="booked")]) == 4, "three of the two jobs, and the last"
    assert len(hooked) == 5, "two of the test, three of its jobs"
    assert [each for each in trip.done if each.startswith("cancel")].count("cancel flight 7") == 2


def test_other_jobs_keep_their_database_while_a_handler_is_replayed(app: App) -> None:
    trip, replayed, go = Trip(), asyncio.Event(), asyncio.Event()

    @app.job
    async def mail() -> None: ...

    @app.job
    async def meanwhile() -> None:
        await mail.aenqueue()
        go.set()

    @app.job(retry=ONCE)
    async def travel(ctx: Context) -> None:
        if trip.done:
            replayed.set()
            await go.wait()
        await ctx.step("flight", trip.book, "flight", undo=trip.cancel)
        raise ValueError("no car")

    with working(app):
        travel.enqueue()
        until(replayed.is_set, "it is replayed")
        meanwhile.enqueue()
        (undo,) = undone(app)
    assert undo.state is State.SUCCEEDED
    assert len([*app.jobs.list(kind="mail")]) == 1


def test_steps_before_code_that_reads_the_database_are_undone_and_the_others_named(app: App) -> None:
    trip, reads = Trip(), [True]

    @app.job(retry=ONCE)
    async def travel(ctx: Context) -> None:
        for _ in range(2):
            await ctx.step("flight", trip.book, "flight", undo=trip.cancel)
        if reads:
            await app.jobs.aget(ctx.job_id)
        await ctx.step("flight", trip.book, "late flight", undo=trip.cancel)
        await ctx.step("hotel", trip.book, "hotel", undo=trip.cancel)
        raise ValueError("no car")

    with working(app):
        travel.enqueue()
        until(lambda: any(undo.error_code == "undo_incomplete" for undo in undo_jobs(app)), "it is reported")
        (undo,) = undo_jobs(app)
        assert "3 flight, 4 hotel" in (undo.error_message or "")
        assert "uses the database (jobs.get) outside a step" in (undo.error_message or "")
        assert trip.done[4:] == ["cancel flight 7", "cancel flight 7"]
        reads.clear()  # the code is corrected
        forward(session_of(app).store, 3600)
        undone(app)
    assert trip.done[6:] == ["cancel hotel 7", "cancel late flight 7"], "what is undone is not undone again"


def test_error_of_the_replay_is_in_the_message(app: App) -> None:
    trip = Trip()

    @app.job(retry=ONCE)
    async def travel(ctx: Context) -> None:
        await ctx.step("flight", trip.book, "flight", undo=trip.cancel)
        if len(trip.done) > 1:
            raise LookupError("no tariff")
        await ctx.step("hotel", trip.book, "hotel", undo=trip.cancel)
        raise ValueError("no car")

    with working(app):
        travel.enqueue()
        until(lambda: any(undo.error_code == "undo_incomplete" for undo in undo_jobs(app)), "it is reported")
    (undo,) = undo_jobs(app)
    assert "raises LookupError: no tariff" in (undo.error_message or "")
    assert "nothing was undone: 2 hotel" in (undo.error_message or "")
    assert len(trip.done) == 2


def test_replay_for_an_undo_has_the_timeout_of_the_job(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    trip = Trip()
    monkeypatch.setattr(Replayer.__init__, "__kwdefaults__", {"timeout": 0.01, "debug": False})

    @app.job(retry=ONCE)
    async def travel(ctx: Context) -> None:
        await asyncio.sleep(0.2)
        await ctx.step("flight", trip.book, "flight", undo=trip.cancel)
        raise ValueError("no car")

    @app.job(retry=ONCE, timeout=1)
    async def hanging(ctx: Context) -> None:
        if "book hotel" in trip.done:
            await asyncio.Event().wait()
        await ctx.step("hotel", trip.book, "hotel", undo=trip.cancel)
        raise ValueError("no car")

    with working(app):
        travel.enqueue()
        (undo,) = undone(app)
        assert (undo.state, trip.done) == (State.SUCCEEDED, ["book flight", "cancel flight 7"])
        hanging.enqueue()
        expected = "the handler has not reached it after 1 s before durable call 1, step 'hotel'"
        until(lambda: any(expected in (undo.error_message or "") for undo in undo_jobs(app)), "it is reported")


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

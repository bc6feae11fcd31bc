"""Schedules in code: declared with the job, synced when a worker starts, and reported when they disappear."""

from __future__ import annotations

import logging
from datetime import timedelta
from functools import partial

import pytest

from holdfast import App, State
from holdfast.errors import InvalidArguments, InvalidSetting, NotFound
from holdfast.testing import Kit
from tests.app.conftest import NewApp
from tests.support.schedules import MONDAY, at, attend, made, runs_of, set_time
from tests.support.waiting import until

pytestmark = pytest.mark.req("SC-9")


def test_schedules_can_be_declared_above_below_and_beside_a_job(app: App) -> None:
    @app.schedule("0 9 * * MON-FRI", tz="Europe/Paris", missed="once", overlap="skip")
    @app.job()
    def above() -> None: ...

    @app.job(queue="reports")
    @app.schedule("@daily", name="first", payload={"day": "x"})
    @app.schedule("every 90s", name="second", payload={"day": "y"}, queue="fast")
    def below(day: str) -> None: ...

    app.schedule("@hourly", kind="elsewhere", name="other", payload={"a": 1})
    app.schedule("@hourly", kind=above, name="also above")
    app.templates.set("t", "below", {"day": "z"})
    app.schedule("@hourly", template="t")
    app.schedule("@hourly", template="missing")
    assert app.schedules.list() == []  # declared but not yet synced

    set_time(app, MONDAY)
    attend(app)
    schedules = {each.name: each for each in app.schedules.list()}
    assert sorted(schedules) == ["above", "also above", "first", "other", "second", "t"]
    above_read = schedules["above"]
    assert (above_read.zone, above_read.overlap, above_read.declared_by) == ("Europe/Paris", "skip", "tests")
    assert (schedules["first"].payload, schedules["second"].options) == ({"day": "x"}, {"queue": "fast"})
    assert (schedules["t"].kind, schedules["t"].template) == ("below", "t")
    at(app, MONDAY + timedelta(seconds=90))
    (job,) = made(app, "below")
    assert (job.payload, job.queue) == ({"day": "y"}, "fast")


def test_invalid_declarations_are_refused(app: App) -> None:
    @app.job()
    def report(day: str) -> None: ...

    with pytest.raises(InvalidSetting, match="invalid_schedule"):
        app.schedule("61 * * * *")
    with pytest.raises(InvalidSetting, match="unknown_zone"):
        app.schedule("@daily", tz="Mars/Base")
    with pytest.raises(InvalidArguments):
        app.schedule("@daily")(report)
    with pytest.raises(InvalidSetting, match="unknown_option"):
        app.schedule("@daily", kind="x", colour="red")  # type: ignore[call-arg]
    with pytest.raises(InvalidSetting, match="conflicting_options"):
        app.schedule("@daily", kind="x", template="y")
    app.schedule("@daily", payload={"day": "x"})(report)
    with pytest.raises(InvalidSetting, match="duplicate_schedule"):
        app.schedule("@hourly", payload={"day": "x"})(report)


def declared(new_app: NewApp, *timings: tuple[str, str]) -> App:
    app = new_app()

    @app.job()
    def report() -> None: ...

    for name, timing in timings:
        app.schedule(timing, kind=report, name=name)
    return app


def test_declarations_are_synced_when_a_process_starts(new_app: NewApp, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "holdfast.schedules")
    first = declared(new_app, ("a", "0 9 * * *"), ("b", "@daily"))
    set_time(first, MONDAY)
    attend(first)
    first.schedules.pause("b")
    first.schedules.edit("a", missed="all")
    before = first.schedules.list()

    same = declared(new_app, ("a", "0 9 * * *"), ("b", "@daily"))
    attend(same)
    assert same.schedules.list() == before  # not stored twice, and operator changes stay

    newer = declared(new_app, ("a", "0 10 * * *"), ("c", "@hourly"))
    attend(newer)
    schedules = {each.name: each for each in newer.schedules.list()}
    assert (schedules["a"].timing, schedules["a"].missed) == ("0 10 * * *", "once")  # changed code wins
    assert schedules["a"].next_fire_at == MONDAY + timedelta(hours=2)
    assert (schedules["b"].undeclared_at, schedules["b"].state) == (MONDAY, "paused")  # reported, not deleted
    assert "no longer declared by" in caplog.text

    # Old and new processes run side by side: each was synced once, and nothing alternates.
    for _ in range(3):
        for each in (first, newer, same):
            attend(each)
    assert {each.name: each for each in newer.schedules.list()} == schedules

    older = declared(new_app, ("a", "0 9 * * *"), ("b", "@daily"))  # a rollback: the last process to start wins
    attend(older)
    schedules = {each.name: each for each in older.schedules.list()}
    assert (schedules["a"].timing, schedules["b"].undeclared_at, schedules["b"].state) == ("0 9 * * *", None, "paused")
    assert schedules["c"].undeclared_at is not None


def test_schedule_created_in_the_database_is_not_taken_over(new_app: NewApp, caplog: pytest.LogCaptureFixture) -> None:
    app = declared(new_app, ("a", "0 9 * * *"))
    set_time(app, MONDAY)
    own = app.schedules.add("a", "@hourly", kind="report")
    attend(app)
    assert app.schedules.list() == [own]
    assert "another schedule has this name" in caplog.text


def test_worker_fires_declared_schedules(app: App) -> None:
    @app.schedule("every 1s")
    @app.job()
    def beat() -> int:
        return 1

    app.run_worker(max_jobs=1, promote_every=0.05, poll=0.05)
    until(lambda: app.jobs.list(kind="beat", state=State.SUCCEEDED), "the schedule has fired and its job has run")
    (fire, *_) = app.schedules.history("beat")[::-1]
    assert (fire.status, fire.actor) == ("fired", "scheduler")


def test_kit_fires_schedules_when_its_clock_moves(app: App) -> None:
    @app.schedule("0 9 * * *", tz="Europe/Paris")
    @app.job()
    def morning() -> str:
        return "good"

    with Kit(app) as kit:
        kit.drain()
        assert app.jobs.list(kind="morning") == []
        kit.travel("1d")
        kit.drain()
        assert len(app.jobs.list(kind="morning", state=State.SUCCEEDED)) == 1


async def test_async_forms_of_schedules_and_templates(app: App) -> None:
    @app.job()
    def report(day: str = "x") -> None: ...

    app.migrate()
    created = await app.schedules.aadd("daily", "@daily", kind="report")
    assert (await app.schedules.aedit("daily", missed="all")).revision == created.revision + 1
    assert (await app.schedules.apause("daily")).state == "paused"
    assert (await app.schedules.aresume("daily")).state == "active"
    job_id = await app.schedules.arun("daily")
    assert [fire.job_id for fire in await app.schedules.ahistory("daily")] == [job_id]
    assert len(await app.schedules.apreview("daily")) == 10
    assert [each.name for each in await app.schedules.alist()] == ["daily"]
    await app.schedules.aremove("daily")
    with pytest.raises(NotFound):
        await app.schedules.aget("daily")
    template = await app.templates.aset("t", "report", {"day": "y"})
    handle = await app.templates.aenqueue("t")
    job = await app.jobs.aget(handle.id)
    assert job.payload == {"day": "y"}
    assert await app.templates.aget("t") == template
    assert await app.templates.alist() == await app.templates.aversions("t") == [template]
    await app.templates.aremove("t")


def test_history_is_paged(app: App) -> None:
    @app.schedule("* * * * *", missed="all")
    @app.job()
    def beat() -> None: ...

    set_time(app, MONDAY)
    attend(app)
    at(app, MONDAY + timedelta(minutes=5))
    newest = app.schedules.history("beat", limit=2)
    assert runs_of(newest) == [("fired", 4, "1"), ("fired", 5, "1")]
    assert runs_of(app.schedules.history("beat", limit=2, before=newest[-1].due_at)) == [
        ("fired", 2, "1"),
        ("fired", 3, "1"),
    ]


@pytest.mark.req("DP-22")
def test_a_schedule_on_a_function_that_is_no_job_stops_the_worker(app: App) -> None:
    @app.job
    def other() -> None: ...

    @app.schedule("@daily")
    @app.schedule("@hourly", name="hourly")
    def tick() -> None: ...

    for run in (app.tick, partial(app.run_worker, burst=True)):
        with pytest.raises(InvalidSetting) as refused:
            run()
        assert refused.value.code == "schedule_without_job"
        assert f"{tick.__module__}.{tick.__qualname__}" in refused.value.message
        assert "@app.job" in (refused.value.fix or "")
    app.job(tick)
    app.tick()
    assert {schedule.name for schedule in app.schedules.list()} == {"tick", "hourly"}

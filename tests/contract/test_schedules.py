"""Schedules (SC-9): each time fires once, missed and overlapping times follow their policy, failures stay local."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

from holdfast import App
from holdfast.app.internals import scheduler_of, session_of
from holdfast.engine.job import worker_holder
from holdfast.engine.states import State
from holdfast.errors import Conflict, InvalidArguments, InvalidSetting, NotFound, Refused
from holdfast.features.assembly import Store
from holdfast.features.schedules.model import MOST_COUNTED, MOST_FIRED
from holdfast.stores.flow import Flow, Steps
from tests.support.direct_sql import ByHand
from tests.support.schedules import MINUTE, MONDAY, at, attend, made, runs_of, set_time
from tests.support.stores import claim, history, new_id, open_lease, settle, work

pytestmark = pytest.mark.req("SC-9")


@pytest.fixture
def app(store: Store) -> Iterator[App]:
    with closing(App(store.url, name="tests", enqueued_by="tester")) as app_of_test:

        @app_of_test.job(queue="reports", priority=3)
        def report(day: str = "today") -> str:
            return day

        yield app_of_test


def end_all(store: Store) -> None:
    settle(store, claim(store, open_lease(store), 10, queues=("reports", "default")))


@pytest.mark.req("DP-9", "DP-11")
def test_scheduled_time_makes_one_job_with_its_origin(app: App, store: Store) -> None:
    set_time(app, MONDAY)
    created = app.schedules.add("daily", "30 8 * * *", kind="report", payload={"day": "monday"}, deadline="2h")
    assert created.next_fire_at == MONDAY + 30 * MINUTE
    assert at(app, MONDAY + 29 * MINUTE) == 0
    assert at(app, MONDAY + 31 * MINUTE) == 1
    assert attend(app) == 0

    (job,) = made(app, "report")
    assert (job.payload, job.queue, job.priority) == ({"day": "monday"}, "reports", 3)
    assert (job.enqueued_by, job.deadline_at) == ("schedule daily", MONDAY + timedelta(minutes=30, hours=2))
    origin = store.run(store.templates.made_from(job.id, "default"))
    assert origin is not None
    assert (origin.schedule, origin.due_at, origin.template) == ("daily", MONDAY + 30 * MINUTE, None)
    assert runs_of(app.schedules.history("daily")) == [("fired", 30, "1")]
    after = app.schedules.get("daily")
    assert (after.last_fire_at, after.next_fire_at) == (
        MONDAY + 30 * MINUTE,
        MONDAY + timedelta(days=1, minutes=30),
    )


@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        ("skip", [("missed", 9, "9"), ("fired", 10, "1")]),
        ("once", [("missed", 9, "9"), ("fired", 10, "1")]),
        ("all", [("fired", n, "1") for n in range(1, 11)]),
    ],
)
def test_missed_times_follow_the_policy(app: App, missed: Any, expected: list[tuple[str, int, str]]) -> None:
    set_time(app, MONDAY)
    app.schedules.add("minutely", "* * * * *", kind="report", missed=missed)
    at(app, MONDAY + timedelta(minutes=10, seconds=30))
    assert runs_of(app.schedules.history("minutely", limit=100)) == expected
    assert len(made(app, "report")) == sum(status == "fired" for status, *_ in expected)


def test_time_past_its_grace_is_missed(app: App) -> None:
    set_time(app, MONDAY)
    app.schedules.add("skips", "0 9 * * *", kind="report", missed="skip")
    app.schedules.add("catches up", "0 9 * * *", kind="report", missed="once")
    at(app, MONDAY + timedelta(hours=3))
    assert runs_of(app.schedules.history("skips")) == [("missed", 60, "1")]
    assert runs_of(app.schedules.history("catches up")) == [("fired", 60, "1")]


def test_missed_all_is_bounded(app: App) -> None:
    set_time(app, MONDAY)
    app.schedules.add("minutely", "* * * * *", kind="report", missed="all")
    at(app, MONDAY + timedelta(days=30))
    fires = app.schedules.history("minutely", limit=1000)
    assert [fire.status for fire in fires] == ["fired"] * MOST_FIRED + ["missed"]
    assert fires[-1].count == MOST_COUNTED - MOST_FIRED
    assert fires[0].due_at == MONDAY + timedelta(days=30)


@pytest.mark.req("SC-9", "SC-5")
def test_overlap_skip_leaves_a_skipped_run_in_the_ledger(app: App, store: Store) -> None:
    set_time(app, MONDAY)
    app.schedules.add("minutely", "* * * * *", kind="report", overlap="skip")
    at(app, MONDAY + MINUTE)
    at(app, MONDAY + 2 * MINUTE)
    assert runs_of(app.schedules.history("minutely")) == [("fired", 1, "1"), ("skipped", 2, "1")]
    running, skipped = made(app, "report")
    assert (running.state, skipped.state) == (State.QUEUED, State.CANCELLED)
    events = history(store, skipped.id)
    assert [event.type for event in events] == ["enqueue", "cancel"]
    assert events[-1].meta == {"reason": "skipped", "schedule": "minutely"}
    assert events[-1].actor == "scheduler"
    assert [event.job_id for event in app.events.read("watcher") if event.meta.get("reason") == "skipped"] == [
        skipped.id
    ]
    (record,) = app.jobs.attempts(skipped.id)
    assert (record.attempt, record.outcome, record.worker) == (0, "skipped", "scheduler")
    assert record.started_at == record.ended_at == events[-1].at
    # Consumers see the skipped run; after the running one has ended, the next time fires.
    end_all(store)
    at(app, MONDAY + 3 * MINUTE)
    assert runs_of(app.schedules.history("minutely"))[-1] == ("fired", 3, "1")
    last = made(app, "report")[-1]
    app.jobs.cancel(last.id, reason="skipped")
    assert app.jobs.attempts(last.id) == [], "the same reason given by a person makes no such record"


def test_overlap_queue_waits_for_the_running_one(app: App, store: Store) -> None:
    set_time(app, MONDAY)
    app.schedules.add("minutely", "* * * * *", kind="report", overlap="queue", missed="all")
    at(app, MONDAY + MINUTE)
    at(app, MONDAY + timedelta(minutes=3, seconds=10))
    assert runs_of(app.schedules.history("minutely")) == [("fired", 1, "1"), ("waiting", 2, "1"), ("waiting", 3, "1")]
    assert at(app, MONDAY + timedelta(minutes=3, seconds=12)) == 1  # checks again while it still runs
    assert len(made(app, "report")) == 1
    for n, second in ((2, 20), (3, 30)):
        end_all(store)
        at(app, MONDAY + timedelta(minutes=3, seconds=second))
        assert len(made(app, "report")) == n
    assert runs_of(app.schedules.history("minutely")) == [("fired", 1, "1"), ("fired", 2, "1"), ("fired", 3, "1")]
    end_all(store)
    assert at(app, MONDAY + timedelta(minutes=3, seconds=40)) <= 1
    assert len(made(app, "report")) == 3


def test_schedule_can_be_paused_resumed_edited_run_and_deleted(app: App) -> None:
    set_time(app, MONDAY)
    app.schedules.add("hourly", "0 * * * *", kind="report", overlap="skip")
    assert app.schedules.pause("hourly").attend_at is None
    assert at(app, MONDAY + timedelta(hours=5, minutes=1)) == 0
    resumed = app.schedules.resume("hourly")
    assert (resumed.state, resumed.next_fire_at) == ("active", MONDAY + timedelta(hours=6))

    edited = app.schedules.edit("hourly", payload={"day": "x"}, queue="slow", jitter=0)
    assert (edited.next_fire_at, edited.options) == (resumed.next_fire_at, {"queue": "slow"})
    edited = app.schedules.edit("hourly", timing="15 * * * *", tz="Asia/Kolkata")
    assert edited.next_fire_at == MONDAY + timedelta(hours=5, minutes=45)  # half an hour off UTC

    job_id = app.schedules.run("hourly")
    with pytest.raises(Refused, match="schedule_running"):
        app.schedules.run("hourly")
    assert app.schedules.run("hourly", anyway=True) != job_id
    read = app.schedules.get("hourly")
    assert (read.next_fire_at, read.last_fire_at) == (edited.next_fire_at, None)
    assert [(fire.manual, fire.actor) for fire in app.schedules.history("hourly")] == [(True, "tester")] * 2

    app.schedules.remove("hourly")
    with pytest.raises(NotFound):
        app.schedules.get("hourly")
    assert app.schedules.list() == []
    assert at(app, MONDAY + timedelta(days=1)) == 0
    app.schedules.add("hourly", "0 * * * *", kind="report")  # its name is free
    with pytest.raises(Conflict, match="schedule_exists"):
        app.schedules.add("hourly", "0 * * * *", kind="report")


def test_schedule_that_cannot_fire_does_not_block_others(app: App, store: Store, by_hand: ByHand) -> None:
    set_time(app, MONDAY)
    app.templates.set("gone", "report")
    for name, kind in (("valid", "report"), ("unfit", "later"), ("unserved", "elsewhere")):
        app.schedules.add(name, "0 9 * * *", kind=kind, payload={"day": "x"})
    app.schedules.add("templated", "0 9 * * *", template="gone")
    for name, column, text in (("garbled", "timing", "soon"), ("odd", "options", '{"retry": 7}')):
        app.schedules.add(name, "0 9 * * *", kind="report")
        by_hand.execute(f"update schedule set {column} = '{text}' where name = '{name}'")
    app.templates.remove("gone")

    @app.job()
    def later(other: int) -> None: ...

    at(app, MONDAY + timedelta(hours=1))
    assert runs_of(app.schedules.history("valid")) == [("fired", 60, "1")]
    assert runs_of(app.schedules.history("unfit")) == [("failed", 60, "invalid_arguments")]
    assert runs_of(app.schedules.history("templated")) == [("failed", 60, "template_not_found")]
    assert runs_of(app.schedules.history("odd")) == [("failed", 60, "invalid_schedule")]
    garbled = app.schedules.get("garbled")
    assert (garbled.problem, garbled.state) == ("invalid_schedule", "active")
    held = app.schedules.get("unserved")
    assert (held.problem, held.next_fire_at) == ("unknown_kind", MONDAY + timedelta(hours=1))
    assert attend(app) == 0  # it is not checked again for a while
    # As soon as a worker for every kind runs, its policy for missed times applies.
    open_lease(store, ttl=7200.0)
    at(app, MONDAY + timedelta(hours=1, seconds=31))
    assert runs_of(app.schedules.history("unserved")) == [("fired", 60, "1")]
    cured = app.schedules.get("unserved")
    assert cured.problem is None


def test_app_with_the_missing_kind_fires_it_at_once(app: App, store: Store) -> None:
    """Also if it runs only briefly, like a tick: the schedule does not wait for the next check."""
    set_time(app, MONDAY)
    app.schedules.add("unserved", "0 9 * * *", kind="elsewhere", missed="skip")
    assert at(app, MONDAY + timedelta(hours=1)) == 1  # not checked again for a while
    set_time(app, MONDAY + timedelta(hours=1, seconds=5))
    with closing(App(store.url, name="others")) as other:

        @other.job(queue="theirs")
        def elsewhere() -> None: ...

        assert attend(other) == 1
        (job,) = made(other, "elsewhere")
        assert job.queue == "theirs"
    assert runs_of(app.schedules.history("unserved")) == [("fired", 60, "1")]


def test_kind_of_another_live_worker_is_left_to_it(app: App, store: Store) -> None:
    set_time(app, MONDAY)
    app.schedules.add("theirs", "0 9 * * *", kind="elsewhere")
    theirs = worker_holder(new_id(), "host", 7)
    lease = store.run(store.leases.open(theirs, 7200, "*", kinds=["elsewhere"])).id
    assert at(app, MONDAY + timedelta(hours=1)) == 0
    assert app.schedules.history("theirs") == []
    store.run(store.leases.end(lease, "closed", "*"))
    assert attend(app) == 1


@pytest.mark.req("JF-14")
def test_kind_of_an_http_worker_is_fired_by_any_app(app: App, store: Store) -> None:
    """Such workers run jobs over HTTP and fire no schedules: leaving them to it would mean never."""
    set_time(app, MONDAY)
    app.schedules.add("theirs", "0 9 * * *", kind="elsewhere")
    app.schedules.add("unserved", "0 9 * * *", kind="unknown")
    set_time(app, MONDAY + timedelta(hours=1))
    store.run(store.leases.open("token node", 7200, "*", kinds=["elsewhere"]))
    attend(app)
    assert runs_of(app.schedules.history("theirs")) == [("fired", 60, "1")]
    held = app.schedules.get("unserved")
    assert held.problem == "unknown_kind"


def test_stale_decision_is_not_applied(app: App, store: Store) -> None:
    set_time(app, MONDAY)
    app.schedules.add("minutely", "* * * * *", kind="report")
    now = set_time(app, MONDAY + MINUTE)
    read = app.schedules.get("minutely")
    decision = scheduler_of(app).decide(read, None, now, False)
    again = scheduler_of(app).decide(read, None, now, False)
    edited = scheduler_of(app).decide(read, None, now, False)
    assert store.run(store.schedules.fire([decision], "*")) == 1
    assert store.run(store.schedules.fire([again], "*")) == 0
    app.schedules.edit("minutely", missed="all")
    assert store.run(store.schedules.fire([edited], "*")) == 0
    assert len(made(app, "report")) == 1


class Died(Exception):
    """The process died in the middle of a flow."""


def cut(flow: Flow[Any], after: int) -> Flow[Any]:
    """The same flow, ended after `after` statements."""

    def start() -> Steps[Any]:
        steps = flow.start()
        statement = next(steps)
        for _ in range(after):
            rows = yield statement
            try:
                statement = steps.send(rows)
            except StopIteration as end:
                return end.value
        raise Died

    return Flow(start)


@pytest.mark.req("CX-15", "SC-19")
def test_crash_at_any_statement_leaves_all_or_nothing(app: App, store: Store) -> None:
    set_time(app, MONDAY)
    for overlap in ("allow", "skip", "queue"):
        app.schedules.add(overlap, "* * * * *", kind="report", overlap=overlap, missed="all")
    attend(app)
    set_time(app, MONDAY + 2 * MINUTE)
    for statements in range(1, 200):
        try:
            store.run(cut(scheduler_of(app).attend(session_of(app).store, "*"), statements))
        except Died:
            assert app.jobs.list(limit=100) == []
            assert app.schedules.history("allow") == []
            continue
        break
    assert statements > 3
    assert {name: runs_of(app.schedules.history(name)) for name in ("allow", "skip", "queue")} == {
        "allow": [("fired", 1, "1"), ("fired", 2, "1")],
        "skip": [("fired", 1, "1"), ("skipped", 2, "1")],
        "queue": [("fired", 1, "1"), ("waiting", 2, "1")],
    }
    assert len(made(app, "report")) == 5
    assert attend(app) == 0


def test_single_times_and_intervals(app: App) -> None:
    set_time(app, MONDAY)
    app.schedules.add("once", "at 2027-01-04 09:00", kind="report", tz="UTC")
    app.schedules.add("often", "every 90 s", kind="report")
    at(app, MONDAY + timedelta(hours=1, seconds=5))
    over = app.schedules.get("once")
    assert (over.state, over.next_fire_at) == ("ended", None)
    assert runs_of(app.schedules.history("once")) == [("fired", 60, "1")]
    often = app.schedules.get("often")
    assert often.next_fire_at == MONDAY + timedelta(seconds=90 * 41)
    with pytest.raises(InvalidSetting, match="schedule_over"):
        app.schedules.add("past", "at 2020-01-01 09:00", kind="report")


def test_invalid_schedules_are_refused(app: App) -> None:
    set_time(app, MONDAY)
    for timing, code in (("61 * * * *", "invalid_schedule"), ("0 0 31 2 *", "invalid_schedule")):
        with pytest.raises(InvalidSetting, match=code):
            app.schedules.add("bad", timing, kind="report")
    for definition, code in (
        ({"kind": "report", "tz": "Mars/Base"}, "unknown_zone"),
        ({"kind": "report", "missed": "never"}, "invalid_schedule"),
        ({"kind": "report", "overlap": "sometimes"}, "invalid_schedule"),
        ({"kind": "report", "jitter": "2d"}, "invalid_duration"),
        ({"kind": "report", "colour": "red"}, "unknown_option"),
        ({}, "conflicting_options"),
    ):
        with pytest.raises(InvalidSetting, match=code):
            app.schedules.add("bad", "@daily", **definition)  # type: ignore[arg-type]
    with pytest.raises(InvalidArguments):
        app.schedules.add("bad", "@daily", kind="report", payload={"night": 1})
    with pytest.raises(NotFound, match="template_not_found"):
        app.schedules.add("bad", "@daily", template="none")
    for call in (app.schedules.run, app.schedules.pause, app.schedules.history, app.schedules.preview):
        with pytest.raises(NotFound, match="schedule_not_found"):
            call("none")
    assert app.schedules.list() == []


def test_schedules_are_per_tenant(app: App, store: Store) -> None:
    set_time(app, MONDAY)
    app.schedules.add("daily", "0 9 * * *", kind="report")
    with closing(App(store.url, tenant="acme", name="tests")) as other:
        assert other.schedules.list() == []
        other.schedules.add("daily", "0 9 * * *", kind="report")
        set_time(app, MONDAY + timedelta(hours=1))
        assert attend(app, "acme") == 1
        assert (len(made(other, "report")), len(made(app, "report"))) == (1, 0)
        assert attend(app) == 1
        assert (len(made(other, "report")), len(made(app, "report"))) == (1, 1)
        (fire,) = other.schedules.history("daily")
        assert store.run(store.schedules.fires(fire.schedule_id, "default")) == []
        assert store.run(store.templates.made_from(str(fire.job_id), "default")) is None


def test_jitter_spreads_the_check_and_keeps_the_due_time(app: App) -> None:
    set_time(app, MONDAY)
    for n in range(20):
        app.schedules.add(f"s{n}", "0 9 * * *", kind="report", jitter="10m")
    attended = [schedule.attend_at for schedule in app.schedules.list()]
    assert len(set(attended)) == 20
    nine = MONDAY + timedelta(hours=1)
    assert all(moment is not None and nine <= moment <= nine + timedelta(minutes=10) for moment in attended)
    early = at(app, nine + timedelta(minutes=5))
    assert 0 < early < 20
    assert at(app, nine + timedelta(minutes=10)) == 20 - early
    assert {fire.due_at for n in range(20) for fire in app.schedules.history(f"s{n}")} == {nine}


def test_scheduled_job_is_claimed_like_any_other(app: App, store: Store) -> None:
    set_time(app, MONDAY)
    app.schedules.add("daily", "0 9 * * *", kind="report", queue="default")
    at(app, MONDAY + timedelta(hours=1))
    (claimed,) = work(store)
    assert claimed.kind == "report"

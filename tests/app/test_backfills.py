"""Backfill: a schedule runs for a past range, with bounded concurrency; killed, cancelled and started again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import App, State, SyncContext
from holdfast.app.internals import session_of
from holdfast.errors import InvalidSetting, NotFound
from tests.app.conftest import NewApp
from tests.support.schedules import MONDAY, attend, set_time
from tests.support.waiting import until
from tests.support.workers import work_off, working

pytestmark = pytest.mark.req("HF-18")

DAY = timedelta(days=1)
START, END = MONDAY - 10 * DAY, MONDAY
TIMES = [datetime(2026, 12, 26, tzinfo=UTC) + n * DAY for n in range(10)]


def daily(app: App, then: Callable[[int], object] = lambda count: None) -> list[datetime]:
    """Declare a daily job, and return the times that it has run for."""
    seen: list[datetime] = []

    @app.job()
    def report(ctx: SyncContext) -> None:
        at = ctx.scheduled_at()
        assert at is not None
        seen.append(at)
        then(len(seen))

    set_time(app, MONDAY - timedelta(hours=1))
    app.schedules.add("daily", "@daily", kind="report")
    run_clock(app, MONDAY + timedelta(minutes=1))
    return seen


def run_clock(app: App, moment: datetime) -> None:
    """The store's clock runs on from a moment: jobs wait for each other."""
    session_of(app).store.run(session_of(app).store.clock.set(moment - datetime.now(UTC), None))


@pytest.mark.parametrize("concurrency", [1, 4])
def test_every_time_of_the_range_gets_one_job(app: App, concurrency: int) -> None:
    seen = daily(app)
    job_id = app.schedules.backfill("daily", start=START, end=END, concurrency=concurrency)
    assert app.schedules.backfill("daily", start=START, end=END, concurrency=concurrency) == job_id
    with working(app, concurrency=1):  # its jobs need the only slot
        assert app.jobs.handle(job_id).result(timeout=30) == {"times": 10, "jobs": 10}
    assert seen == TIMES
    progress = app.jobs.handle(job_id).progress()
    assert progress is not None
    assert progress.message == "10 jobs for 10 times until 2027-01-04 00:00:00, 0 running"
    children = app.jobs.list(parent_id=job_id)
    assert Counter(job.state for job in children) == {State.SUCCEEDED: 10}
    again = app.schedules.backfill("daily", start=START - DAY, end=END, concurrency=concurrency)
    with working(app):
        assert app.jobs.handle(again).result(timeout=30) == {"times": 11, "jobs": 1}
    assert seen == [*TIMES, TIMES[0] - DAY]


def test_times_with_a_job_are_left_alone_and_missed_ones_run(app: App) -> None:
    seen = daily(app)
    now = MONDAY + 3 * DAY
    set_time(app, now)
    attend(app)  # one job for the last time, two missed
    run_clock(app, now + timedelta(minutes=1))
    job_id = app.schedules.backfill("daily", start=MONDAY, end=now)
    with working(app):
        assert app.jobs.handle(job_id).result(timeout=30) == {"times": 3, "jobs": 2}
    assert sorted(seen) == [MONDAY.replace(hour=0) + n * DAY for n in (1, 2, 3)]


def test_cancelled_backfill_continues_where_it_was(app: App) -> None:
    seen = daily(app, lambda count: count == 3 and app.jobs.cancel(cancelled))
    cancelled = app.schedules.backfill("daily", start=START, end=END)
    with working(app):
        app.jobs.handle(cancelled).wait(timeout=30)
        until(lambda: len(seen) >= 3, "the third job runs")
    done = len(seen)
    assert 3 <= done < 10
    second = app.schedules.backfill("daily", start=START, end=END)
    assert second != cancelled
    with working(app):
        assert app.jobs.handle(second).result(timeout=30)["times"] == 10
    assert seen == TIMES


def test_interval_has_times_before_it_was_created(app: App) -> None:
    daily(app)
    app.schedules.add("often", "every 6h", kind="report")
    job_id = app.schedules.backfill("often", start=MONDAY - DAY, end=MONDAY, concurrency=9)
    with working(app):
        assert app.jobs.handle(job_id).result(timeout=30)["jobs"] == 4


def test_invalid_ranges_are_refused(app: App) -> None:
    daily(app)
    for start, end, code in (
        (END, START, "invalid_time"),
        (END, END + DAY, "invalid_time"),
        (datetime.min.replace(tzinfo=UTC), END, "invalid_time"),
        (START.replace(hour=1), START.replace(hour=2), "schedule_over"),
    ):
        with pytest.raises(InvalidSetting) as refused:
            app.schedules.backfill("daily", start=start, end=end)
        assert refused.value.code == code
    for concurrency in (0, -1, 1_001, True):
        with pytest.raises(InvalidSetting, match="concurrency"):
            app.schedules.backfill("daily", start=START, end=END, concurrency=concurrency)
    with pytest.raises(NotFound):
        app.schedules.backfill("other", start=START, end=END)


def test_removed_schedule_ends_its_backfill(app: App, new_app: NewApp) -> None:
    daily(app)
    job_id = app.schedules.backfill("daily", start=START, end=END)
    app.schedules.remove("daily")
    with working(app):
        job = app.jobs.handle(job_id).wait(timeout=30)
    assert (job.state, job.error_code) == (State.DEAD_LETTER, "schedule_not_found")


def test_refused_job_is_tried_again(app: App) -> None:
    """The tenant is full: no time is recorded as failed."""
    seen = daily(app)
    app.tenants.set("default", max_pending=1)
    job_id = app.schedules.backfill("daily", start=START, end=END, concurrency=4)
    work_off(app)
    job = app.jobs.get(job_id)
    assert job.state == State.RETRY_WAITING
    assert "tenant_full" in (job.error_message or "")
    assert {(run.status, run.due_at) for run in app.schedules.history("daily")} == {("fired", TIMES[0])}
    app.tenants.set("default", max_pending=None)
    run_clock(app, MONDAY + timedelta(minutes=2))
    with working(app):
        assert app.jobs.handle(job_id).result(timeout=30) == {"times": 10, "jobs": 10}
    assert sorted(seen) == TIMES

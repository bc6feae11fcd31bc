"""Fault 24: all processes are down for several periods. Afterwards the policy for missed times applies."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.features.schedules.model import Missed
from tests.faults.schedule_processes import STOP_FILE, advance_clock, start, stop
from tests.support.schedules import MONDAY, runs_of, set_time
from tests.support.waiting import until

pytestmark = pytest.mark.req("SC-9", "CX-15")

POLICIES: tuple[Missed, ...] = ("skip", "once", "all")
DOWNTIME = timedelta(minutes=5, seconds=30)


def test_missed_times_follow_policy_after_downtime(app: App, folder: Path) -> None:
    set_time(app, MONDAY)
    for missed in POLICIES:
        app.schedules.add(missed, "* * * * *", kind="beat", missed=missed)
        app.schedules.add(f"{missed} hourly", "4 * * * *", kind="beat", missed=missed)
    first = start(session_of(app).store.url, folder)
    try:
        advance_clock(app, MONDAY, 1)
        advance_clock(app, MONDAY + timedelta(seconds=59), 1)
    finally:
        stop(first)  # with SIGKILL
    set_time(app, MONDAY + timedelta(minutes=1) + DOWNTIME)
    second = start(session_of(app).store.url, folder)
    try:
        until(lambda: len(app.schedules.history("all")) == 6, "the second process has caught up")
        until(lambda: len(app.schedules.history("skip hourly")) == 1, "also with the hourly schedules")
        (folder / STOP_FILE).touch()
        second.join(20)
    finally:
        stop(second)
    histories = {schedule.name: runs_of(app.schedules.history(schedule.name)) for schedule in app.schedules.list()}
    on_time = ("fired", 1, "1")
    assert histories["skip"] == [on_time, ("missed", 5, "4"), ("fired", 6, "1")]  # the last is half a minute late
    assert histories["once"] == [on_time, ("missed", 5, "4"), ("fired", 6, "1")]
    assert histories["all"] == [on_time, *(("fired", n, "1") for n in range(2, 7))]
    assert histories["skip hourly"] == [("missed", 4, "1")]  # two and a half minutes: too late
    assert histories["once hourly"] == histories["all hourly"] == [("fired", 4, "1")]
    made = {fire.job_id for name in histories for fire in app.schedules.history(name) if fire.job_id}
    beats = [job for job in app.jobs.list(limit=1000) if job.enqueued_by != "schedule declared"]
    assert made - {fire.job_id for fire in app.schedules.history("declared", limit=1000)} == {job.id for job in beats}

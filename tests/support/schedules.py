"""Builders for tests of schedules: set the store's clock, and run the maintenance task that fires schedules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast import App
from holdfast.app.internals import scheduler_of, session_of
from holdfast.engine.job import EVERY_TENANT
from holdfast.features.assembly import Store
from holdfast.features.schedules.model import (
    Decision,
    Firing,
    Placed,
    Schedule,
    ScheduleDraft,
    ScheduleRun,
    TemplateDraft,
)
from tests.support.stores import TENANT, new_id, spec

MONDAY = datetime(2027, 1, 4, 8, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def set_time(app: App, moment: datetime) -> datetime:
    """Stop the store's clock at this time."""
    session_of(app).make_ready()
    session_of(app).store.run(session_of(app).store.clock.set(timedelta(0), moment))
    return moment


def attend(app: App, tenant: str = EVERY_TENANT) -> int:
    """Run the worker's maintenance task for schedules once; return the number of schedules it handled."""
    session_of(app).make_ready()
    duty = scheduler_of(app).maintenance_task(tenant, 0)
    assert duty.flow is not None
    return duty.count(session_of(app).store.run(duty.flow(session_of(app).store)))


def at(app: App, moment: datetime) -> int:
    set_time(app, moment)
    return attend(app)


def runs_of(fires: list[ScheduleRun]) -> list[tuple[str, int, str]]:
    """Status, minutes after Monday, and count or error code of each run, earliest first."""
    return [
        (fire.status, (fire.due_at - MONDAY) // MINUTE, f"{fire.count}" if fire.error_code is None else fire.error_code)
        for fire in reversed(fires)
    ]


def made(app: App, kind: str) -> list[Any]:
    """The jobs of a kind, oldest first."""
    return app.jobs.list(kind=kind, limit=1000)[::-1]


def placed(name: str = "daily", timing: str = "@daily", **fields: Any) -> Placed:
    draft = ScheduleDraft.of(name, timing, kind="report", **fields)
    return Placed.at(new_id(), draft, MONDAY)


def add(store: Store, tenant: str = TENANT, **fields: Any) -> Schedule:
    """A schedule, through the port."""
    new = placed(**fields)
    assert store.run(store.schedules.add(new, "ada", tenant))
    schedule = store.run(store.schedules.get(new.draft.name, tenant))
    assert schedule is not None
    return schedule


def firing(due: datetime = MONDAY) -> Firing:
    return Firing(due, "fire", spec("report"))


def decided(schedule: Schedule, *firings: Firing) -> Decision:
    """A decision to fire these, and to check the schedule again a day later."""
    assert schedule.next_fire_at is not None
    later = schedule.next_fire_at + timedelta(days=1)
    return Decision(schedule=schedule, firings=firings, next_fire_at=later, attend_at=later)


def template(kind: str = "report", **payload: Any) -> TemplateDraft:
    return TemplateDraft.of("monthly", kind, payload, {"queue": "slow"})

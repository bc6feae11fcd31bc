"""Schedules in tests: an app with a kind or two, the store's clock at a given time, and one look of the duty."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast import App
from holdfast.domain.job import EVERY_TENANT
from holdfast.domain.schedules import Fire

MONDAY = datetime(2027, 1, 4, 8, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def set_time(app: App, moment: datetime) -> datetime:
    """Stop the store's clock at a time."""
    app.client.make_ready()
    app.store.run(app.store.verbs.set_clock(timedelta(0), moment))
    return moment


def attend(app: App, tenant: str = EVERY_TENANT) -> int:
    """What a worker does about schedules each time it looks; answers for how many schedules."""
    app.client.make_ready()
    duty = app.scheduler.duty(tenant, 0)
    return duty.count(app.store.run(duty.flow(app.store)))


def at(app: App, moment: datetime) -> int:
    set_time(app, moment)
    return attend(app)


def told(fires: list[Fire]) -> list[tuple[str, int, str]]:
    """Status, minutes after Monday, and how many: the earliest first."""
    return [
        (fire.status, (fire.due_at - MONDAY) // MINUTE, f"{fire.count}" if fire.error_code is None else fire.error_code)
        for fire in reversed(fires)
    ]


def made(app: App, kind: str) -> list[Any]:
    """Jobs of a kind, the oldest first."""
    return app.jobs(kind=kind, limit=1000)[::-1]

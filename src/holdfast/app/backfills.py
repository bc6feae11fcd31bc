"""``schedule.backfill``: the job that runs a schedule for a past range of times.

It keeps up to ``concurrency`` jobs of the range going and ends when all have ended. A time that has a job is left
alone, so the backfill can be killed, cancelled and started again at any moment. While nothing changes it gives up its
slot: its jobs may need it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

from holdfast.context import Context
from holdfast.engine.job import JobSpec
from holdfast.engine.outcome import Reject, RetryLater
from holdfast.engine.times import MICROSECOND
from holdfast.errors import HoldfastError, InvalidSetting
from holdfast.features.schedules.model import Firing, Schedule, Template, job_arguments

POLL, QUIET = 0.05, 0.2
"""Seconds between looks at the jobs, and without a change until the slot is given up."""
PAUSES: Final = (0.2, 30.0)
"""Seconds of the first and the longest pause. Each is twice as long as the one before."""

Make = Callable[[str, Any, dict[str, Any]], JobSpec]


def parse_range(start: str, end: str) -> tuple[datetime, datetime]:
    try:
        return datetime.fromisoformat(start).astimezone(UTC), datetime.fromisoformat(end).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidSetting("start and end of a backfill must be times", code="invalid_time") from None


def firing_of(make: Make, schedule: Schedule, template: Template | None, due: datetime) -> Firing:
    arguments, options = job_arguments(template, schedule.payload, schedule.options, due)
    options |= {"tenant": schedule.tenant, "enqueued_by": f"schedule {schedule.name}"}
    spec = make(schedule.kind, arguments, options)
    return Firing(due, "fire", spec, None if template is None else template.version)


@dataclass(slots=True)
class Place:
    """How far a backfill has come: a checkpoint of its job."""

    last: str
    times: int = 0
    jobs: int = 0
    pause: float = PAUSES[0]


def backfill_handler(make: Make) -> Callable[..., Any]:
    async def backfill(ctx: Context, schedule: str, start: str, end: str, concurrency: int = 1) -> dict[str, int]:
        session, claim, clock = ctx._run.session, ctx._run.claim, asyncio.get_running_loop().time
        schedules, (first, last) = session.store.schedules, parse_range(start, end)
        place = Place(**await ctx.checkpoint.load("place", default={"last": (first - MICROSECOND).isoformat()}))
        running, changed = -1, clock()
        while True:
            read, template = await _definition(ctx, schedule)
            after = datetime.fromisoformat(place.last)
            due = islice(read.timed.between(after, last, read.anchor_at), concurrency)
            try:
                firings = [firing_of(make, read, template, each) for each in due]
            except HoldfastError as error:
                raise Reject(error.code, error.message) from error
            flow = schedules.backfill(read.id, claim, firings, (first, last), concurrency, session.scope)
            done = await session.arun(flow)
            if done.taken:
                after = firings[done.taken - 1].due_at
                place = Place(after.isoformat(), place.times + done.taken, place.jobs + done.created)
                await ctx.checkpoint.save(asdict(place), "place")
            if done.taken or done.running != running:
                running, changed = done.running, clock()
                text = f"{place.jobs} jobs for {place.times} times until {after:%Y-%m-%d %H:%M:%S}, {running} running"
                await ctx.progress(max(0.0, (after - first) / (last - first)), text)
            if done.code is not None:
                raise RetryLater(PAUSES[1], f"{done.code}: {done.message}")
            if not firings and running == 0:
                return {"times": place.times, "jobs": place.jobs}
            if clock() - changed > QUIET:
                longer = replace(place, pause=min(2 * place.pause, PAUSES[1]))
                await ctx.checkpoint.save(asdict(longer), "place")
                ctx.snooze(place.pause, f"{running} jobs have not ended")
            await asyncio.sleep(POLL)

    return backfill


async def _definition(ctx: Context, name: str) -> tuple[Schedule, Template | None]:
    session, template = ctx._run.session, None
    schedule = await session.arun(session.store.schedules.get(name, ctx.tenant))
    if schedule is not None and schedule.template is not None:
        template = await session.arun(session.store.templates.get(schedule.template, ctx.tenant))
    if schedule is None or (schedule.template is not None and (template is None or template.removed)):
        raise Reject("schedule_not_found", f"schedule {name} or its template was removed")
    return schedule, template

"""Where schedules stand in time, and what is decided about the times that have come. Pure."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.domain.schedules import GRACE, MOST_COUNTED, MOST_FIRED, Schedule, ScheduleDraft
from holdfast.domain.timing import Timing
from holdfast.errors import InvalidSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A draft with its place in time, ready to be stored. The id is ours: the jitter is drawn with it."""

    id: str
    draft: ScheduleDraft
    anchor: datetime
    next_fire_at: datetime | None
    attend_at: datetime | None
    declared_by: str | None = None
    declared_hash: str | None = None

    @classmethod
    def at(
        cls,
        id: str,
        draft: ScheduleDraft,
        now: datetime,
        anchor: datetime | None = None,
    ) -> Placed:
        """From now on: times before do not count. One without any left is refused."""
        begin = now.replace(microsecond=0) if anchor is None else anchor
        following = draft.timing.next(now, begin)
        if following is None:
            raise InvalidSetting(f"schedule {draft.name} has no time left: {draft.timing.text}", code="schedule_over")
        return cls(
            id=id,
            draft=draft,
            anchor=begin,
            next_fire_at=following,
            attend_at=following + spread_of(id, draft.jitter, following),
        )

    def declared(self, by: str | None, hash: str | None) -> Placed:
        return dataclasses.replace(self, declared_by=by, declared_hash=hash)

    def declared_as(self, read: Schedule) -> Placed:
        """By the same code as before, if by any."""
        return self.declared(read.declared_by, read.declared_hash)

    @property
    def state(self) -> str:
        return "ended" if self.next_fire_at is None else "active"


def drafted(read: Schedule) -> ScheduleDraft:
    """What is stored, as a draft again."""
    return ScheduleDraft(
        name=read.name,
        timing=Timing.of(read.timing, read.zone),
        kind=read.kind,
        template=read.template,
        payload=json.dumps(read.payload),
        options=read.options,
        missed=read.missed,
        overlap=read.overlap,
        jitter=read.jitter,
    )


def moved(read: Schedule, draft: ScheduleDraft, now: datetime) -> Placed:
    """Where it stands once it is defined anew: with the same times as before nothing moves."""
    same = (draft.timing.text, draft.timing.zone, draft.jitter) == (read.timing, read.zone, read.jitter)
    if same and read.next_fire_at is not None:
        return unmoved(read, draft).declared_as(read)
    anchor = read.anchor_at if draft.timing.text == read.timing else None
    return Placed.at(read.id, draft, now, anchor).declared_as(read)


def unmoved(read: Schedule, draft: ScheduleDraft) -> Placed:
    return Placed(
        id=read.id,
        draft=draft,
        anchor=read.anchor_at,
        next_fire_at=read.next_fire_at,
        attend_at=read.attend_at,
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """Which of the times that have come are fired, which were missed, and when the next one comes."""

    fire: tuple[datetime, ...]
    missed: tuple[datetime, ...]
    next_fire_at: datetime | None


def plan(schedule: Schedule, now: datetime) -> Plan:
    """What the schedule's policy says about the times from ``next_fire_at`` to now."""
    timing, expected = schedule.timed, schedule.next_fire_at
    if expected is None:
        return Plan((), (), None)
    come = timing.last(expected, now, schedule.anchor_at, MOST_COUNTED)
    if not come:  # the rules of the zone have changed since: the next one is another
        return Plan((), (), timing.next(now, schedule.anchor_at))
    while come and come[-1] + spread(schedule, come[-1]) > now:
        come.pop()  # its own jitter has not passed yet
    if not come:
        return Plan((), (), expected)
    after = timing.next(come[-1], schedule.anchor_at)
    late = now - (come[-1] + spread(schedule, come[-1])) > GRACE
    match schedule.missed:
        case "all":
            fired = come[-MOST_FIRED:]
        case "once":
            fired = come[-1:]
        case _:
            fired = [] if late else come[-1:]
    return Plan(tuple(fired), tuple(come[: len(come) - len(fired)]), after)


def spread(schedule: Schedule, due: datetime) -> timedelta:
    """How long this very time is put off: the same for everybody who asks, and different from schedule to schedule."""
    return spread_of(schedule.id, schedule.jitter, due)


def spread_of(schedule_id: str, jitter: float, due: datetime) -> timedelta:
    if not jitter:
        return timedelta(0)
    drawn = hashlib.sha256(f"{schedule_id} {due.isoformat()}".encode()).digest()[:8]
    return timedelta(seconds=jitter * int.from_bytes(drawn) / 2**64)

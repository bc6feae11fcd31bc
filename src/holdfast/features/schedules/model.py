"""``Schedule``, ``ScheduleRun``, ``Template``, drafts; what is decided about due times.

Schedules (SC-9): when jobs are made by themselves, and what becomes of times that were missed or overlap.

A store applies a ``Decision`` complete, and only if the schedule is still as it was read, so that no second process can
apply it once more. What is decided is in ``placing``.

Templates: job definitions with a name and versions (SC-8).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, Literal, get_args

from holdfast.engine.job import JobSpec
from holdfast.engine.job_options import job_options, stored_options
from holdfast.engine.names import Place, check_name, unknown_place
from holdfast.engine.payload import encode, own
from holdfast.engine.units import seconds
from holdfast.errors import InvalidSetting
from holdfast.features.payloads.model import HIDDEN
from holdfast.features.schedules.recurrence import Timing

PAYLOAD_LIMIT: Final = 1_048_576


@dataclass(frozen=True, slots=True)
class Template:
    """One version of a template. ``payload`` and ``options`` are defaults; a removal is a version as well."""

    tenant: str
    name: str
    version: int
    kind: str
    payload: dict[str, Any]
    options: dict[str, Any]
    removed: bool
    created_by: str
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateDraft:
    """What is stored of a template, checked; ``payload`` is JSON text."""

    name: str
    kind: str
    payload: str
    options: dict[str, Any]

    @classmethod
    def of(cls, name: str, kind: str, payload: Mapping[str, Any] | None, options: Mapping[str, Any]) -> TemplateDraft:
        return cls(
            name=check_name(name, "template"),
            kind=check_name(kind, "kind"),
            payload=payload_text(payload, f"template {name}"),
            options=stored_options(options),
        )


@dataclass(frozen=True, slots=True)
class MadeFrom:
    """What a job was made from: a version of a template, a time of a schedule, or both."""

    job_id: str
    tenant: str
    template: str | None
    template_version: int | None
    schedule_id: str | None
    schedule: str | None
    due_at: datetime | None


def version_of(place: Place) -> int:
    """Versions are listed by their numbers: a place in that list has one as its name."""
    if not place.name.isascii() or not place.name.isdigit() or len(place.name) > 9:
        raise unknown_place()
    return int(place.name)


def payload_text(payload: Mapping[str, Any] | None, what: str) -> str:
    if payload is not None and not isinstance(payload, Mapping):
        raise InvalidSetting(f"the payload of {what} must be a JSON object", code="invalid_payload")
    if payload is not None and HIDDEN in payload:
        raise InvalidSetting(
            f"the payload of {what} is the placeholder of a restricted payload", code="payload_reserved"
        )
    return own(encode(dict(payload or {}), limit=PAYLOAD_LIMIT, what=f"payload of {what}"))


def together(
    template: Template | None, payload: Mapping[str, Any], options: Mapping[str, Any], due: datetime
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The payload and the options of a job: what the template says, and on top of it what was said for this use."""
    if template is None:
        return dict(payload), job_options(options, due)
    return {**template.payload, **payload}, job_options({**template.options, **options}, due)


Missed = Literal["skip", "once", "all"]
Overlap = Literal["allow", "skip", "queue"]
FireStatus = Literal["fired", "skipped", "waiting", "missed", "failed"]

GRACE: Final = timedelta(seconds=60)
"""Later than this, a time is a missed one even if none has come after it."""
MOST_FIRED: Final = 100
"""How many missed times ``all`` makes up for, the latest; those before them stay missed."""
MOST_COUNTED: Final = 1000
"""How far missed times are counted."""
MOST_WAITING: Final = 100
"""How many times of one schedule wait under ``queue``; what comes on top is skipped."""
HOLD: Final = timedelta(seconds=30)
"""How long a schedule whose kind nobody runs is left alone before it is looked at again."""
LONGEST_JITTER: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule. ``attend_at`` is when a process must check it next: the next time plus jitter, or sooner if a
    time waits. ``revision`` counts its changes."""

    id: str
    tenant: str
    name: str
    state: str
    timing: str
    zone: str
    kind: str
    template: str | None
    payload: dict[str, Any]
    options: dict[str, Any]
    missed: Missed
    overlap: Overlap
    jitter: float
    declared_by: str | None
    declared_hash: str | None
    undeclared_at: datetime | None
    revision: int
    anchor_at: datetime
    next_fire_at: datetime | None
    attend_at: datetime | None
    last_fire_at: datetime | None
    problem: str | None
    created_by: str
    created_at: datetime
    updated_by: str
    updated_at: datetime

    @property
    def timed(self) -> Timing:
        return _timing(self.timing, self.zone)


@dataclass(frozen=True, slots=True)
class ScheduleRun:
    """The result of one time of a schedule. A row of missed times stands for ``count`` times since ``since_at``."""

    schedule_id: str
    tenant: str
    due_at: datetime
    manual: bool
    status: FireStatus
    job_id: str | None
    count: int
    since_at: datetime | None
    error_code: str | None
    error_message: str | None
    actor: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleDraft:
    """What people say of a schedule, checked. ``payload`` is JSON text."""

    name: str
    timing: Timing
    kind: str
    template: str | None = None
    payload: str = "{}"
    options: dict[str, Any]
    missed: Missed = "once"
    overlap: Overlap = "allow"
    jitter: float = 0.0

    @classmethod
    def of(
        cls,
        name: str,
        timing: str,
        *,
        kind: str,
        template: str | None = None,
        tz: str = "UTC",
        payload: Mapping[str, Any] | None = None,
        missed: str = "once",
        overlap: str = "allow",
        jitter: object = 0,
        options: Mapping[str, Any] | None = None,
    ) -> ScheduleDraft:
        spread = seconds(jitter, "jitter")
        if spread > LONGEST_JITTER:
            raise InvalidSetting("jitter must be at most one day", code="invalid_duration")
        return cls(
            name=check_name(name, "schedule"),
            timing=Timing.of(timing, tz),
            kind=check_name(kind, "kind"),
            template=None if template is None else check_name(template, "template"),
            payload=payload_text(payload, f"schedule {name}"),
            options=stored_options(options or {}),
            missed=_one_of(missed, Missed, "missed"),
            overlap=_one_of(overlap, Overlap, "overlap"),
            jitter=spread,
        )

    def digest(self) -> str:
        """The same for the same schedule, so that what the code says is compared with what it said before."""
        parts = [self.name, self.timing.text, self.timing.zone, self.kind, self.template, json.loads(self.payload)]
        said = [*parts, self.options, self.missed, self.overlap, self.jitter]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Firing:
    """One time that has come and what is to become of it: a job, or why there is none."""

    due_at: datetime
    action: Literal["fire", "missed", "failed"]
    job: JobSpec | None = None
    template_version: int | None = None
    count: int = 1
    since_at: datetime | None = None
    code: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """All that is to be done about one schedule, as it was read: nothing of it if it is not so any more.

    ``spare`` is the job for the longest waiting time, should there be one and nothing run any more.
    """

    schedule: Schedule
    firings: tuple[Firing, ...] = ()
    next_fire_at: datetime | None = None
    attend_at: datetime | None = None
    spare: Firing | None = None
    problem: str | None = None


@lru_cache(maxsize=4096)
def _timing(text: str, zone: str) -> Timing:
    """Many schedules have the same times, and to check them costs more than to find the next one."""
    return Timing.of(text, zone)


def _one_of(value: object, choices: Any, what: str) -> Any:
    known = get_args(choices)
    if value not in known:
        raise InvalidSetting(f"{what} must be one of {', '.join(known)}, not {value!r}", code="invalid_schedule")
    return value


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

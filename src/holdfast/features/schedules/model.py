"""Schedules and templates: records, drafts, and the decision about due times. Pure.

A schedule creates jobs at its times; its policies decide about missed and overlapping times. A store applies a
``Decision`` completely, and only if the schedule has not changed since it was read, so two processes cannot both apply
it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, TypedDict, get_args

from holdfast.engine.declared import Help
from holdfast.engine.job import JobSpec
from holdfast.engine.job_options import TemplateOptions, job_options, stored_options
from holdfast.engine.names import NamedKind, PagePosition, check_name, malformed_cursor
from holdfast.engine.payload import encode, refuse_reserved
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidSetting
from holdfast.features.payloads.model import HIDDEN
from holdfast.features.schedules.recurrence import Timing

PAYLOAD_LIMIT: Final = 1_048_576


Payload = Annotated[
    Mapping[str, Any] | None,
    Help("Arguments of the jobs: JSON, @file, or - for stdin.", "PAYLOAD", argument=True),
]


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
    """A checked template definition, ready to be stored; ``payload`` is JSON text."""

    name: str
    kind: str
    payload: str
    options: dict[str, Any]

    @classmethod
    def of(
        cls, name: str, kind: str | NamedKind, payload: Mapping[str, Any] | None, options: Mapping[str, Any]
    ) -> TemplateDraft:
        return cls(
            name=check_name(name, "template"),
            kind=check_name(kind, "kind"),
            payload=payload_text(payload, f"template {name}"),
            options=stored_options(options),
        )


@dataclass(frozen=True, slots=True)
class MadeFrom:
    """The origin of a job: a version of a template, a time of a schedule, or both."""

    job_id: str
    tenant: str
    template: str | None
    template_version: int | None
    schedule_id: str | None
    schedule: str | None
    due_at: datetime | None


def version_of(place: PagePosition) -> int:
    """The version number in a cursor: lists of versions use it as the name."""
    if not place.name.isascii() or not place.name.isdigit() or len(place.name) > 9:
        raise malformed_cursor()
    return int(place.name)


def payload_text(payload: Mapping[str, Any] | None, what: str) -> str:
    if payload is not None and not isinstance(payload, Mapping):
        raise InvalidSetting(f"the payload of {what} must be a JSON object", code="invalid_payload")
    if payload is not None and HIDDEN in payload:
        raise InvalidSetting(
            f"the payload of {what} is the placeholder of a restricted payload", code="payload_reserved"
        )
    return refuse_reserved(encode(dict(payload or {}), limit=PAYLOAD_LIMIT, what=f"payload of {what}"))


def job_arguments(
    template: Template | None, payload: Mapping[str, Any], options: Mapping[str, Any], due: datetime
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The payload and the options of a job: the template's, overridden by those of this use."""
    if template is None:
        return dict(payload), job_options(options, due)
    return {**template.payload, **payload}, job_options({**template.options, **options}, due)


Missed = Literal["skip", "once", "all"]
Overlap = Literal["allow", "skip", "queue"]
FireStatus = Literal["fired", "skipped", "waiting", "missed", "failed"]

When = str | float | timedelta
"""A cron expression, ``@daily``, ``every 15m`` or ``at 2027-01-31 09:00``; a number of seconds or a timedelta is an
interval."""


class ScheduleSettings(TypedDict, total=False):
    kind: Annotated[str | NamedKind | None, Help("Job kind to enqueue.", "NAME")]
    template: Annotated[str | None, Help("Template to enqueue instead of a kind.", "NAME")]
    tz: Annotated[str | None, Help("Time zone: Europe/Paris; default: UTC.", "ZONE")]
    payload: Payload
    missed: Annotated[Missed | None, Help("Missed times: skip them, fire once, or fire all (up to 100).", "HOW")]
    overlap: Annotated[Overlap | None, Help("If the previous job still runs: allow another, skip, or queue.", "HOW")]
    jitter: Annotated[Duration | None, Help("Random delay of up to: 30s, 5m.", "SPAN")]


class ScheduleOptions(ScheduleSettings, TemplateOptions, total=False):
    """The definition of a schedule. The jobs are of a kind, or made from a template."""


class ScheduleChanges(ScheduleOptions, total=False):
    timing: Annotated[When | None, Help("New times.", "WHEN", longest=200, wire=str | float | None)]


GRACE: Final = timedelta(seconds=60)
"""A time that is later than this counts as missed, even if it is the latest."""
MOST_FIRED: Final = 100
"""The number of missed times, the latest, that the policy ``all`` fires. Earlier ones stay missed."""
MOST_COUNTED: Final = 1000
"""The most missed times that are counted."""
MOST_WAITING: Final = 100
"""The most times of one schedule that wait under the policy ``queue``. Further ones are skipped."""
HOLD: Final = timedelta(seconds=30)
"""How long a schedule is postponed if no worker handles its kind."""
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

    @property
    def in_words(self) -> str:
        """The timing in words, or why it is invalid."""
        try:
            return self.timed.words
        except InvalidSetting as error:  # written by hand, or in a zone that this machine does not have
            return error.message

    @property
    def is_declared(self) -> bool:
        """Whether the code of a program declares it: a worker creates it again after it was deleted."""
        return self.declared_by is not None and self.undeclared_at is None

    @property
    def trouble(self) -> str | None:
        """Why it does not fire, or needs attention otherwise."""
        if self.problem == "unknown_kind":
            return f"no running worker has a handler for {self.kind}"
        if self.problem is not None:
            return f"the last run failed: {self.problem}"
        if self.undeclared_at is not None:
            return f"the code of {self.declared_by} no longer declares it"
        return None


@dataclass(frozen=True, slots=True)
class ScheduleRun:
    """The result of one time of a schedule. A row of missed times represents ``count`` times since ``since_at``."""

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


SETTINGS: Final = ("kind", "template", "options", "missed", "overlap", "jitter")
"""What a draft and a stored schedule have in common, besides the name and the payload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleDraft:
    """A checked schedule definition; ``payload`` is JSON text."""

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
    def of(cls, name: str, timing: object, *, kind: str, **definition: Any) -> ScheduleDraft:
        """Check the ``ScheduleOptions``; None is the default."""
        given = {option: value for option, value in definition.items() if value is not None}
        template, payload = given.pop("template", None), given.pop("payload", None)
        jitter = seconds(given.pop("jitter", 0), "jitter")
        if jitter > LONGEST_JITTER:
            raise InvalidSetting("jitter must be at most one day", code="invalid_duration")
        return cls(
            name=check_name(name, "schedule"),
            timing=Timing.of(timing, given.pop("tz", "UTC")),
            kind=check_name(kind, "kind"),
            template=None if template is None else check_name(template, "template"),
            payload=payload_text(payload, f"schedule {name}"),
            missed=_one_of(given.pop("missed", "once"), Missed, "missed"),
            overlap=_one_of(given.pop("overlap", "allow"), Overlap, "overlap"),
            jitter=jitter,
            options=stored_options(given),
        )

    def digest(self) -> str:
        """A hash of the definition, to see whether the code declares a schedule differently than before."""
        parts = [self.name, self.timing.text, self.timing.zone, json.loads(self.payload)]
        parts += [getattr(self, setting) for setting in SETTINGS]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Firing:
    """A due time and its result: a job, or why there is none."""

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
    """What to do about one schedule as it was read. The store applies all of it, or nothing if the schedule has
    changed.

    ``spare`` is a job for the longest waiting time, used if one waits and no job of the schedule runs any more.
    """

    schedule: Schedule
    firings: tuple[Firing, ...] = ()
    next_fire_at: datetime | None = None
    attend_at: datetime | None = None
    spare: Firing | None = None
    problem: str | None = None


@lru_cache(maxsize=4096)
def _timing(text: str, zone: str) -> Timing:
    """Cached: many schedules have the same timing, and checking one costs more than finding its next time."""
    return Timing.of(text, zone)


def _one_of(value: object, choices: Any, what: str) -> Any:
    known = get_args(choices)
    if value not in known:
        raise InvalidSetting(f"{what} must be one of {', '.join(known)}, not {value!r}", code="invalid_schedule")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A draft with its next time, ready to be stored. The id is chosen here because the jitter depends on it."""

    id: str
    draft: ScheduleDraft
    anchor: datetime
    next_fire_at: datetime | None
    attend_at: datetime | None
    declared_by: str | None = None
    declared_hash: str | None = None

    @classmethod
    def at(cls, id: str, draft: ScheduleDraft, now: datetime, anchor: datetime | None = None) -> Placed:
        """Place a draft from now on; earlier times do not count. A schedule without a future time is refused."""
        begin = now.replace(microsecond=0) if anchor is None else anchor
        following = draft.timing.next(now, begin)
        if following is None:
            raise InvalidSetting(f"schedule {draft.name} has no future time: {draft.timing.text}", code="schedule_over")
        attend = following + _jitter(id, draft.jitter, following)
        return cls(id=id, draft=draft, anchor=begin, next_fire_at=following, attend_at=attend)

    def declared(self, by: str | None, hash: str | None) -> Placed:
        return dataclasses.replace(self, declared_by=by, declared_hash=hash)

    def declared_as(self, read: Schedule) -> Placed:
        """The same, declared by the program that declared the stored schedule, if any."""
        return self.declared(read.declared_by, read.declared_hash)

    @property
    def state(self) -> str:
        return "ended" if self.next_fire_at is None else "active"

    def columns(self, state: str) -> dict[str, Any]:
        """The values of the columns that a definition sets. Only an active schedule has an ``attend_at``."""
        return {
            **{name: getattr(self.draft, name) for name in ("payload", *SETTINGS)},
            "state": state,
            "timing": self.draft.timing.text,
            "zone": self.draft.timing.zone,
            "declared_by": self.declared_by,
            "declared_hash": self.declared_hash,
            "anchor_at": self.anchor,
            "next_fire_at": self.next_fire_at,
            "attend_at": self.attend_at if state == "active" else None,
        }


def draft_of(read: Schedule) -> ScheduleDraft:
    """The definition of a stored schedule."""
    settings: dict[str, Any] = {name: getattr(read, name) for name in ("name", *SETTINGS)}
    return ScheduleDraft(timing=Timing.of(read.timing, read.zone), payload=json.dumps(read.payload), **settings)


def changed(read: Schedule, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a schedule with these changes. None removes an option."""
    own = {name: getattr(read, name) for name in ("payload", *SETTINGS) if name != "options"} | {"tz": read.zone}
    if read.template is not None or "kind" in changes or "template" in changes:
        own.pop("kind")
    if "kind" in changes:
        own.pop("template")
    return {**read.options, **own, **changes}


def redefined(read: Schedule, draft: ScheduleDraft, now: datetime) -> Placed:
    """A stored schedule with a new definition. The next time stays if timing, zone and jitter do."""
    same = (draft.timing.text, draft.timing.zone, draft.jitter) == (read.timing, read.zone, read.jitter)
    if same and read.next_fire_at is not None:
        return with_same_times(read, draft).declared_as(read)
    anchor = read.anchor_at if draft.timing.text == read.timing else None
    return Placed.at(read.id, draft, now, anchor).declared_as(read)


def with_same_times(read: Schedule, draft: ScheduleDraft) -> Placed:
    return Placed(
        id=read.id, draft=draft, anchor=read.anchor_at, next_fire_at=read.next_fire_at, attend_at=read.attend_at
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """Which of the due times are fired, which were missed, and the next time."""

    fire: tuple[datetime, ...]
    missed: tuple[datetime, ...]
    next_fire_at: datetime | None


def plan(schedule: Schedule, now: datetime) -> Plan:
    """Apply the schedule's policy for missed times to the times from ``next_fire_at`` to now."""
    timing, expected = schedule.timed, schedule.next_fire_at
    if expected is None:
        return Plan((), (), None)
    due = timing.last(expected, now, schedule.anchor_at, MOST_COUNTED)
    if not due:  # the rules of the time zone have changed, and with them the next time
        return Plan((), (), timing.next(now, schedule.anchor_at))
    while due and due[-1] + jitter_of(schedule, due[-1]) > now:
        due.pop()  # its jitter has not passed yet
    if not due:
        return Plan((), (), expected)
    after = timing.next(due[-1], schedule.anchor_at)
    late = now - (due[-1] + jitter_of(schedule, due[-1])) > GRACE
    match schedule.missed:
        case "all":
            fired = due[-MOST_FIRED:]
        case "once":
            fired = due[-1:]
        case _:
            fired = [] if late else due[-1:]
    return Plan(tuple(fired), tuple(due[: len(due) - len(fired)]), after)


def jitter_of(schedule: Schedule, due: datetime) -> timedelta:
    """The delay of this time: the same in every process, and different for every schedule."""
    return _jitter(schedule.id, schedule.jitter, due)


def _jitter(schedule_id: str, jitter: float, due: datetime) -> timedelta:
    if not jitter:
        return timedelta(0)
    drawn = hashlib.sha256(f"{schedule_id} {due.isoformat()}".encode()).digest()[:8]
    return timedelta(seconds=jitter * int.from_bytes(drawn) / 2**64)

"""Schedules (SC-9): when jobs are made by themselves, and what becomes of times that were missed or overlap.

A store applies a ``Decision`` complete, and only if the schedule is still as it was read, so that no second process can
apply it once more. What is decided is in ``placing``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, Literal, get_args

from holdfast.domain.templates import payload_text, stored_options
from holdfast.domain.timing import Timing
from holdfast.engine.job import JobSpec
from holdfast.engine.names import check_name
from holdfast.engine.units import seconds
from holdfast.errors import InvalidSetting

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
    """A schedule as it is stored. ``attend_at`` is when a process must look at it next: the next fire with its jitter,
    or sooner when something waits. ``revision`` counts the changes that people and programs made."""

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
class Fire:
    """What became of one time of a schedule. A row of missed times stands for ``count`` of them, from ``since_at``."""

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
            raise InvalidSetting("jitter is at most a day", code="invalid_duration")
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
        raise InvalidSetting(f"{what} is one of {', '.join(known)}, not {value!r}", code="invalid_schedule")
    return value

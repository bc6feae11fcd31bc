"""Figures of queues and workers, now and over a range of time. Pure.

The dashboard, ``/metrics`` and ``holdfast top`` share them. A read costs the same for any number of jobs: counts stop
at ``CAP``, and recent activity comes from the last ``LATELY`` events of the ledger. ``capped``: a count
stopped.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

LATELY: Final = 3_000
WINDOW: Final = 60.0
MAX_QUEUES: Final = 200
MAX_WORKERS: Final = 200
MAX_FAILURES: Final = 10

# The ends of attempts, by the event type in the ledger.
ENDS: Final = {"succeed": "succeeded", "fail": "failed", "crash": "crashed", "lease_expired": "lost"}
FAILURES: Final = frozenset({"fail", "crash", "lease_expired"})

# The format of ``engine.job.holder_of_ours``.
_HOLDER: Final = re.compile(r"worker (?P<id>[0-9a-f-]{36}) \((?P<host>.*):(?P<pid>[0-9]+)\)")


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """``waiting`` jobs may start; ``scheduled`` ones wait for a time or are held back; ``retrying`` ones wait for their
    next attempt."""

    queue: str
    waiting: int = 0
    scheduled: int = 0
    retrying: int = 0
    running: int = 0
    oldest_age_s: float | None = None
    """The longest wait among the jobs at the head of the queue and the first of the lowest priority."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A running worker: the holder of a live lease, what it serves and what it runs. None: the worker did not say."""

    label: str
    holder: str
    tenant: str
    kinds: tuple[str, ...] | None
    queues: tuple[str, ...] | None
    slots: int | None
    busy: int
    opened_at: datetime
    renewed_at: datetime
    until: datetime
    version: str | None = None
    stop_request: str | None = None
    """``drain`` or ``stop`` after an operator's request."""
    stop_requested_at: datetime | None = None
    stop_requested_by: str | None = None
    job_ids: tuple[str, ...] = ()
    """Ids of its running jobs, of this tenant; the first twenty."""
    app_version: str | None = None
    """The version of the application; ``version`` is that of Holdfast."""

    id: str = field(init=False)
    """The UUID of a Holdfast worker; the whole holder of any other."""
    host: str | None = field(init=False)
    pid: int | None = field(init=False)

    def __post_init__(self) -> None:
        match = _HOLDER.fullmatch(self.holder)
        parts = (match["id"], match["host"], int(match["pid"])) if match else (self.holder, None, None)
        for name, value in zip(("id", "host", "pid"), parts, strict=True):
            object.__setattr__(self, name, value)


@dataclass(frozen=True, slots=True)
class Failure:
    """A recent failed attempt."""

    job_id: str
    tenant: str
    kind: str
    type: str
    attempt: int
    at: datetime
    error_code: str | None


@dataclass(frozen=True, slots=True)
class Rates:
    """Counts of the last ``seconds``: attempts by how they ended, and enqueued jobs. Read from the end of the
    ledger."""

    seconds: float = 0.0
    enqueued: int = 0
    ended: Mapping[str, int] = field(default_factory=dict)
    dead_letters: int = 0
    """Became dead letters."""

    def per_second(self, count: int) -> float:
        return count / self.seconds if self.seconds else 0.0

    @property
    def finished(self) -> int:
        return sum(self.ended.values())


@dataclass(frozen=True, slots=True)
class QueuesAndWorkers:
    """The queues and workers of a ``Statistics``, for pages that show nothing else."""

    at: datetime
    queues: tuple[QueueStatus, ...]
    workers: tuple[WorkerStatus, ...]
    capped: bool = False


@dataclass(frozen=True, slots=True)
class Statistics:
    at: datetime
    queues: tuple[QueueStatus, ...]
    workers: tuple[WorkerStatus, ...]
    approvals_open: int
    oldest_approval_age_s: float | None
    dead_letters: int
    schedules_late: int
    schedules_late_s: float
    rates: Rates
    failures: tuple[Failure, ...] = ()
    capped: bool = False


def rates_of(happened: Iterable[tuple[str, datetime]], now: datetime, whole: bool) -> Rates:
    """Rates from event types and times, newest first. ``whole``: all events of the window were read; otherwise the
    window is only as long as the events that were read."""
    events = [(event_type, max(0.0, (now - at).total_seconds())) for event_type, at in happened]
    recent = [event_type for event_type, age in events if age <= WINDOW]
    reach = WINDOW if whole or len(recent) < len(events) else max((age for _, age in events), default=WINDOW)
    counts = Counter(recent)
    ended = {name: counts[event_type] for event_type, name in ENDS.items() if counts[event_type]}
    return Rates(max(reach, 0.001), counts["enqueue"], ended, counts["dead_letter"])


MINUTE: Final = timedelta(minutes=1)
RANGES: Final[Mapping[str, tuple[timedelta, timedelta]]] = {
    "15m": (timedelta(minutes=15), MINUTE),
    "1h": (timedelta(hours=1), MINUTE),
    "6h": (timedelta(hours=6), 5 * MINUTE),
    "24h": (timedelta(hours=24), 30 * MINUTE),
    "7d": (timedelta(days=7), timedelta(hours=3)),
}
"""The ranges of a chart, each with the duration of one point."""
MAX_SERIES: Final = 6
OTHER: Final = "other"


@dataclass(frozen=True, slots=True)
class Point:
    """Counts of one point of a chart. ``failed`` counts attempts, lost workers included; the others count jobs."""

    at: datetime
    enqueued: float = 0
    succeeded: float = 0
    failed: float = 0


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles of ``of`` durations, in seconds."""

    of: int
    p50: float
    p95: float

    @classmethod
    def over(cls, values: Sequence[float]) -> Spread | None:
        if not values:
            return None
        ordered = sorted(values)
        last = len(ordered) - 1
        return cls(len(ordered), ordered[round(last * 0.5)], ordered[round(last * 0.95)])


@dataclass(frozen=True, slots=True)
class Due:
    """A schedule that fires next."""

    tenant: str
    name: str
    kind: str
    next_fire_at: datetime


@dataclass(frozen=True, slots=True)
class Activity:
    """Counts over a range of time. ``since`` is the start of the range, or later if more has happened than is read."""

    now: datetime
    since: datetime
    range: str = "1h"
    points: list[Point] = field(default_factory=list)
    wait: Spread | None = None
    run: Spread | None = None
    due: list[Due] = field(default_factory=list)
    estimated: bool = False
    """More has happened than is read: the points are estimated from samples."""
    series: Mapping[str, list[float]] = field(default_factory=dict)
    """Succeeded jobs of each point, per queue or kind, the busiest first."""

    def rate(self, what: str) -> float:
        """The rate of one field of the points, per minute."""
        span = max((self.now - self.since) / MINUTE, 1 / 60)
        return float(sum(getattr(point, what) for point in self.points) / span)

    def per_minute(self, at: datetime, count: float) -> float:
        """A count of one point as a rate. The last point is not over yet."""
        step = RANGES[self.range][1]
        return round(count / max(min(step, self.now - at) / MINUTE, 1.0), 2)

    @property
    def busy(self) -> bool:
        return any(point.enqueued or point.succeeded or point.failed for point in self.points)


def start_of(at: datetime, step: timedelta) -> datetime:
    """The start of the point that a time is in; points are aligned in UTC."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return epoch + (at - epoch) // step * step


def filled(points: Sequence[Point], since: datetime, now: datetime, step: timedelta) -> list[Point]:
    """Every point of the range once, including empty ones."""
    by_time = {point.at: point for point in points}
    first = start_of(since, step)
    return [by_time.get(at) or Point(at) for at in (first + n * step for n in range(int((now - first) / step) + 1))]


def range_of(ages: Iterable[timedelta]) -> str:
    """The most useful range of a chart for events of these ages: 15 minutes if it includes all of them, else the
    shortest from an hour on that includes the newest."""
    known = list(ages)
    if not known:
        return "1h"
    if max(known) <= RANGES["15m"][0]:
        return "15m"
    newest = min(known)
    return next((name for name, (span, _) in RANGES.items() if name != "15m" and newest <= span), "7d")


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """Figures of a queue over the last hour, or less if more has happened than is read. None: nothing ran."""

    queue: str
    last_enqueued_at: datetime | None = None
    per_minute: float | None = None
    failure_rate: float | None = None
    """The share of attempts that failed, from 0 to 1."""
    wait: Spread | None = None
    run: Spread | None = None


@dataclass(frozen=True, slots=True)
class Recent:
    """The newest jobs of one queue or one kind."""

    activity: Activity
    durations: list[tuple[datetime, float | None, float | None]] = field(default_factory=list)
    """For each point: p50 and p95 of the run time of succeeded jobs, in seconds."""
    states: Mapping[str, int] = field(default_factory=dict)
    others: Mapping[str, int] = field(default_factory=dict)
    """Jobs of a queue by kind, or of a kind by queue."""
    of: int = 0
    """Number of jobs that were read."""
    whole: bool = True
    """There are no more jobs than were read."""

"""Queue and worker figures now and over the last hour.

How the work stands at this moment, queue by queue, and who works: the one look of the dashboard, ``/metrics`` and
``holdfast top``. Pure.

A look must not cost more the more jobs there are: what is counted is counted up to ``CAP``, what happened of late is
read from the last ``LATELY`` events of the ledger. ``capped`` says that there is more of something than was counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

LATELY: Final = 3_000
WINDOW: Final = 60.0
MOST_QUEUES: Final = 200
MOST_WORKERS: Final = 200
MOST_FAILURES: Final = 10

# What ended an attempt, by the verb that the ledger has for it.
ENDS: Final = {"succeed": "succeeded", "fail": "failed", "crash": "crashed", "lapse": "lost"}
FAILURES: Final = frozenset({"fail", "crash", "lapse"})


@dataclass(frozen=True, slots=True)
class QueuePulse:
    """``waiting`` may be begun; ``scheduled`` waits for a time or is held back; ``retrying`` waits for its next try."""

    queue: str
    waiting: int = 0
    scheduled: int = 0
    retrying: int = 0
    running: int = 0
    oldest_age_s: float | None = None
    """How long the one waits that has waited longest, of those at the head and of the lowest priority."""


@dataclass(frozen=True, slots=True)
class WorkerPulse:
    """A lease that is alive: who holds it, what it takes, and how many jobs it has in hand. None: it did not say."""

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


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt that ended badly of late."""

    job_id: str
    tenant: str
    kind: str
    verb: str
    attempt: int
    at: datetime
    error_code: str | None


@dataclass(frozen=True, slots=True)
class Rates:
    """What happened in the last ``seconds``: by the end of an attempt, and enqueued. Read from the ledger's end."""

    seconds: float = 0.0
    enqueued: int = 0
    ended: Mapping[str, int] = field(default_factory=dict)
    buried: int = 0
    """Became dead letters."""

    def per_second(self, count: int) -> float:
        return count / self.seconds if self.seconds else 0.0

    @property
    def finished(self) -> int:
        return sum(self.ended.values())


@dataclass(frozen=True, slots=True)
class Standing:
    """The part of the pulse that pages show: queues and workers."""

    at: datetime
    queues: tuple[QueuePulse, ...]
    workers: tuple[WorkerPulse, ...]
    capped: bool = False


@dataclass(frozen=True, slots=True)
class Pulse:
    at: datetime
    queues: tuple[QueuePulse, ...]
    workers: tuple[WorkerPulse, ...]
    gates_open: int
    oldest_gate_age_s: float | None
    dead_letters: int
    schedules_late: int
    schedules_late_s: float
    rates: Rates
    failures: tuple[Failure, ...] = ()
    capped: bool = False


def rates_of(happened: Iterable[tuple[str, datetime]], now: datetime, whole: bool) -> Rates:
    """Of verbs and their times, newest first. ``whole``: there was no more, so the window is the usual one; otherwise
    it reaches back as far as what was read does."""
    told = [(verb, max(0.0, (now - at).total_seconds())) for verb, at in happened]
    recent = [verb for verb, age in told if age <= WINDOW]
    reach = WINDOW if whole or len(recent) < len(told) else max((age for _, age in told), default=WINDOW)
    counts = Counter(recent)
    ended = {word: counts[verb] for verb, word in ENDS.items() if counts[verb]}
    return Rates(max(reach, 0.001), counts["enqueue"], ended, counts["bury"])


SPAN: Final = timedelta(hours=1)
MINUTE: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Minute:
    """What the ledger says of one minute. ``failed`` are attempts, as lost workers are; the rest are jobs."""

    at: datetime
    enqueued: float = 0
    succeeded: float = 0
    failed: float = 0


@dataclass(frozen=True, slots=True)
class Spread:
    """Of so many, in seconds."""

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
class Hour:
    """``since`` is from when on the ledger was read: an hour back, or less where more has happened than is read."""

    now: datetime
    since: datetime
    minutes: list[Minute] = field(default_factory=list)
    wait: Spread | None = None
    run: Spread | None = None
    due: list[Due] = field(default_factory=list)
    estimated: bool = False
    """More has happened than is read: the minutes are reckoned from samples."""

    def rate(self, what: str) -> float:
        """So many a minute, over what was read."""
        span = max((self.now - self.since) / MINUTE, 1 / 60)
        return float(sum(getattr(minute, what) for minute in self.minutes) / span)


def filled(minutes: Sequence[Minute], since: datetime, now: datetime) -> list[Minute]:
    """Each minute of the span once, also those in which nothing happened."""
    known = {minute.at: minute for minute in minutes}
    first = since.replace(second=0, microsecond=0)
    return [known.get(at) or Minute(at) for at in (first + n * MINUTE for n in range(int((now - first) / MINUTE) + 1))]

"""How the last hour went, and what is due next: what the overview draws beside the pulse. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

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

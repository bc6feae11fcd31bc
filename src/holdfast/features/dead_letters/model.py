"""Groups; ``Operation``, rates, progress."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from holdfast.engine.times import instant_or_none
from holdfast.errors import InvalidInput, InvalidSetting

BulkVerb = Literal["cancel", "redrive", "discard"]
BULK_VERBS: Final = ("cancel", "redrive", "discard")
BATCH: Final = 100
"""Jobs in one transaction: their locks are kept for a few milliseconds."""
WINDOW: Final = 1_000
"""How many jobs are looked at for one batch where most may have ended already."""
COUNTED: Final = 100_000
"""Up to how many are counted when an operation begins."""
LEAST_RATE: Final = 0.001
MOST_RATE: Final = 1_000_000.0


@dataclass(frozen=True, slots=True)
class Operation:
    """One of them, and how far it has come."""

    id: str
    tenant: str
    verb: BulkVerb
    wanted: dict[str, Any]
    """Which jobs: the names and values of a filter."""
    reason: str | None
    max_retries: int | None
    rate: float | None
    """At most so many jobs a second."""
    state: str
    """``running``, ``done`` or ``cancelled``."""
    total: int
    """How many there were when it began; more, if ``capped``."""
    capped: bool
    done: int
    refused: int
    refusals: dict[str, int]
    """How many for which reason."""
    place: str | None
    created_by: str
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    cancelled_by: str | None
    cancelled_reason: str | None

    @property
    def over(self) -> bool:
        return self.state != "running"

    @property
    def fraction(self) -> float | None:
        """How far it has come; None where nobody knows how far it is."""
        if self.state == "done":
            return 1.0
        if self.capped or not self.total:
            return None
        return min(1.0, (self.done + self.refused) / self.total)

    @property
    def batch(self) -> int:
        """How many jobs at a time: what the rate allows in about a second."""
        return BATCH if self.rate is None else max(1, min(BATCH, math.floor(self.rate)))


@dataclass(frozen=True, slots=True)
class Starting:
    """An operation about to be started."""

    id: str
    verb: BulkVerb
    reason: str | None = None
    max_retries: int | None = None
    rate: float | None = None


def check_rate(rate: object) -> float | None:
    """Jobs a second; None for as fast as it goes."""
    if rate is None:
        return None
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not LEAST_RATE <= rate <= MOST_RATE:
        raise InvalidSetting("a rate is a number of jobs a second, from 0.001 to 1,000,000", code="invalid_rate")
    return float(rate)


def check_verb(verb: object) -> BulkVerb:
    if verb not in BULK_VERBS:
        raise InvalidSetting(f"a bulk operation is one of {', '.join(BULK_VERBS)}, not {verb!r}", code="unknown_verb")
    return verb


Order = Literal["last", "count"]
ORDERS: Final = ("last", "count")
NOTE_LIMIT: Final = 2_000


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """Failures that are one and the same. ``fingerprint`` is its name within the tenant."""

    tenant: str
    fingerprint: str
    kind: str
    error_code: str
    error_message: str
    """Of the sample."""
    frame: str | None
    """Where in the user's own code: ``module:function``."""
    sample_job: str
    """The job that was buried last."""
    first_at: datetime
    last_at: datetime
    times: int
    """How often a job was buried for it."""
    open: int
    """How many of them nobody has redriven or discarded."""
    note: str | None
    noted_by: str | None
    noted_at: datetime | None

    @property
    def cursor(self) -> str:
        """What the next page begins after, in either order."""
        return f"{self.last_at.timestamp():.6f}/{self.open}/{self.fingerprint}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFilter:
    """Which groups, the newest or the largest first. ``after`` is the cursor of the last one of the page before."""

    tenant: str
    kind: str | None = None
    queue: str | None = None
    text: str | None = None
    """Somewhere in the code, the message, the place or the note."""
    since: datetime | None = None
    """Seen since."""
    order: Order = "last"
    resolved: bool = False
    """Also those that have nothing open any more."""
    limit: int = 50
    after: str | None = None

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise InvalidSetting(f"groups are ordered by {' or '.join(ORDERS)}, not {self.order!r}")
        instant_or_none(self.since, "since")
        self.place()

    def place(self) -> tuple[float, int, str] | None:
        """Behind which time or number, and which fingerprint."""
        if self.after is None:
            return None
        try:
            last, opened, fingerprint = self.after.split("/", 2)
            return float(last), int(opened), fingerprint
        except ValueError:
            raise InvalidInput(f"{self.after!r} is not a cursor of dead letters", code="invalid_cursor") from None


@dataclass(frozen=True, slots=True)
class Remade:
    """How a job that was redriven with another payload and the one in its place name each other."""

    job_id: str
    new_id: str
    by: str
    at: datetime

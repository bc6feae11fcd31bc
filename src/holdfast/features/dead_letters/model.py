"""Groups of dead letters, and bulk operations with their rate and progress."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from holdfast.engine.times import instant_or_none
from holdfast.errors import InvalidInput, InvalidSetting

BulkAction = Literal["cancel", "redrive", "discard"]
BULK_ACTIONS: Final = ("cancel", "redrive", "discard")
BATCH: Final = 100
"""Jobs in one transaction, so that their locks are held for only a few milliseconds."""
WINDOW: Final = 1_000
"""Jobs that are read for one batch if many of them may have ended already."""
COUNTED: Final = 100_000
"""Limit of the count of matching jobs when an operation starts."""
MIN_RATE: Final = 0.001
MAX_RATE: Final = 1_000_000.0


@dataclass(frozen=True, slots=True)
class Operation:
    """A bulk operation and its progress."""

    id: str
    tenant: str
    action: BulkAction
    wanted: dict[str, Any]
    """The filter that selects the jobs."""
    reason: str | None
    max_attempts: int | None
    rate: float | None
    """Maximum jobs per second."""
    state: str
    """``running``, ``done`` or ``cancelled``."""
    total: int
    """Number of matching jobs at the start; ``capped`` if there were more."""
    capped: bool
    done: int
    refused: int
    refusals: dict[str, int]
    """Number of refusals by reason."""
    place: str | None
    created_by: str
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    cancelled_by: str | None
    cancelled_reason: str | None
    run_at: datetime | None = None
    """Earliest start of the redriven jobs."""

    @property
    def over(self) -> bool:
        return self.state != "running"

    @property
    def fraction(self) -> float | None:
        """Fraction from 0 to 1, or None if unknown."""
        if self.state == "done":
            return 1.0
        if self.capped or not self.total:
            return None
        return min(1.0, (self.done + self.refused) / self.total)

    @property
    def batch(self) -> int:
        """The number of jobs in a batch: as many as the rate allows in about a second."""
        return BATCH if self.rate is None else max(1, min(BATCH, math.floor(self.rate)))


@dataclass(frozen=True, slots=True)
class NewOperation:
    """A bulk operation that is about to be started."""

    id: str
    action: BulkAction
    reason: str | None = None
    max_attempts: int | None = None
    rate: float | None = None
    at: datetime | None = None
    delay: float | None = None
    """Redriven jobs do not start before this time, or this delay after the start of the operation."""


def check_rate(rate: object) -> float | None:
    """Check a rate in jobs per second; None means no limit."""
    if rate is None:
        return None
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not MIN_RATE <= rate <= MAX_RATE:
        raise InvalidSetting("a rate must be a number of jobs per second from 0.001 to 1,000,000", code="invalid_rate")
    return float(rate)


def check_action(action: object) -> BulkAction:
    if action not in BULK_ACTIONS:
        raise InvalidSetting(
            f"a bulk operation must be one of {', '.join(BULK_ACTIONS)}, not {action!r}", code="unknown_action"
        )
    return action


Order = Literal["last", "count"]
ORDERS: Final = ("last", "count")
NOTE_LIMIT: Final = 2_000


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """Dead letters with the same error. ``fingerprint`` is the group's name within the tenant."""

    tenant: str
    fingerprint: str
    kind: str
    error_code: str
    error_message: str
    """The error message of the sample."""
    frame: str | None
    """Location in your code: ``module:function``."""
    sample_job: str
    """The newest dead letter of the group."""
    first_at: datetime
    last_at: datetime
    times: int
    """Number of failures in the group."""
    open: int
    """Number of open dead letters, neither redriven nor discarded."""
    note: str | None
    noted_by: str | None
    noted_at: datetime | None

    @property
    def cursor(self) -> str:
        """The cursor of a page that begins after this group, in either order."""
        return f"{self.last_at.timestamp():.6f}/{self.open}/{self.fingerprint}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFilter:
    """Which groups to list, newest or largest first. ``after`` is the cursor of the last group of the previous page."""

    tenant: str
    kind: str | None = None
    queue: str | None = None
    text: str | None = None
    """Text in the error code, the message, the location or the note."""
    since: datetime | None = None
    """Only groups with a failure since this time."""
    order: Order = "last"
    resolved: bool = False
    """Include groups without open dead letters."""
    limit: int = 50
    after: str | None = None

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise InvalidSetting(f"groups can be sorted by {' or '.join(ORDERS)}, not {self.order!r}")
        instant_or_none(self.since, "since")
        self.position()

    def position(self) -> tuple[float, int, str] | None:
        """The time, the number of open dead letters and the fingerprint that ``after`` contains."""
        if self.after is None:
            return None
        try:
            last_at, open_count, fingerprint = self.after.split("/", 2)
            return float(last_at), int(open_count), fingerprint
        except ValueError:
            raise InvalidInput(
                f"{self.after!r} is not a cursor of the dead letter list", code="invalid_cursor"
            ) from None


@dataclass(frozen=True, slots=True)
class Replacement:
    """The link between a dead letter that was redriven with another payload and the job that replaced it."""

    job_id: str
    new_id: str
    by: str
    at: datetime

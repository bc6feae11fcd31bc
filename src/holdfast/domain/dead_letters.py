"""Dead letters as people look at them: in groups that failed for one and the same reason (``fingerprint.py``)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from holdfast.engine.times import instant_or_none
from holdfast.errors import InvalidInput, InvalidSetting

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

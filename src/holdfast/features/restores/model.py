"""What can be told about a database that was restored, replicated or upgraded."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

COUNTED: Final = 10_000
"""Limit of each count of unread events."""
LISTED: Final = 20
"""Jobs and schedules that a report names."""

Origin = Literal["here", "copied", "recovered", "standby", "unknown"]
"""``here``: the database continues where it was. ``copied``: restored from a dump, or replicated; it refuses work until
it is adopted. ``recovered``: from the files of a server, by a backup or a failover. ``standby``: its server follows
another one. ``unknown``: an embedded database, which does not show whether it was copied."""


@dataclass(frozen=True, slots=True)
class Unread:
    """A consumer or a subscription, and how many of the events in the database it has not read, up to a limit. What it
    read after the copy was made it reads again."""

    tenant: str
    name: str
    events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    """The moment that the database is at, and what happens again when its programs start."""

    origin: Origin
    epoch: int
    """How often the database was adopted."""
    adopted_at: datetime | None
    """When it was adopted last; in epoch 0, when it was created or upgraded."""
    last_event: int | None
    """The number of the newest event: what happened after it is missing."""
    last_event_at: datetime | None
    running: int
    """Jobs that were running. Workers take them over, and they run again."""
    running_jobs: tuple[str, ...]
    """The first of them."""
    missed: tuple[str, ...]
    """Schedules with times that have passed, most overdue first, as ``tenant/name``. They fire by their policy."""
    unread: tuple[Unread, ...]
    seal: int | None
    """The newest seal: anchors with a greater number were taken after the copy was made."""
    sealed_at: datetime | None

    @property
    def must_adopt(self) -> bool:
        """Whether the database refuses work, or outside readers may skip events, until it is adopted."""
        return self.origin in ("copied", "recovered")

"""Direct reservations (SC-10): the right to use something oneself, while no job is begun there."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

ReservationState = Literal["waiting", "active", "released", "expired", "withdrawn"]


@dataclass(frozen=True, slots=True)
class Reservation:
    """Who reserved what, since when, and how it ended. The tenant ``*`` keeps everybody's jobs away."""

    id: str
    tenant: str
    scope: str
    name: str
    state: ReservationState
    holder: str
    reason: str | None
    asked_at: datetime
    reserved_at: datetime | None
    expires_at: datetime
    ended_at: datetime | None
    ended_by: str | None
    ended_why: str | None

    @property
    def what(self) -> str:
        return "everything" if self.scope == "all" else f"{self.scope} {self.name}"


@dataclass(frozen=True, slots=True)
class Reserved(Reservation):
    """The same for whoever has just asked: ``running`` jobs are under way there, ``ahead`` others before it in line."""

    running: int
    ahead: int


@dataclass(frozen=True, slots=True)
class Ask:
    """What somebody asks for, again and again under one id: that keeps it alive for ``ttl`` seconds more."""

    id: str
    scope: str
    name: str
    ttl: float
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """Where whoever asked stands: ``ahead`` are before it in the line, ``running`` jobs under way in its scope."""

    state: ReservationState
    running: int
    ahead: int


NOBODYS: Final = Standing("withdrawn", 0, 0)
"""Of an id that is another tenant's."""


@dataclass(frozen=True, slots=True)
class QueueSetting:
    """A queue in which waiting counts: ``aging_step`` of priority for each ``aging`` seconds, up to ``aging_most``."""

    tenant: str
    queue: str
    aging: float
    aging_step: int
    aging_most: int
    set_by: str
    updated_at: datetime

"""Direct reservations (SC-10): the right to use something oneself, while no job is begun there."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from holdfast.errors import Conflict

# How soon whoever waits for its turn looks again: quickly at first, then at leisure.
LOOK_EVERY: Final = (0.1, 0.1, 0.1, 0.2, 0.2, 0.3)
LOOK_LATER: Final = 0.5
SHORTEST, LONGEST, TTL = 0.1, 3600.0, 30.0

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


def is_begun(standing: Standing | Reserved, *, at_once: bool) -> bool:
    """Whether the block of whoever asked may begin; ``reservation_lost`` when it was ended by somebody else."""
    if standing.state in ("released", "expired", "withdrawn"):
        raise Conflict("the reservation was ended by somebody else", code="reservation_lost")
    return standing.state == "active" and (at_once or not standing.running)


def busy(what: str, standing: Standing | Reserved) -> Conflict:
    """It has waited long enough."""
    if standing.state == "active":
        why = f"{standing.running} jobs are still running there"
    else:
        why = f"{standing.ahead} others are before this one"
    return Conflict(
        f"{what} could not be reserved: {why}", code="reservation_busy", fix="Wait longer, or try again later."
    )


def outlived() -> Conflict:
    return Conflict(
        "the reservation had ended before the block did: jobs may have run meanwhile", code="reservation_lost"
    )


def why_left(error: BaseException | None) -> str:
    return "released" if error is None else f"left with {type(error).__name__}"


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

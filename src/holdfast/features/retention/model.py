"""Policies, previews; ``Usage``.

Retention (DP-16): for how long finished jobs are kept, and what goes when.

A policy names a tenant, a kind and a state, each of which may be ``*``, and says how long after its end a job is
*cleaned* (what it carried is gone, its tombstone and its ledger stay) and *purged* (all of it is gone). The most
specific policy decides alone; where none is, a job is kept for ever. ``*`` as the state is no word about dead letters:
somebody is still to look at them, so they go only by a policy that names them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final, Literal

from holdfast.engine.names import check_name
from holdfast.engine.times import instant
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidSetting

ANY: Final = "*"
ENDS: Final = ("succeeded", "failed", "cancelled", "dead_letter")
"""The states that a policy can name; ``*`` is the first three."""

Pass = Literal["clean", "purge", "prune", "delete", "idle"]
"""``delete``: what cleaned jobs had in the artifact store."""


@dataclass(frozen=True, slots=True)
class Retention:
    """A retention policy in seconds after the end of a job; None means forever. ``declared`` policies come from
    code."""

    tenant: str
    kind: str
    state: str
    clean_after: float | None
    purge_after: float | None
    declared: bool
    set_by: str
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """What is set, complete and checked."""

    kind: str = ANY
    state: str = ANY
    clean_after: float | None = None
    purge_after: float | None = None
    declared: bool = False

    @classmethod
    def of(
        cls,
        kind: str | None = None,
        state: str | None = None,
        clean_after: Duration | None = None,
        purge_after: Duration | None = None,
        declared: bool = False,
    ) -> RetentionRule:
        """As people say it. Neither age keeps for ever what a wider policy would let go."""
        clean = None if clean_after is None else seconds(clean_after, "clean_after")
        purge = None if purge_after is None else seconds(purge_after, "purge_after")
        if clean is not None and purge is not None and purge < clean:
            raise InvalidSetting("clean_after must be shorter than purge_after", code="invalid_retention")
        return cls(ANY if kind is None else check_name(kind, "kind"), check_state(state), clean, purge, declared)


@dataclass(frozen=True, slots=True)
class Swept:
    """One slice of a sweep: how many jobs were looked at, how many went, how many were due and had to stay because
    ``held_by`` has not read their ledger. ``more`` says that the pass goes on."""

    action: Pass
    looked: int
    done: int
    held: int
    held_by: str | None
    more: bool


IDLE: Final = Swept("idle", 0, 0, 0, None, False)
"""It was no pass's turn."""


@dataclass(frozen=True, slots=True)
class Preview:
    """What one policy would do now. Counts end at a limit, which ``capped`` says; ``oldest_at`` is the earliest end.
    One whose action is ``delete`` is of no policy: what cleaned jobs had in the artifact store and is still there."""

    tenant: str
    kind: str
    state: str
    action: Pass
    due: int
    capped: bool
    oldest_at: datetime | None
    held: int
    held_by: str | None


def check_state(state: str | None) -> str:
    if state is None or state == ANY:
        return ANY
    if state not in ENDS:
        raise InvalidSetting(
            f"{state!r} is not a state of retention policies",
            code="invalid_retention",
            fix=f"Use one of {', '.join(ENDS)}, or * for the first three.",
        )
    return state


def policy_for(policies: Iterable[Retention], tenant: str, kind: str, state: str) -> Retention | None:
    """The rule itself: of the policies that fit, the one that names the tenant, then the kind, then the state."""
    fitting = [each for each in policies if _fits(each, tenant, kind, state)]
    return min(fitting, key=lambda each: (each.tenant == ANY, each.kind == ANY, each.state == ANY), default=None)


def _fits(policy: Retention, tenant: str, kind: str, state: str) -> bool:
    return (
        policy.tenant in (ANY, tenant)
        and policy.kind in (ANY, kind)
        and (policy.state == state or (policy.state == ANY and state != "dead_letter"))
    )


By = Literal["day", "kind", "tenant"]
GROUPS: Final[tuple[By, ...]] = ("tenant", "kind", "day")
MILLION: Final = 1_000_000
MOST_COST: Final = 1e9
"""Units of one attempt. Sums are kept in millionths as whole numbers, so they are exact."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage of one group; fields it is not grouped by are None. ``failed`` and ``crashed`` count attempts, the
    others count jobs; ``expired`` jobs were denied or passed their deadline before they started. Times are in
    seconds."""

    tenant: str | None
    kind: str | None
    day: date | None
    enqueued: int
    started: int
    succeeded: int
    failed: int
    crashed: int
    dead: int
    cancelled: int
    expired: int
    run_time: float
    wait_time: float
    cost: float


COUNTS: Final = ("enqueued", "started", "succeeded", "failed", "crashed", "dead", "cancelled", "expired")


def check_groups(by: object) -> tuple[By, ...]:
    """In their own order, each once: ``"day"``, ``("kind", "day")``, or nothing for one sum of all."""
    names = (by,) if isinstance(by, str) else tuple(by) if isinstance(by, (list, tuple, set, frozenset)) else (by,)
    unknown = [name for name in names if name not in GROUPS]
    if unknown:
        raise InvalidSetting(
            f"usage can be grouped by {', '.join(GROUPS)}, not by {unknown[0]!r}",
            code="invalid_usage",
            fix='For example by="day".',
        )
    return tuple(group for group in GROUPS if group in names)


def check_day(value: object, today: datetime) -> date | None:
    """A date, a moment (its day, UTC), text such as ``2027-01-31``, or days back from today."""
    if value is None:
        return None
    if isinstance(value, datetime):
        return instant(value, "the day").date()
    if isinstance(value, date):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 36_600:
        return (today - timedelta(days=value)).date()
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError:
            pass
    raise InvalidSetting(f"{value!r} is not a day", code="invalid_usage", fix="For example 2027-01-31.")


def check_cost(units: object) -> float:
    """Units of one call, with six decimals: what is kept is exact."""
    if not isinstance(units, (int, float)) or isinstance(units, bool) or not math.isfinite(units):
        raise InvalidSetting(f"a cost must be a number, not {units!r}", code="invalid_cost")
    if not 0 <= units <= MOST_COST:
        raise InvalidSetting(f"a cost must be from 0 to {MOST_COST:,.0f}, not {units!r}", code="invalid_cost")
    return round(float(units), 6)


PREVIEWED = 10_000


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something in the artifact store that belonged to a job."""

    tenant: str
    job_id: str
    ref: str

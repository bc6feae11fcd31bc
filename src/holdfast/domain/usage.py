"""Usage (HK-5): what ran, for how long and at what cost, by tenant, kind and day. It outlives the jobs it counts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Final, Literal

from holdfast.engine.times import instant
from holdfast.errors import InvalidSetting

By = Literal["day", "kind", "tenant"]
GROUPS: Final[tuple[By, ...]] = ("tenant", "kind", "day")
MILLION: Final = 1_000_000
MOST_COST: Final = 1e9
"""Units of one attempt. Sums are kept in millionths as whole numbers, so they are exact."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Sums of one group; what it is not grouped by is None. ``failed`` and ``crashed`` are attempts, the other counts
    are jobs; ``expired`` were refused by people or ran out of time before they were begun. Times are in seconds."""

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
            f"usage is by {', '.join(GROUPS)}, not by {unknown[0]!r}", code="invalid_usage", fix='For example by="day".'
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
    raise InvalidSetting(f"{value!r} is no day", code="invalid_usage", fix="For example 2027-01-31.")


def check_cost(units: object) -> float:
    """Units of one call, with six decimals: what is kept is exact."""
    if not isinstance(units, (int, float)) or isinstance(units, bool) or not math.isfinite(units):
        raise InvalidSetting(f"a cost is a number, not {units!r}", code="invalid_cost")
    if not 0 <= units <= MOST_COST:
        raise InvalidSetting(f"a cost is from 0 to {MOST_COST:,.0f}, not {units!r}", code="invalid_cost")
    return round(float(units), 6)


def midnight(day: date) -> datetime:
    return datetime.combine(day, time())

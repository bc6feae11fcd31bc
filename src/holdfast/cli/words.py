"""Times and spans as people write and read them. The store's clock is the one that counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from holdfast.engine.units import seconds
from holdfast.errors import InvalidSetting

_STEPS = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s"))


def span(length: float | timedelta) -> str:
    """``0 ms``, ``120 ms``, ``1.2 s``, ``3 m 10 s``, ``2 h 5 m``, ``3 d 4 h``."""
    value = length.total_seconds() if isinstance(length, timedelta) else length
    if value < 0:
        return "-" + span(-value)
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    if value < 59.95:
        return f"{value:.1f} s"
    for unit, name, part, part_name in _STEPS:
        if value >= unit:
            whole, rest = divmod(value, unit)
            parts = int(rest // part)
            return f"{whole:.0f} {name}" + (f" {parts} {part_name}" if parts else "")
    return f"{value:.0f} s"  # the fraction of a second below a minute


def age(since: datetime, now: datetime) -> str:
    """How long ago; clocks that differ make no negative ones."""
    return span(max(0.0, (now - since).total_seconds()))


def rate(number: int | None, per: float | None, burst: int | None) -> str | None:
    """``100 in 1 m``, and how many of them at once, where that is not all."""
    if number is None or per is None:
        return None
    text = f"{number:,} in {span(per)}"
    return text if burst is None or burst == number else f"{text}, {burst:,} at once"


def moment(at: datetime) -> str:
    """Date and time in UTC, to the millisecond."""
    return f"{at.astimezone(UTC):%Y-%m-%d} {clock(at)}"


def clock(at: datetime) -> str:
    at = at.astimezone(UTC)
    return f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}"


def duration(text: str, what: str) -> float:
    """Seconds of ``90``, ``90s`` or ``1h30m``."""
    try:
        number = float(text)
    except ValueError:
        return seconds(text, what)
    return seconds(number if math.isfinite(number) else text, what)


def instant(text: str, what: str) -> datetime:
    """An ISO 8601 time. One without a zone could mean two things, and is refused."""
    try:
        found = datetime.fromisoformat(text)
        if found.tzinfo is not None:
            return found.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise InvalidSetting(
        f"{what} {text!r} is not a time with a zone",
        code="invalid_time",
        fix="For example 2027-01-31T09:00:00Z or 2027-01-31T09:00:00+02:00.",
    )


def time_or_span(text: str, what: str) -> datetime | float:
    """A time, or how long from now, in seconds."""
    try:
        return duration(text, what)
    except InvalidSetting:
        return instant(text, what)


def since(text: str | None, what: str, now: Callable[[], datetime]) -> datetime | None:
    """A time, or how long ago: ``1h`` is one hour before the store's present."""
    if text is None:
        return None
    try:
        return now() - timedelta(seconds=duration(text, what))
    except InvalidSetting:
        return instant(text, what)

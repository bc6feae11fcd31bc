"""The times that Holdfast accepts: years 1 to 9999 in UTC, the range of Python.

``instant`` refuses other times wherever a time comes in. ``clamped`` is for reading: a row that was written with plain
SQL must not prevent the reading of other rows.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from holdfast.errors import InvalidSetting

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)

EARLIEST, LATEST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
"""The first and the last accepted time."""
FIRST, LAST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
"""Replacements for times outside of the range. A day within it, because they may be shown in another time zone."""

FIX: Final = "For example datetime.now(UTC) + timedelta(minutes=5)."
WITHIN: Final = "Use a time in the years 1 to 9999, in UTC."


def instant(value: object, what: str) -> datetime:
    """The time in UTC, if every store accepts it; else ``InvalidSetting`` (``invalid_time``)."""
    if not isinstance(value, datetime):
        raise InvalidSetting(f"{what} must be a datetime, not {type(value).__name__}", code="invalid_time", fix=FIX)
    try:
        if value.utcoffset() is None:
            raise InvalidSetting(f"{what} must be a datetime with a time zone", code="invalid_time", fix=FIX)
        return value.astimezone(UTC)
    except (OverflowError, ValueError):  # a custom time zone may return anything
        raise InvalidSetting(f"{what} is out of range: {value}", code="invalid_time", fix=WITHIN) from None


def instant_or_none(value: object, what: str) -> datetime | None:
    return None if value is None else instant(value, what)


def clamped(micros: int) -> datetime:
    """Microseconds since 1970 as a time; ``FIRST`` or ``LAST`` if it is out of range."""
    try:
        return EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return FIRST if micros < 0 else LAST

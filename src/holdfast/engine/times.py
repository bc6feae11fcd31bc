"""The times that Holdfast keeps: UTC years 1 to 9999, which is what Python can hold.

``instant`` refuses other times at every entrance. ``clamped`` is for reading: a row that was written past the
entrances must not keep the other rows from being read.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from holdfast.errors import InvalidSetting

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)

EARLIEST, LATEST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
"""The limits of what is accepted."""
FIRST, LAST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
"""What stands for a time outside of them. A day within, because it may be shown in another time zone."""

FIX: Final = "For example datetime.now(UTC) + timedelta(minutes=5)."
WITHIN: Final = "Use a time in the years 1 to 9999, in UTC."


def instant(value: object, what: str) -> datetime:
    """A time that every store can keep, in UTC; ``InvalidSetting`` (``invalid_time``) for anything else."""
    if not isinstance(value, datetime):
        raise InvalidSetting(f"{what} must be a datetime, not {type(value).__name__}", code="invalid_time", fix=FIX)
    try:
        if value.utcoffset() is None:
            raise InvalidSetting(f"{what} must be a datetime with a time zone", code="invalid_time", fix=FIX)
        return value.astimezone(UTC)
    except (OverflowError, ValueError):  # a time zone of somebody's own may answer anything
        raise InvalidSetting(f"{what} is out of range: {value}", code="invalid_time", fix=WITHIN) from None


def instant_or_none(value: object, what: str) -> datetime | None:
    return None if value is None else instant(value, what)


def clamped(micros: int) -> datetime:
    """Microseconds since 1970 as a time; the first or last day Python knows for what is beyond."""
    try:
        return EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return FIRST if micros < 0 else LAST

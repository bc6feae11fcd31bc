"""What the HTTP header ``Retry-After`` asks for: a number of seconds, or a date (RFC 9110, section 10.2.3).

The value comes from outside, so anything can be in it. What cannot be read is nothing at all, what is longer than
is allowed is cut, and what is past is now.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

LONGEST_VALUE: Final = 100
_SECONDS: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")  # by the book whole ones; some services send parts
_NOT_A_DATE = (ValueError, TypeError, OverflowError, IndexError)


def asked_delay(value: object, now: datetime, longest: float) -> float | None:
    """Seconds from ``now``, from 0 to ``longest``; None for what says nothing."""
    text = _text(value)
    if text is None:
        return None
    if _SECONDS.fullmatch(text):
        return min(float(text), longest)
    moment = http_date(text)
    if moment is None:
        return None
    return min(max(0.0, (moment - now).total_seconds()), longest)


def http_date(value: object) -> datetime | None:
    """A date as HTTP writes it, in any of the three forms; None for anything else."""
    text = _text(value)
    if text is None:
        return None
    try:
        found = parsedate_to_datetime(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except _NOT_A_DATE:
        return None


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value) if 0 <= value < 10**50 else None
    if not isinstance(value, str) or not value.isascii() or len(value) > LONGEST_VALUE:
        return None
    return value.strip()

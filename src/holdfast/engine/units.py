"""Durations and sizes as people write them."""

from __future__ import annotations

import math
import re
from datetime import timedelta

from holdfast.errors import InvalidSetting

Size = int | str

_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_FORM = re.compile(r"(\d+(?:\.\d+)?) ?([kmgt]?)i?b?", re.IGNORECASE)
LARGEST = 2**60


def in_bytes(value: object, what: str = "size", *, least: int = 1) -> int:
    """The size in bytes; ``InvalidSetting`` if it is too small, or not a size."""
    size: int | None = None
    if isinstance(value, str):
        match = _FORM.fullmatch(value.strip())
        if match:
            size = int(float(match[1]) * _UNITS[match[2].lower()])
    elif isinstance(value, int) and not isinstance(value, bool):
        size = value
    if size is None or not least <= size <= LARGEST:
        raise InvalidSetting(
            f"{value!r} is not a {what} of at least {size_in_words(least)}",
            code="invalid_size",
            fix='Use bytes, or text such as "64MB", "1.5GB".',
        )
    return size


def size_in_words(size: int) -> str:
    """The size for messages, in the largest unit that gives a whole number."""
    for unit in ("t", "g", "m", "k"):
        if size and size % _UNITS[unit] == 0:
            return f"{size // _UNITS[unit]} {unit.upper()}B"
    return f"{size:,} bytes"


Duration = float | int | str | timedelta

_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_WORDS = {
    "ms": "ms|msec|msecs|millisecond|milliseconds",
    "s": "s|sec|secs|second|seconds",
    "m": "m|min|mins|minute|minutes",
    "h": "h|hr|hrs|hour|hours",
    "d": "d|day|days",
    "w": "w|week|weeks",
}
_UNIT_OF = {word: unit for unit, words in _WORDS.items() for word in words.split("|")}
_PART = re.compile(rf"(\d+(?:\.\d+)?)({'|'.join(sorted(_UNIT_OF, key=len, reverse=True))})(?![a-z])")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+")
LONGEST = 100 * 366 * 86_400.0


def seconds(value: object, what: str = "duration") -> float:
    """The duration in seconds; ``InvalidSetting`` if it is negative, not finite or not a duration."""
    duration: float | None = None
    if isinstance(value, timedelta):
        duration = value.total_seconds()
    elif isinstance(value, str):
        text = value.replace(" ", "").replace(",", "").lower()
        if _WHOLE.fullmatch(text):
            duration = sum(float(number) * _DURATION_UNITS[_UNIT_OF[unit]] for number, unit in _PART.findall(text))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        duration = float(value)
    if duration is None or not math.isfinite(duration) or not 0 <= duration <= LONGEST:
        raise InvalidSetting(
            f"{value!r} is not a {what}",
            code="invalid_duration",
            fix='Use seconds, a timedelta, or text such as "90s", "1h30m", "5 minutes", "2d".',
        )
    return duration


_STEPS = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s"))


def span(length: float | timedelta) -> str:
    """Format a duration: ``0 ms``, ``120 ms``, ``1.2 s``, ``3 m 10 s``, ``2 h 5 m``, ``3 d 4 h``."""
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
    return f"{value:.0f} s"  # from 59.95 to 60 seconds

"""Durations as people write them: ``30``, ``"90s"``, ``"1h30m"``, ``timedelta(days=2)``."""

from __future__ import annotations

import math
import re
from datetime import timedelta

from holdfast.domain.errors import InvalidSetting

Duration = float | int | str | timedelta

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+")
LONGEST = 100 * 366 * 86_400.0


def seconds(value: object, what: str = "duration") -> float:
    """The duration in seconds; refuses what is negative, not finite or not a duration at all."""
    found: float | None = None
    if isinstance(value, timedelta):
        found = value.total_seconds()
    elif isinstance(value, str):
        text = value.replace(" ", "")
        if _WHOLE.fullmatch(text):
            found = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        found = float(value)
    if found is None or not math.isfinite(found) or not 0 <= found <= LONGEST:
        raise InvalidSetting(
            f"{value!r} is not a {what}",
            code="invalid_duration",
            fix='Use seconds, a timedelta, or text such as "90s", "1h30m", "2d".',
        )
    return found

"""Sizes as people write them: ``4096``, ``"512MB"``, ``"1.5 GiB"``. A kilo is 1,024, as memory is counted."""

from __future__ import annotations

import re

from holdfast.domain.errors import InvalidSetting

Size = int | str

_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_FORM = re.compile(r"(\d+(?:\.\d+)?) ?([kmgt]?)i?b?", re.IGNORECASE)
LARGEST = 2**60


def in_bytes(value: object, what: str = "size", *, least: int = 1) -> int:
    """The size in bytes; refuses what is too small, or not a size at all."""
    found: int | None = None
    if isinstance(value, str):
        match = _FORM.fullmatch(value.strip())
        if match:
            found = int(float(match[1]) * _UNITS[match[2].lower()])
    elif isinstance(value, int) and not isinstance(value, bool):
        found = value
    if found is None or not least <= found <= LARGEST:
        raise InvalidSetting(
            f"{value!r} is not a {what} of at least {in_words(least)}",
            code="invalid_size",
            fix='Use bytes, or text such as "64MB", "1.5GB".',
        )
    return found


def in_words(size: int) -> str:
    """For messages: the largest unit that leaves a whole number."""
    for unit in ("t", "g", "m", "k"):
        if size and size % _UNITS[unit] == 0:
            return f"{size // _UNITS[unit]} {unit.upper()}B"
    return f"{size:,} bytes"

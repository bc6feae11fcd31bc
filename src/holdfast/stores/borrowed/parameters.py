"""Parameters in each driver's own style.

What is run on a borrowed PostgreSQL connection is written with ``$1``, ``$2``, … and has only text for values, since
text is what every driver sends alike, whatever adapters or codecs its owner has registered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

# Literals and quoted names are matched first, and so never looked into.
_TOKEN = re.compile(r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | \$(\d+)""", re.VERBOSE)


def percent(sql: str, values: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    """For drivers that take ``%s`` and a value for each."""
    text, places = _percent(sql)
    return text, tuple(values[place] for place in places)


@lru_cache(maxsize=64)
def _percent(sql: str) -> tuple[str, tuple[int, ...]]:
    places: list[int] = []

    def write(number: int) -> str:
        places.append(number - 1)
        return "%s"

    return _written(sql, write, lambda text: text.replace("%", "%%")), tuple(places)


def colon(sql: str, values: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    """For SQLAlchemy's ``text()``: ``:p1``; any other colon is escaped, as it looks into literals as well."""
    return _colon(sql), {f"p{number}": value for number, value in enumerate(values, start=1)}


@lru_cache(maxsize=64)
def _colon(sql: str) -> str:
    return _written(sql, lambda number: f":p{number}", lambda text: text.replace(":", "\\:"))


def _written(sql: str, parameter: Callable[[int], str], other: Callable[[str], str]) -> str:
    parts, end = [], 0
    for match in _TOKEN.finditer(sql):
        parts.append(other(sql[end : match.start()]))
        parts.append(parameter(int(match[1])) if match[1] else other(match[0]))
        end = match.end()
    return "".join([*parts, other(sql[end:])])

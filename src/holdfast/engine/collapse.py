"""Several calls with one key that become one job: ``dedupe="replace"``, ``debounce`` and ``throttle``.

The key's row in the table ``content`` has the newest job and when the window of calls began; calls with the same key
wait for each other there. Jobs never change: a newer call supersedes the waiting job, which ends as cancelled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from holdfast.engine.units import seconds
from holdfast.errors import InvalidSetting

Dedupe = Literal["skip", "coalesce", "replace"]
Wins = Literal["first", "last"]
SUPERSEDED: Final = "superseded"
COLLAPSING: Final = frozenset({"debounce", "throttle"})
_FIX: Final = 'For example using(debounce="5s", key="customer-7").'


@dataclass(frozen=True, slots=True)
class Collapse:
    """How a call joins earlier ones with its key. ``wait`` in seconds: the pause that a debounced job waits for, or the
    period of a throttle."""

    mode: Literal["replace", "debounce", "throttle"]
    wait: float = 0.0
    longest: float | None = None
    """Seconds from the first call after which a debounced job starts, even if there are more calls."""
    first: bool = False
    """Keep the waiting job and its arguments, instead of those of the last call."""


def collapse_of(options: Mapping[str, Any]) -> Collapse | None:
    """How the call joins others, or None; ``InvalidSetting`` if its options do not fit together."""
    dedupe, debounce, throttle = options.get("dedupe"), options.get("debounce"), options.get("throttle")
    if dedupe not in (None, "skip", "coalesce", "replace"):
        raise InvalidSetting(f"dedupe must be skip, coalesce or replace, not {dedupe!r}", code="invalid_dedupe")
    wins, longest = options.get("wins"), options.get("longest_wait")
    if wins not in (None, "first", "last"):
        raise InvalidSetting(f"wins must be first or last, not {wins!r}", code="invalid_dedupe")
    if debounce is None and (wins, longest) != (None, None):
        raise InvalidSetting("wins and longest_wait are options of debounce", code="conflicting_options", fix=_FIX)
    collapse = None
    if debounce is not None:
        wait = seconds(debounce, "debounce")
        bound = None if longest is None else seconds(longest, "longest_wait")
        if bound is not None and bound < wait:
            raise InvalidSetting("longest_wait must not be below debounce", code="conflicting_options")
        collapse = Collapse("debounce", wait, bound, wins == "first")
    elif throttle is not None:
        collapse = Collapse("throttle", seconds(throttle, "throttle"))
    elif dedupe == "replace":
        collapse = Collapse("replace")
    if collapse is None:
        return None
    if sum(option is not None for option in (dedupe, debounce, throttle)) > 1:
        raise InvalidSetting("pass one of dedupe, debounce and throttle", code="conflicting_options")
    if debounce is not None and (options.get("delay") is not None or options.get("run_at") is not None):
        raise InvalidSetting("a debounced job has no delay or run_at of its own", code="conflicting_options")
    if options.get("key") is None:
        name = 'dedupe="replace"' if collapse.mode == "replace" else collapse.mode
        raise InvalidSetting(f"{name} needs a key: calls with the same key join", code="key_missing", fix=_FIX)
    return collapse


def collapse_key(kind: str, tenant: str, key: str) -> str:
    """The content key of all calls with a key. No content key of arguments equals it: those have no control
    characters before their hash."""
    return hashlib.sha256(f"key\0{kind}\0{tenant}\0{key}".encode()).hexdigest()

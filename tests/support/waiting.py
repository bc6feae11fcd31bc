"""Waiting for what should come about, with a limit and a word on what did not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LIMIT = 60.0


def until(condition: Callable[[], T], what: str, limit: float = LIMIT) -> T:
    """The first truthy answer of `condition`; an AssertionError that says `what` if there is none in time."""
    begun = time.monotonic()
    while True:
        found = condition()
        if found:
            return found
        waited = time.monotonic() - begun
        if waited > limit:
            raise AssertionError(f"after {limit:g} s not yet: {what}")
        time.sleep(0.01 if waited < 1 else 0.04)  # what takes longer is asked less often: asking costs, too

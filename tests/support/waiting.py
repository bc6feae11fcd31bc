"""Wait for a condition, with a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LIMIT = 60.0


def until(condition: Callable[[], T], what: str, limit: float = LIMIT) -> T:
    """Return the first truthy result of `condition`; after `limit` seconds raise an AssertionError with `what`."""
    begun = time.monotonic()
    while True:
        result = condition()
        if result:
            return result
        waited = time.monotonic() - begun
        if waited > limit:
            raise AssertionError(f"after {limit:g} s not yet: {what}")
        time.sleep(0.01 if waited < 1 else 0.04)  # poll less often after a second: polling costs CPU too

"""Wakes a worker when a rate limit that holds jobs back has room again.

The exchange with the database answers when that is; the worker sleeps until then instead of polling. Without a rate
limit nothing here is ever called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

# Several workers wake for the same token, and one gets it. One that came in vain several times comes a little later
# each time, so that a few workers are not all awake for every token. The limit keeps tokens for 100 ms.
PATIENCE, STEP, LONGEST = 3, 0.01, 0.06


class SlotTimer:
    """To be used on the loop of the worker."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._timer: asyncio.TimerHandle | None = None
        self._due = False

    def expect(self, seconds: float, in_vain: int) -> None:
        """Wake the worker in so many seconds; ``in_vain`` is the number of claims in a row that found nothing."""
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds + min(LONGEST, STEP * max(0, in_vain - PATIENCE))
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = loop.call_at(at, self._fire)

    def take_due(self) -> bool:
        """Whether there is room by now that nobody has handed out; true once."""
        due, self._due = self._due, False
        return due

    def _fire(self) -> None:
        self._timer, self._due = None, True
        self._wake()

"""Wakes a worker when a rate limit that holds jobs back has a token again.

The response of an exchange contains that time, and the worker sleeps until then instead of polling. Without a rate
limit nothing here is called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

# Several workers wake for the same token, and one of them gets it. After FREE empty claims in a row a worker wakes a
# little later each time, so that not all of them are awake for every token. The limit keeps tokens for 100 ms.
FREE, STEP, LONGEST = 3, 0.01, 0.06


class SlotTimer:
    """To be used on the loop of the worker."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._timer: asyncio.TimerHandle | None = None
        self._due = False

    def expect(self, seconds: float, empty_claims: int) -> None:
        """Wake the worker after this time; ``empty_claims`` is the number of claims in a row that returned no job."""
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds + min(LONGEST, STEP * max(0, empty_claims - FREE))
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = loop.call_at(at, self._fire)

    def take_due(self) -> bool:
        """Whether a token is due that was not handed out yet; true once."""
        due, self._due = self._due, False
        return due

    def _fire(self) -> None:
        self._timer, self._due = None, True
        self._wake()

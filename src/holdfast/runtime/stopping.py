"""Telling a handler to stop, and how long it has. Set by whoever cancels it; read by the context, from any thread.

An async handler is interrupted by its ``CancelledError``; a function in a thread cannot be, and has to look here.
Whoever cancels a handler's task sets this first: a task that is cancelled without it has done that to itself.
"""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime

UNKNOWN = "stopped"
TIMEOUT = "timeout"
ENDED = "ended"


_making = threading.Lock()


class Stop:
    """The flag of one attempt, and its time limit by the monotonic clock.

    Every attempt has one, and most never look at it: what is None at first is so in the class.
    """

    _bell: threading.Event | None = None
    _end: float | None = None
    _reason: str | None = None
    limit: asyncio.Timeout | None = None
    cost: float | None = None
    """What the attempt has cost so far, for its end to say."""

    def __init__(self, timeout: float | None = None, deadline_at: datetime | None = None) -> None:
        if timeout is not None:
            self._end = time.monotonic() + timeout
        if deadline_at is not None:
            # Once by the wall clock, from then on by one that nobody sets.
            late = time.monotonic() + (deadline_at - datetime.now(UTC)).total_seconds()
            self._end = late if self._end is None else min(late, self._end)

    def set(self, reason: str) -> None:
        """The first reason counts."""
        if self._reason is None:
            self._reason = reason
        if self._bell is not None:
            self._bell.set()

    def over(self) -> None:
        """The handler has ended: whatever it has left running is told, unless something else was told before."""
        if self._reason is None and (self.limit is None or not self.limit.expired()):
            self.set(ENDED)

    def spend(self, units: float) -> None:
        """From any thread."""
        with _making:
            self.cost = round((self.cost or 0.0) + units, 6)

    def cancelled(self, error: asyncio.CancelledError) -> None:
        """The handler's task was cancelled: for its time limit, or by somebody who says why."""
        given = error.args[0] if error.args else None
        self.set(TIMEOUT if self._expired() else str(given or UNKNOWN))

    @property
    def told(self) -> bool:
        """Somebody else has set it: it was not the end of the handler itself."""
        return self._reason not in (None, ENDED)

    @property
    def is_set(self) -> bool:
        # An async handler meets its CancelledError before ``execute`` does, and may look here then.
        return self._reason is not None or self._expired()

    @property
    def reason(self) -> str | None:
        return self._reason or (TIMEOUT if self._expired() else None)

    def wait(self, seconds: float) -> bool:
        """Sleep, but no longer than until the flag is set; answers whether it is."""
        with _making:
            self._bell = self._bell or threading.Event()
        # Looked at after the bell was hung up: whoever sets the reason rings it from then on.
        return self._reason is not None or self._bell.wait(seconds)

    def time_left(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def _expired(self) -> bool:
        return self.limit is not None and self.limit.expired()

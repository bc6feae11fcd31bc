"""Stopping: the ``Stop`` flag of a handler, the grace period, and the deadline of a worker that shuts down.

An async handler is interrupted by a ``CancelledError``. A function in a thread cannot be interrupted and has to check
``Stop``, through its context. The worker sets ``Stop`` before it cancels a handler's task; a task that is cancelled
while ``Stop`` is not set has cancelled itself.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from holdfast.engine.outcome import Outcome, Paused
from holdfast.stores.flow import WaitLimit, wait_limit_of

UNKNOWN = "stopped"
TIMEOUT = "timeout"
ENDED = "ended"


# One lock for all attempts: it is held for an instant.
_lock = threading.Lock()


class Stop:
    """The stop flag of one attempt, and its time limit by the monotonic clock. May be read from any thread.

    Every attempt has one, and most never use it, so the defaults are class attributes.
    """

    _event: threading.Event | None = None
    _end: float | None = None
    _reason: str | None = None
    limit: asyncio.Timeout | None = None
    cost: float | None = None
    """The cost of the attempt so far, recorded when it ends."""

    def __init__(self, timeout: float | None = None, deadline_at: datetime | None = None) -> None:
        if timeout is not None:
            self._end = time.monotonic() + timeout
        if deadline_at is not None:
            # The wall clock is read once; from then on the time is measured with the monotonic clock.
            deadline = time.monotonic() + (deadline_at - datetime.now(UTC)).total_seconds()
            self._end = deadline if self._end is None else min(deadline, self._end)

    def set(self, reason: str) -> None:
        """Set the flag. The first reason is kept."""
        if self._reason is None:
            self._reason = reason
        if self._event is not None:
            self._event.set()

    def over(self) -> None:
        """The handler has ended: set the flag for threads and tasks that it left running."""
        if self._reason is None and (self.limit is None or not self.limit.expired()):
            self.set(ENDED)

    def spend(self, units: float) -> None:
        with _lock:
            self.cost = round((self.cost or 0.0) + units, 6)

    def cancelled(self, error: asyncio.CancelledError) -> None:
        """Set the flag after the handler's task was cancelled: by its time limit, or with the reason in the error."""
        reason = error.args[0] if error.args else None
        self.set(TIMEOUT if self._expired() else str(reason or UNKNOWN))

    @property
    def set_by_worker(self) -> bool:
        """Whether the flag was set for another reason than the end of the handler."""
        return self._reason not in (None, ENDED)

    @property
    def is_set(self) -> bool:
        # An async handler sees its CancelledError before ``execute`` does, and may check the flag then.
        return self._reason is not None or self._expired()

    @property
    def reason(self) -> str | None:
        return self._reason or (TIMEOUT if self._expired() else None)

    def wait(self, seconds: float) -> bool:
        """Sleep until the flag is set, at most this long. Returns whether it is set."""
        with _lock:
            self._event = self._event or threading.Event()
        # The reason is read after the event was created: from then on ``set`` sets the event too.
        return self._reason is not None or self._event.wait(seconds)

    def time_left(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def _expired(self) -> bool:
        return self.limit is not None and self.limit.expired()


# Seconds that a reachable database needs to record the last results and to close the lease, also on a busy machine.
LAST_WRITES = 5.0
# A store call gives up when its time is over. A call that does not give up is cancelled this many seconds later.
CANCEL_AFTER = 1.0


class ShutdownDeadline:
    """Limits how long a stopping worker waits for the database. There is no limit before ``start``."""

    def __init__(self) -> None:
        self._wait_limit = WaitLimit()
        self._end: float | None = None
        self._timeouts: set[asyncio.Timeout] = set()

    @contextmanager
    def limits_waits(self) -> Iterator[None]:
        """Apply the limit to store calls in the block, and in tasks and threads that are started there."""
        before = wait_limit_of.set(self._wait_limit)
        try:
            yield
        finally:
            wait_limit_of.reset(before)
            self._wait_limit.until = math.inf  # a task that a handler started may outlive the worker

    def start(self, grace: float) -> None:
        """The last writes begin after ``grace`` seconds. A later call replaces an earlier one."""
        self._end_in(grace + LAST_WRITES)

    def shorten(self, *, unreachable: bool) -> None:
        """Only the lease is left to be closed, in a database that may be known to be unreachable."""
        longest = CANCEL_AFTER if unreachable else LAST_WRITES
        if self._wait_limit.left() > longest:
            self._end_in(longest)

    def _end_in(self, seconds: float) -> None:
        self._wait_limit.until = time.monotonic() + seconds
        self._end = asyncio.get_running_loop().time() + seconds + CANCEL_AFTER
        for timeout in self._timeouts:
            if not timeout.expired():
                timeout.reschedule(self._end)

    async def wait_for(self, work: Awaitable[object]) -> bool:
        """Wait for the work, and cancel it at the deadline. Returns whether it completed."""
        timeout = asyncio.timeout_at(self._end)
        try:
            async with timeout:
                self._timeouts.add(timeout)
                await work
        except TimeoutError:
            if not timeout.expired():
                raise
            return False
        finally:
            self._timeouts.discard(timeout)
        return True


class GracePeriod:
    """Begins with the first call of ``left`` or ``is_over``."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: float | None = None

    @property
    def begun(self) -> bool:
        return self._until is not None

    def cut(self) -> None:
        """End it now."""
        self._seconds, self._until = 0.0, None

    def left(self) -> float:
        now = asyncio.get_running_loop().time()
        if self._until is None:
            self._until = now + self._seconds
        return max(0.0, self._until - now)

    def is_over(self) -> bool:
        return self.left() <= 0.0

    def shortened(self, pause: float) -> float:
        """The pause, but not beyond the end of the grace period."""
        if self._until is None:
            return pause
        return min(pause, max(0.0, self._until - asyncio.get_running_loop().time()))


class Ended(Exception):
    """Carries an outcome from inside a handler to ``execute``."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class Suspended(BaseException):
    """Suspends the handler and frees its worker slot. The handler runs again when the awaited event has come.

    Not an ``Exception``: a handler that catches errors must not catch this.
    """

    def __init__(self, outcome: Paused) -> None:
        super().__init__(f"waits for {outcome.pause['kind']} {outcome.pause['name']}")
        self.outcome = outcome

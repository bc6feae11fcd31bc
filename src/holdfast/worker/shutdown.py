"""``Stop`` signal of a handler, grace period, leaving while the database is unreachable.

Telling a handler to stop, and how long it has. Set by whoever cancels it; read by the context, from any thread.

An async handler is interrupted by its ``CancelledError``; a function in a thread cannot be, and has to look here.
Whoever cancels a handler's task sets this first: a task that is cancelled without it has done that to itself.
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
from holdfast.stores.flow import WaitLimit, patience_of

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


# What a store that is there needs to settle what has ended and to end a lease, on a busy machine as well.
LAST_CALL = 5.0
# A store gives up by itself when its time is over; what it cannot give up is cancelled so much later.
LET_GO = 1.0


class Departure:
    """One for a worker. Nothing is hurried before ``begin``, nor when the worker has left."""

    def __init__(self) -> None:
        self._patience = WaitLimit()
        self._end: float | None = None
        self._cuts: set[asyncio.Timeout] = set()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """What is asked of a store in the block, and by whatever is started there, is asked with this patience."""
        before = patience_of.set(self._patience)
        try:
            yield
        finally:
            patience_of.reset(before)
            self._patience.until = math.inf  # something that a handler has started may go on without the worker

    def begin(self, seconds: float) -> None:
        """In so many seconds the last call begins. What is said last counts."""
        self._end_in(seconds + LAST_CALL)

    def hasten(self, *, away: bool) -> None:
        """Nothing is left but to say goodbye, to a store that may be known to be away."""
        longest = LET_GO if away else LAST_CALL
        if self._patience.left() > longest:
            self._end_in(longest)

    def _end_in(self, seconds: float) -> None:
        self._patience.until = time.monotonic() + seconds
        self._end = asyncio.get_running_loop().time() + seconds + LET_GO
        for cut in self._cuts:
            if not cut.expired():
                cut.reschedule(self._end)

    async def wait_for(self, work: Awaitable[object]) -> bool:
        """Answers whether it came to its end: when the time is over it is cancelled."""
        cut = asyncio.timeout_at(self._end)
        try:
            async with cut:
                self._cuts.add(cut)
                await work
        except TimeoutError:
            if not cut.expired():
                raise
            return False
        finally:
            self._cuts.discard(cut)
        return True


class GracePeriod:
    """It begins when somebody first asks whether it is over."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: float | None = None

    @property
    def begun(self) -> bool:
        return self._until is not None

    def cut(self) -> None:
        """There is none, from now on."""
        self._seconds, self._until = 0.0, None

    def left(self) -> float:
        now = asyncio.get_running_loop().time()
        if self._until is None:
            self._until = now + self._seconds
        return max(0.0, self._until - now)

    def is_over(self) -> bool:
        return self.left() <= 0.0

    def shortened(self, pause: float) -> float:
        """A pause that does not outlast it."""
        if self._until is None:
            return pause
        return min(pause, max(0.0, self._until - asyncio.get_running_loop().time()))


class Ended(Exception):
    """Carries the outcome past whatever is in between, to ``execute``."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class Suspended(BaseException):
    """The handler waits for something and lets go of its worker; it is run again when that has come.

    Not an ``Exception``: a handler that carries on after errors must not carry on after this.
    """

    def __init__(self, outcome: Paused) -> None:
        super().__init__(f"waits for {outcome.pause['kind']} {outcome.pause['name']}")
        self.outcome = outcome

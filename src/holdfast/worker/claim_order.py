"""Where and when a worker claims: the order of its queues, the position each claim starts from, hints of new jobs,
and the timer for rate limits.

A claim normally starts at the head of a queue. When that has become slow, because an old transaction keeps dead rows of
claimed jobs visible or because the head is full of kinds this worker does not serve, claims start behind the last
claimed job and only now and then at the head, so seldom that slow claims stay a small part of the time. A job that is
inserted before that position meanwhile (a higher priority, a retry) waits for the next claim from the head. An operator
who changes the order of a queue does not wait: a notification makes the next claim of that queue start at its head.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast.engine.job import Exchange
from holdfast.engine.order import drawn_order

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

# A claim is slow if it takes longer than this, plus a share per claimed job: twice the time on an idle database.
SLOW_PICK_US = 2_000
PER_JOB_US = 4
# After a slow claim, claims skip the head for this multiple of the time it took.
RESPITE = 20
# Where tenants share a queue: a tenant's turn comes only at the head, and its jobs may be before that position.
SHARED_RESPITE = 4
# For how many seconds a worker polls at its own pace after a poll returned jobs that no notification had announced.
DISTRUST = 60.0
# Any login of the database can send notifications. After this many empty claims in a row each is deferred by this many
# seconds.
MAX_EMPTY_CLAIMS = 20
NOTIFICATION_DELAY = 0.02
# Several workers wake for the same token, and one of them gets it. After FREE empty claims in a row a worker wakes a
# little later each time, so that not all of them are awake for every token. The limit keeps tokens for 100 ms.
FREE, STEP, LONGEST = 3, 0.01, 0.06

# A worker without jobs looks again LOOKS times in a row, every LOOK_EVERY seconds, before it has new jobs announced. It
# stops that once it was busy for BUSY_AFTER seconds, or was woken more than WAKES times in WAKES_WITHIN seconds.
LOOKS, LOOK_EVERY = 3, 0.004
BUSY_AFTER = 0.02
WAKES, WAKES_WITHIN = 50, 0.1


class ClaimStart(NamedTuple):
    """Where a claim starts: ``after`` has the positions of queues that are not read from their head. ``reordered`` has
    the queues whose order was changed, each with the number of notifications so far."""

    after: Mapping[str, tuple[int, int]]
    reordered: Mapping[str, int]


class ClaimOrder:
    def __init__(self, queues: Sequence[str], weights: Mapping[str, int] | None = None) -> None:
        self._queues = tuple(queues)
        self._weights = weights
        self._positions: dict[str, tuple[int, int]] = {}
        self._skip_head_until = 0.0
        self._respite = 0.0  # of the last claim from the head, if it was slow
        self._reordered: dict[str, int] = {}
        self.exhausted = False
        """The last claim started at the head of every queue and returned fewer jobs than it requested."""

    def queues(self) -> tuple[str, ...]:
        """The queues as they are listed; with weights, drawn so that a heavier one is first more often."""
        return drawn_order(self._queues, self._weights, random.random)

    def queue_reordered(self, queue: str) -> None:
        """The order of this queue was changed: a job may now be before the position that claims start from."""
        if queue in self._queues:
            self._reordered[queue] = self._reordered.get(queue, 0) + 1

    def all_reordered(self) -> None:
        """Notifications may have been missed: the order of any queue may have been changed."""
        for queue in self._queues:
            self.queue_reordered(queue)

    def start(self) -> ClaimStart:
        now = time.monotonic()
        skip_head = now < self._skip_head_until
        if not skip_head:
            # One slow claim at a time: meanwhile the other exchange claims new jobs.
            self._skip_head_until = now + self._respite
        after = {
            queue: position for queue, position in self._positions.items() if skip_head and queue not in self._reordered
        }
        return ClaimStart(after, dict(self._reordered))

    def learn(self, exchange: Exchange, want: int, start: ClaimStart) -> None:
        reached = {(claim.queue, claim.tenant): (claim.priority, claim.position) for claim in exchange.claims}
        # Tenants that share a queue have reached different positions. Most waiting jobs are behind the first of them.
        first_positions: dict[str, tuple[int, int]] = {}
        for (queue, _), position in reached.items():
            first = first_positions.get(queue)
            if first is None or (-position[0], position[1]) < (-first[0], first[1]):
                first_positions[queue] = position
        self._positions.update(first_positions)
        short = len(exchange.claims) < want
        self.exhausted = short and not start.after
        if not start.after:
            slow = exchange.pick_us > SLOW_PICK_US + PER_JOB_US * len(exchange.claims)
            times = SHARED_RESPITE if len(reached) > len(first_positions) else RESPITE
            self._respite = times * exchange.pick_us / 1_000_000 if slow else 0.0
            if slow:
                self._skip_head_until = time.monotonic() + self._respite
        for queue, count in start.reordered.items():
            # Keep the mark if the claim was full before it reached this queue, or if the queue was reordered again.
            if (short or queue in first_positions) and self._reordered.get(queue) == count:
                del self._reordered[queue]


class ClaimHints:
    """Whether a claim may return jobs, according to notifications, polls and earlier claims.

    ``expect_jobs`` may be called from any thread, everything else on the worker's loop.
    """

    def __init__(self) -> None:
        self.may_have_jobs = True
        self.empty_claims = 0
        """Claims in a row that returned no job."""
        self._from_poll = False  # the next exchange is started by the poll timer, not by a notification
        self._last_was_full = False  # the last claim returned all it requested: two at a time may find enough
        self._distrust_until = 0.0

    @property
    def distrusts_notifications(self) -> bool:
        """A poll has recently returned jobs that no notification had announced."""
        return time.monotonic() < self._distrust_until

    @property
    def too_many_empty_claims(self) -> bool:
        return self.empty_claims >= MAX_EMPTY_CLAIMS

    def expect_jobs(self) -> None:
        """A notification or a local event: there may be jobs."""
        self.may_have_jobs = True
        self._from_poll = False

    def poll(self) -> None:
        self.may_have_jobs = self._from_poll = True

    def begin_exchange(self, want: int) -> bool:
        """Return whether the exchange is started by the poll timer."""
        if want:
            # Until this claim is full, or a hint arrives.
            self.may_have_jobs = self._last_was_full
        from_poll, self._from_poll = self._from_poll, False
        return from_poll

    def claimed(self, exchange: Exchange, want: int, *, from_poll: bool) -> None:
        self.empty_claims = 0 if exchange.claims else self.empty_claims + 1
        if not exchange.live:
            return
        self._last_was_full = len(exchange.claims) == want
        if from_poll and exchange.claims:
            self._distrust_until = time.monotonic() + DISTRUST
        self.may_have_jobs = self.may_have_jobs or self._last_was_full


class Announcements:
    """Whether new jobs have to be announced to this worker. Commits that announce wait for one another, so a worker has
    them announced only while it is idle, and under a steady flow of jobs it looks for them by itself."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.wanted = False
        self._busy_since = self._counted_since = 0.0
        self._wakes = 0

    def announced(self) -> None:
        """A new job was announced and woke the worker. May be called from any thread."""
        self._wakes += 1

    def decide(self, idle: bool, empty_claims: int) -> float | None:
        """To be called when the worker goes to sleep. Returns the seconds after which to call it again; an idle
        worker claims before. ``empty_claims`` is the number of claims in a row that returned no job."""
        now = time.monotonic()
        if not idle:
            if not self.wanted:
                return None
            self._busy_since = self._busy_since or now
            if (left := self._busy_since + BUSY_AFTER - now) > 0:
                return left
            self._want(False)
            return None
        self._busy_since = 0.0
        if not self._store.listening:
            return None
        if self.wanted:
            return LOOK_EVERY if self._often(now) else None
        if empty_claims < LOOKS:
            return LOOK_EVERY
        self._want(True)
        return None

    def _often(self, now: float) -> bool:
        """Whether the worker is woken too often: then it stops waiting for announcements."""
        if self._wakes > WAKES:
            self._want(False)
        if now - self._counted_since > WAKES_WITHIN:
            self._counted_since, self._wakes = now, 0
        return not self.wanted

    def _want(self, wanted: bool) -> None:
        self.wanted = wanted
        self._store.refresh_listening()


class SlotTimer:
    """Wakes a worker when a rate limit that holds jobs back has a token again: the response of an exchange contains
    that time, and the worker sleeps until then instead of polling. To be used on the loop of the worker."""

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

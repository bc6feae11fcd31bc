"""Where a worker looks for jobs: which queue first, and from which place on.

Normally every look begins at the head of a queue. When that has become slow, because an old transaction keeps the
traces of jobs long taken or because the head is full of kinds this worker does not know, looks begin behind the last
job that was taken, and only now and then at the head: as seldom as makes the slow looks a small part of the time.
What comes in before that place meanwhile (a higher priority, a retry) waits for the next look at the head. Somebody
who has changed the order of a queue does not: that is told, and the next look at the queue begins at its head.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.engine.job import Exchange
from holdfast.engine.order import drawn_order

# A look is slow when it takes this long, and more for each job it found: twice what it takes beside nothing else.
PATIENCE_US = 2_000
PER_JOB_US = 4
# After a slow look, looks begin behind the last job for this many times as long as it took.
RESPITE = 20


class Look(NamedTuple):
    """Where a look begins: behind these places, in queues that are not looked at from their head. ``moved`` are those
    whose order was changed, as far as was known when it began."""

    after: Mapping[str, tuple[int, int]]
    moved: Mapping[str, int]


class ClaimOrder:
    def __init__(self, queues: Sequence[str], weights: Mapping[str, int] | None = None) -> None:
        self._queues = tuple(queues)
        self._weights = weights
        self._places: dict[str, tuple[int, int]] = {}
        self._narrow_until = 0.0
        self._moved: dict[str, int] = {}  # queues to be looked at from their head, and how often that was said
        self.exhausted = False
        """The last look began at the head of every queue and found less than it wanted."""

    def order(self) -> tuple[str, ...]:
        """The queues as they are listed; with weights, drawn so that a heavier one is first more often."""
        return drawn_order(self._queues, self._weights, random.random)

    def hint(self, queue: str) -> None:
        """The order of this queue was changed: something may stand before the place behind which we look."""
        if queue in self._queues:
            self._moved[queue] = self._moved.get(queue, 0) + 1

    def hint_all(self) -> None:
        """Nobody listened for a while: the order of any queue may have been changed."""
        for queue in self._queues:
            self.hint(queue)

    def look(self) -> Look:
        narrow = time.monotonic() < self._narrow_until
        places = {queue: place for queue, place in self._places.items() if narrow and queue not in self._moved}
        return Look(places, dict(self._moved))

    def learn(self, turn: Exchange, want: int, look: Look) -> None:
        reached = {(claim.queue, claim.tenant): (claim.priority, claim.position) for claim in turn.claims}
        # Where tenants share a queue each has got to a place of its own: behind the first of them is most of it.
        firsts: dict[str, tuple[int, int]] = {}
        for (queue, _), place in reached.items():
            if queue not in firsts or (-place[0], place[1]) < (-firsts[queue][0], firsts[queue][1]):
                firsts[queue] = place
        self._places.update(firsts)
        short = len(turn.claims) < want
        self.exhausted = short and not look.after
        if not look.after and turn.pick_us > PATIENCE_US + PER_JOB_US * len(turn.claims):
            self._narrow_until = time.monotonic() + RESPITE * turn.pick_us / 1_000_000
        for queue, times in look.moved.items():
            # Unless there was no room left when it came to this queue, or it was said again meanwhile.
            if (short or queue in firsts) and self._moved.get(queue) == times:
                del self._moved[queue]

"""Where a worker looks for jobs: which queue first, and from which place on.

Normally every look begins at the head of a queue. When that has become slow, because an old transaction keeps the
traces of jobs long taken or because the head is full of kinds this worker does not know, looks begin behind the last
job that was taken, and only now and then at the head: as seldom as makes the slow looks a small part of the time.
What comes in before that place meanwhile (a higher priority, a retry) waits for the next look at the head.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence

from holdfast.domain.job import Turn
from holdfast.domain.queues import drawn_order

# A look is slow when it takes this long, and more for each job it found.
PATIENCE_US = 2_000
PER_JOB_US = 20
# After a slow look, looks begin behind the last job for this many times as long as it took.
RESPITE = 20


class Search:
    def __init__(self, queues: Sequence[str], weights: Mapping[str, int] | None = None) -> None:
        self._queues = tuple(queues)
        self._weights = weights
        self._places: dict[str, tuple[int, int]] = {}
        self._narrow_until = 0.0
        self.exhausted = False
        """The last look began at the head of every queue and found less than it wanted."""

    def order(self) -> tuple[str, ...]:
        """The queues as they are listed; with weights, drawn so that a heavier one is first more often."""
        return drawn_order(self._queues, self._weights, random.random)

    def after(self) -> Mapping[str, tuple[int, int]]:
        """Where to begin, for queues that are not to be looked at from their head."""
        return self._places if time.monotonic() < self._narrow_until else {}

    def learn(self, turn: Turn, want: int, narrowed: bool) -> None:
        for claim in turn.claims:
            self._places[claim.queue] = (claim.priority, claim.position)
        short = len(turn.claims) < want
        self.exhausted = short and not narrowed
        if not narrowed and turn.pick_us > PATIENCE_US + PER_JOB_US * len(turn.claims):
            self._narrow_until = time.monotonic() + RESPITE * turn.pick_us / 1_000_000

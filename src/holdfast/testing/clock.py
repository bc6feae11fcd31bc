"""Move the store's clock, crash at a point.

The clock of a private store, which decides when a job is due. ``datetime.now()`` stays what it is.

It stands still: nothing becomes due because a test is slow. When it is moved by a span it first catches up with the
machine's, so that a job for an hour from now, as the program reckons, is due when the test has travelled an hour.

``kit.crash_at``: a worker that is lost at a chosen point of a job, and what comes after it.

The attempt comes as far as that point and no further. Its lease is ended, as it would be for a process that was
killed, so nothing that the handler still tries is written; the reaper counts a crash, and the job is begun again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from holdfast.engine.job import EVERY_TENANT, Claim
from holdfast.errors import InvalidSetting
from holdfast.features.assembly import Store


class Clock:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._ahead = timedelta(0)
        self._catches_up = True
        self._now = self._set(datetime.now(UTC))

    @property
    def now(self) -> datetime:
        return self._now

    def travel(self, by: timedelta) -> datetime:
        self._ahead += by
        moment = self._now + by
        if self._catches_up:
            moment = max(moment, datetime.now(UTC) + self._ahead)
        return self._set(moment)

    def travel_to(self, moment: datetime) -> datetime:
        """From here on the machine's clock does not count: the test has named a time of its own."""
        self._catches_up = False
        return self._set(moment)

    @contextmanager
    def frozen(self, at: datetime | None) -> Iterator[None]:
        """``travel_to`` for the length of a block; afterwards it is where it was before."""
        before = self._now, self._ahead, self._catches_up
        self.travel_to(at or self._now)
        try:
            yield
        finally:
            moment, self._ahead, self._catches_up = before
            self._set(moment)

    def _set(self, moment: datetime) -> datetime:
        self._store.run(self._store.clock.set(timedelta(0), moment))
        self._now = moment.astimezone(UTC)
        return self._now


Moment = Literal["before", "after", "saved"]
MOMENTS = ("before", "after", "saved")


@dataclass(frozen=True, slots=True)
class Point:
    step: str
    when: Moment


class Crashes:
    """Points that wait to be reached, each once."""

    def __init__(self) -> None:
        self.waiting: list[Point] = []
        self.happened: list[Point] = []
        self.abandon: Callable[[], None] | None = None
        """Ends the tick that is under way, without a word to the store."""

    def arm(self, step: str, when: Moment) -> None:
        if when not in MOMENTS:
            raise InvalidSetting(f"a crash must be {', '.join(MOMENTS)}, not {when!r}", code="invalid_setting")
        self.waiting.append(Point(step, when))

    async def reached(self, store: Store, claim: Claim, when: Moment, step: str) -> None:
        point = Point(step, when)
        if point not in self.waiting:
            return
        self.waiting.remove(point)
        self.happened.append(point)
        await store.arun(store.leases.end(claim.lease, "crashed by a test", EVERY_TENANT))
        if self.abandon is not None:
            self.abandon()
        await asyncio.Event().wait()  # as far as it comes

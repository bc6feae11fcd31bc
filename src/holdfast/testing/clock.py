"""The clock of a private store, which decides when a job is due. ``datetime.now()`` stays what it is.

It stands still: nothing becomes due because a test is slow. When it is moved by a span it first catches up with the
machine's, so that a job for an hour from now, as the program reckons, is due when the test has travelled an hour.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from holdfast.stores.base import Store


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
        self._store.run(self._store.verbs.set_clock(timedelta(0), moment))
        self._now = moment.astimezone(UTC)
        return self._now

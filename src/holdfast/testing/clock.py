"""The clock of a private store, which decides when a job is due. ``datetime.now()`` stays what it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from holdfast.stores.base import Store


class Clock:
    """It runs, ahead of the machine's by what was travelled, unless it has been stopped."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._shift = timedelta(0)
        self._stopped: datetime | None = None

    def now(self) -> datetime:
        return self._store.run(self._store.verbs.now())

    def travel(self, by: timedelta) -> datetime:
        self._shift += by
        if self._stopped is not None:
            self._stopped += by
        self._set()
        return self.now()

    def travel_to(self, moment: datetime) -> datetime:
        return self.travel(moment - self.now())

    @contextmanager
    def frozen(self, at: datetime | None) -> Iterator[None]:
        """Stopped for the length of a block; then it runs on from where it stands."""
        was_running = self._stopped is None
        self._stopped = at or self.now()
        self._set()
        try:
            yield
        finally:
            if was_running:
                stood = self._stopped
                self._run_on()
                self.travel_to(stood)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Stopped while jobs are run, so that nothing becomes due only because the test is slow."""
        if self._stopped is not None:
            yield
            return
        self._stopped = self.now()
        self._set()
        try:
            yield
        finally:
            self._run_on()

    def _run_on(self) -> None:
        self._stopped = None
        self._set()

    def _set(self) -> None:
        self._store.run(self._store.verbs.set_clock(self._shift, self._stopped))

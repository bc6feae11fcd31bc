"""What the database says while the demo runs: how many jobs are where, and in whose hands."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.cli.demo.crew import WorkerProcess
from holdfast.engine.job import Event
from holdfast.engine.states import State
from holdfast.stores.base import Store
from holdfast.stores.requests import JobFilter

PAGE = 1000


class Tail:
    """Follows the ledger in pages, each event once; the counts are the database's own."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._store = store
        self._tenant = tenant
        self._cursor: str | None = None
        self._last: dict[str, Event] = {}
        self.states: Mapping[State, int] = {}

    def read(self) -> None:
        """Take in what is new."""
        while page := self._store.run(self._store.verbs.events_after(self._cursor, PAGE, self._tenant)):
            self._last.update((event.job_id, event) for event in page)
            self._cursor = page[-1].cursor
            if len(page) < PAGE:
                break
        self.states = self._store.run(self._store.verbs.counts(self._tenant))

    @property
    def ended(self) -> int:
        return sum(count for state, count in self.states.items() if state.finished)

    def in_hand(self, worker: WorkerProcess) -> int:
        """How many jobs the worker was running when the ledger was last read."""
        return sum(
            event.to_state is State.IN_PROGRESS and worker.is_author(event.actor) for event in self._last.values()
        )

    def held_by(self, worker: WorkerProcess) -> set[str]:
        """The jobs the worker is running now: begun by it, says the ledger, and not ended, says the job itself."""
        self.read()
        wanted = JobFilter(tenant=self._tenant, state=State.IN_PROGRESS, limit=PAGE)
        running = self._store.run(self._store.verbs.list_jobs(wanted))
        return {
            job.id
            for job in running
            if (event := self._last.get(job.id)) is not None
            and event.attempt == job.attempt
            and worker.is_author(event.actor)
        }

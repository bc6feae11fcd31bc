"""Open transactions, and a ledger consumer that reads meanwhile (PostgreSQL)."""

from __future__ import annotations

from typing import Any, TypeVar

import psycopg

from holdfast.engine.job import Event
from holdfast.features.assembly import Store
from holdfast.stores.flow import Flow
from holdfast.stores.postgres.store import prepare_connection, run_on
from tests.support.stores import spec

T = TypeVar("T")


class Transaction:
    """A transaction that stays open until `end`."""

    def __init__(self, store: Store, begin: str = "begin") -> None:
        self._jobs = store.jobs
        self.connection: psycopg.Connection[Any] = psycopg.connect(store.url, autocommit=True)
        prepare_connection(self.connection)
        self.connection.execute(begin)

    def run(self, flow: Flow[T]) -> T:
        return run_on(self.connection, flow)

    def enqueue(self, jobs: int = 1) -> list[str]:
        specs = [spec() for _ in range(jobs)]
        self.run(self._jobs.enqueue(specs, "default"))
        return [job.id for job in specs]

    def end(self, how: str = "commit") -> None:
        self.connection.execute(how)
        self.connection.close()


class Consumer:
    """Reads pages of one size and keeps its cursor, as a durable consumer does."""

    def __init__(self, store: Store, page: int) -> None:
        self._store, self._page = store, page
        self.cursor: str | None = None
        self.seen: list[Event] = []

    def poll(self) -> list[str]:
        page = self._store.run(self._store.ledger.read(self.cursor, self._page, "*"))
        if page:
            self.cursor = page[-1].cursor
        self.seen += page
        return [event.job_id for event in page]

    def drain(self) -> list[str]:
        job_ids: list[str] = []
        while more := self.poll():
            job_ids += more
        return job_ids

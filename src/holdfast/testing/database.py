"""A private database for a test, its clock, and simulated crashes.

The database is a temporary SQLite file, or a new schema on a PostgreSQL server.

``Clock`` sets the time that decides when a job is due; ``datetime.now()`` is not affected. The clock stands still, so
no job becomes due because a test is slow. When it is moved by a duration, it first catches up with the machine's
clock: a job that the program delayed by an hour is due after the test has travelled an hour.

``Crashes`` ends an attempt at a chosen step, as if its worker had been killed: its lease is ended, so nothing that the
handler does afterwards is recorded. Recovery counts a crash, and the job starts again.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from tempfile import TemporaryDirectory
from typing import Literal, TypeVar

from holdfast.engine.job import EVERY_TENANT, Claim
from holdfast.engine.redaction import shown_url
from holdfast.errors import InvalidSetting
from holdfast.features.assembly import Store, open_store, require_postgres
from holdfast.stores.flow import Flow

T = TypeVar("T")

MEMORY = "sqlite:///:memory:"
DROP_TIMEOUT = "10s"


@contextmanager
def private_store(url: str | None, schema: str) -> Iterator[tuple[Store, str]]:
    """Yield a store and the name of its schema, which is ``schema`` unless a new schema was created."""
    if url is None:
        folder = TemporaryDirectory(prefix="holdfast-kit-", ignore_cleanup_errors=True)
        with folder as path, _embedded(f"sqlite:///{path}/jobs.db") as store:
            yield store, schema
    elif url == MEMORY:
        with _embedded(url) as store:
            yield store, schema
    elif url.startswith(("postgresql:", "postgres:")):
        with _new_schema(url) as result:
            yield result
    else:
        raise InvalidSetting(
            f"{shown_url(url)} cannot hold a private test database",
            code="not_private",
            fix=f"Leave the URL out for a temporary SQLite file, or use {MEMORY} or postgresql://….",
        )


@contextmanager
def _embedded(url: str) -> Iterator[Store]:
    with closing(open_store(url)) as store:
        store.migrate()
        yield store


@contextmanager
def _new_schema(url: str) -> Iterator[tuple[Store, str]]:
    require_postgres()
    from psycopg import sql

    from holdfast.features.postgres import PostgresStore

    class PrivateSchema(PostgresStore):
        """A store in a schema that is dropped at the end of a test."""

        async def arun(self, flow: Flow[T]) -> T:
            """Run the flow in a thread. A pool per event loop would outlive the loop, as each test may have its own."""
            return await asyncio.to_thread(self.run, flow)

        def drop(self) -> None:
            """Drop the schema. With a timeout: a transaction that a test left open is an error instead of a hang."""
            with self._connected() as connection:
                connection.execute(sql.SQL("set lock_timeout = {}").format(DROP_TIMEOUT))
                connection.execute(sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(name)))

    name = f"holdfast_kit_{uuid.uuid4().hex[:16]}"
    store = PrivateSchema(url, schema=name)
    store.migrate()  # in one transaction: if it fails, there is no schema to drop
    try:
        yield store, name
    finally:
        store.close()
        store.drop()


class Clock:
    """Sets the time of a store."""

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
        """Set a time. From then on the machine's clock is ignored."""
        self._catches_up = False
        return self._set(moment)

    @contextmanager
    def frozen(self, at: datetime | None) -> Iterator[None]:
        """Set a time for a block, and the previous one afterwards."""
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
class CrashPoint:
    """A step, and when the crash happens: before, after, or once its result is saved."""

    step: str
    when: Moment


class Crashes:
    """Crash points that are armed. Each happens once."""

    def __init__(self) -> None:
        self.waiting: list[CrashPoint] = []
        self.happened: list[CrashPoint] = []
        self.abandon: Callable[[], None] | None = None
        """Ends the current tick without settling its jobs."""

    def arm(self, step: str, when: Moment) -> None:
        if when not in MOMENTS:
            raise InvalidSetting(f"a crash must be {', '.join(MOMENTS)}, not {when!r}", code="invalid_setting")
        self.waiting.append(CrashPoint(step, when))

    async def reached(self, store: Store, claim: Claim, when: Moment, step: str) -> None:
        point = CrashPoint(step, when)
        if point not in self.waiting:
            return
        self.waiting.remove(point)
        self.happened.append(point)
        await store.arun(store.leases.end(claim.lease, "crashed by a test", EVERY_TENANT))
        if self.abandon is not None:
            self.abandon()
        await asyncio.Event().wait()  # until the tick is abandoned

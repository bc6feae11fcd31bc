"""Operations on a caller's connection; a connection lent to a handler.

What is done on somebody else's connection to the very same file, inside somebody else's transaction.

A savepoint surrounds each operation: a refusal leaves the transaction as it was, and outside a transaction the
statements of an operation still all succeed or all fail. The connection keeps every setting it has.

A connection for a handler's own statements, in one transaction that also ends its job.

The write lock is taken at the beginning: a handler that has read what it is about to change must not find, when it
writes, that somebody was quicker. So blocks are to be short.
"""

from __future__ import annotations

import abc
import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from holdfast.engine.job import Enqueued, JobSpec
from holdfast.engine.settlement import Settlement
from holdfast.errors import InvalidSetting, SchemaMismatch
from holdfast.features.attempts.model import LogPart
from holdfast.features.workflows.model import Started, WorkflowSpec
from holdfast.stores.flow import Flow, Rows, Statement, Steps, flow
from holdfast.stores.guests import SQLITE, TransactionState, async_guest, ended, guest
from holdfast.stores.migrations import Plan
from holdfast.stores.requests import SchemaStatus
from holdfast.stores.sqlite.connections import Connections
from holdfast.stores.sqlite.errors import translate

if TYPE_CHECKING:
    from holdfast.features.attempts.store import AttemptStore
    from holdfast.features.workflows.store import WorkflowStore
    from holdfast.stores.port import JobStore, LeaseStore

T = TypeVar("T")


class SqliteBorrowedOperations:
    def __init__(self, jobs: JobStore, leases: LeaseStore, workflows: WorkflowStore, attempts: AttemptStore) -> None:
        self._jobs, self._leases, self._workflows, self._attempts = jobs, leases, workflows, attempts

    def enqueue(self, specs: Sequence[JobSpec], tenant: str) -> Flow[list[Enqueued]]:
        return self._jobs.enqueue(specs, tenant)

    def start_workflow(self, spec: WorkflowSpec, tenant: str) -> Flow[Started]:
        return self._workflows.start(spec, tenant)

    @flow()
    def settle(self, lease: str, settlement: Settlement, tenant: str) -> Steps[bool]:
        stale = yield from self._leases.settle(lease, [settlement], tenant).start()
        return not stale

    @flow()
    def append_log(self, lease: str, parts: Sequence[LogPart], tenant: str) -> Steps[None]:
        yield from self._attempts.append_log(lease, parts, tenant).start()


class _Behind(SchemaMismatch):
    """The tables are missing or old, and nothing is open on the connection: they can be brought up to date now."""


class SqliteBorrowing(abc.ABC):
    """The part of the store that works on connections of others."""

    jobs: JobStore
    leases: LeaseStore
    workflows: WorkflowStore
    attempts: AttemptStore
    _connections: Connections
    _plan: Plan
    _current = False
    """The tables were seen, as this release has them."""

    @property
    def borrowed(self) -> SqliteBorrowedOperations:
        return SqliteBorrowedOperations(self.jobs, self.leases, self.workflows, self.attempts)

    @abc.abstractmethod
    def migrate(self) -> SchemaStatus:
        """Bring the tables up to date, on a connection of the store's own."""

    def run_borrowed(self, connection: object, flow: Flow[T], *, within: bool = False) -> T:
        host = guest(connection)
        frame = partial(self._framed, flow, connection, within)
        try:
            try:
                return host.run(frame)
            except _Behind:
                self.migrate()
                return host.run(frame)
        except Exception as error:
            ours = _translated(error)
            if ours is None:
                raise
            raise ours from error

    async def arun_borrowed(self, connection: object, flow: Flow[T], *, within: bool = False) -> T:
        host = async_guest(connection)
        frame = partial(self._framed, flow, connection, within)
        try:
            try:
                return await host.arun(frame)
            except _Behind:
                await asyncio.to_thread(self.migrate)
                return await host.arun(frame)
        except Exception as error:
            ours = _translated(error)
            if ours is None:
                raise
            raise ours from error

    def _framed(self, flow: Flow[T], connection: object, within: bool, standing: TransactionState) -> Steps[T]:
        if standing.database != SQLITE:
            raise _elsewhere(f"the connection is to {standing.database}, and the jobs are in a SQLite file")
        if within and not standing.in_transaction:
            raise ended()
        if connection is not self._connections.lent:
            self._check_file((yield Statement("PRAGMA database_list")))
        if not self._current and not standing.in_transaction:
            yield from self._check_schema(_Behind)
        if standing.begin:
            yield Statement(standing.begin)
        yield Statement("SAVEPOINT holdfast")
        try:
            if not self._current:
                # The lock comes first: a transaction that has read before it writes is refused if somebody has written
                # in between, however long it would wait.
                yield Statement("UPDATE migration SET digest = digest WHERE false")
                yield from self._check_schema(SchemaMismatch)
            result = yield from flow.start()
            yield Statement("RELEASE holdfast")  # with nothing around it that is the commit, and fails like one
        except GeneratorExit:
            raise
        except BaseException:
            yield from _undo(standing)
            raise
        return result

    def _check_file(self, databases: Rows) -> None:
        file = next((row[2] for row in databases if row[1] == "main"), "") or ""
        if self._connections.in_memory or not file:
            raise _elsewhere("a database in memory is known to one connection only")
        if not _same(file, self._connections.path):
            raise _elsewhere(f"the connection is to {file}, and the jobs are in {self._connections.path}")

    def _check_schema(self, behind: type[SchemaMismatch]) -> Steps[None]:
        found = yield Statement("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'migration'")
        applied = (yield Statement("SELECT name, digest FROM migration")) if found else []
        self._plan.check_supported(dict(applied))  # type: ignore[arg-type]
        if self._plan.pending(dict(applied)):  # type: ignore[arg-type]
            raise behind(
                "the Holdfast tables are missing or older than this release",
                code="not_migrated",
                fix="Run: holdfast migrate",
            )
        self._current = True


def _same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except FileNotFoundError:  # the app's file has not been made yet
        return False


def _undo(standing: TransactionState) -> Steps[None]:
    try:
        if not standing.in_transaction:
            yield Statement("ROLLBACK")  # all of it is ours
            return
        yield Statement("ROLLBACK TO holdfast")
        yield Statement("RELEASE holdfast")
    except Exception:
        return  # some failures make SQLite roll back everything by itself


def _elsewhere(message: str) -> InvalidSetting:
    return InvalidSetting(message, code="other_database", fix="Pass a connection to the app's own database file.")


def _translated(error: Exception) -> Exception | None:
    """SQLite's own error in our words, also where SQLAlchemy has wrapped it; None for anything else."""
    found = getattr(error, "orig", error)
    return translate(found) if isinstance(found, sqlite3.Error) else None


class SqliteLending:
    _connections: Connections

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with self._connections.lend() as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.Error as error:
                raise translate(error) from error
            try:
                yield connection
                _commit(connection)
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @asynccontextmanager
    async def atransaction(self) -> AsyncIterator[sqlite3.Connection]:
        """The same connection: what waits for the lock and for the disk is done in a thread."""
        block = self.transaction()
        opening = asyncio.ensure_future(asyncio.to_thread(block.__enter__))

        def abandon(opened: asyncio.Future[sqlite3.Connection]) -> None:
            if not opened.cancelled() and opened.exception() is None:
                block.__exit__(asyncio.CancelledError, asyncio.CancelledError(), None)

        try:
            connection = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(abandon)  # the thread goes on, and must not keep the lock it gets
            raise
        try:
            yield connection
        except BaseException as error:
            block.__exit__(type(error), error, error.__traceback__)
            raise
        await asyncio.to_thread(block.__exit__, None, None, None)


def _commit(connection: sqlite3.Connection) -> None:
    """What a handler's own statement fails with is its driver's; this one is ours."""
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise translate(error) from error

"""Operations in a transaction of the caller; transactions for handlers.

On a caller's connection, which must be to the same file, a savepoint surrounds each operation: after a refusal the
transaction is as before, and outside a transaction the statements of an operation still succeed or fail together. The
settings of the connection are not changed.

A handler's ``transaction()`` block takes the write lock at its beginning: otherwise a write could fail because another
process wrote after the handler had read. So blocks should be short.
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
from holdfast.stores.adapters import OWN_DATABASE, SQLITE, TransactionState, adapt, adapt_async, transaction_ended
from holdfast.stores.flow import Flow, Rows, Statement, Steps, flow
from holdfast.stores.migrations import Plan
from holdfast.stores.requests import SchemaStatus
from holdfast.stores.sqlite.connections import Connections
from holdfast.stores.sqlite.errors import translate

if TYPE_CHECKING:
    from holdfast.features.attempts.store import SqliteAttempts
    from holdfast.features.workflows.store import WorkflowStore
    from holdfast.stores.sqlite.jobs import SqliteJobs
    from holdfast.stores.sqlite.leases import SqliteLeases

T = TypeVar("T")


class SqliteCallerOperations:
    def __init__(
        self, jobs: SqliteJobs, leases: SqliteLeases, workflows: WorkflowStore, attempts: SqliteAttempts
    ) -> None:
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
    """The tables are missing or old, and no transaction is open on the connection: they can be migrated now."""


class SqliteTransactions(abc.ABC):
    """The part of the store for callers' connections and for handlers' transactions."""

    jobs: SqliteJobs
    leases: SqliteLeases
    workflows: WorkflowStore
    attempts: SqliteAttempts
    _connections: Connections
    _plan: Plan
    _current = False
    """Whether the tables were checked and are those of this release."""

    @property
    def on_connection(self) -> SqliteCallerOperations:
        return SqliteCallerOperations(self.jobs, self.leases, self.workflows, self.attempts)

    @abc.abstractmethod
    def migrate(self) -> SchemaStatus:
        """Migrate the tables, on a connection of the store."""

    def run_on_connection(self, connection: object, flow: Flow[T], *, within: bool = False) -> T:
        adapter = adapt(connection)
        frame = partial(self._framed, flow, connection, within)
        try:
            try:
                return adapter.run(frame)
            except _Behind:
                self.migrate()
                return adapter.run(frame)
        except Exception as error:
            translated = _translated(error)
            if translated is None:
                raise
            raise translated from error

    async def arun_on_connection(self, connection: object, flow: Flow[T], *, within: bool = False) -> T:
        adapter = adapt_async(connection)
        frame = partial(self._framed, flow, connection, within)
        try:
            try:
                return await adapter.arun(frame)
            except _Behind:
                await asyncio.to_thread(self.migrate)
                return await adapter.arun(frame)
        except Exception as error:
            translated = _translated(error)
            if translated is None:
                raise
            raise translated from error

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with self._connections.for_handler() as connection:
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
        """The same sync connection; waits for the lock and for the disk are in a thread."""
        block = self.transaction()
        opening = asyncio.ensure_future(asyncio.to_thread(block.__enter__))

        def abandon(opened: asyncio.Future[sqlite3.Connection]) -> None:
            if not opened.cancelled() and opened.exception() is None:
                block.__exit__(asyncio.CancelledError, asyncio.CancelledError(), None)

        try:
            connection = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(abandon)  # the thread continues, and must not keep the lock it gets
            raise
        try:
            yield connection
        except BaseException as error:
            block.__exit__(type(error), error, error.__traceback__)
            raise
        await asyncio.to_thread(block.__exit__, None, None, None)

    def _framed(self, flow: Flow[T], connection: object, within: bool, state: TransactionState) -> Steps[T]:
        if state.database != SQLITE:
            raise _elsewhere(f"the connection is to {state.database}, and the jobs are in a SQLite file")
        if within and not state.in_transaction:
            raise transaction_ended()
        if connection is not self._connections.handler_connection:
            self._check_file((yield Statement("PRAGMA database_list")))
        if not self._current and not state.in_transaction:
            yield from self._check_schema(_Behind)
        if state.begin:
            yield Statement(state.begin)
        yield Statement("SAVEPOINT holdfast")
        try:
            if not self._current:
                # Take the write lock first: a transaction that reads before it writes fails at once if another process
                # has written in between, whatever its busy timeout.
                yield Statement("UPDATE holdfast_migration SET digest = digest WHERE false")
                yield from self._check_schema(SchemaMismatch)
            result = yield from flow.start()
            yield Statement("RELEASE holdfast")  # outside a transaction this is the commit, and can fail like one
        except GeneratorExit:
            raise
        except BaseException:
            yield from _undo(state)
            raise
        return result

    def _check_file(self, databases: Rows) -> None:
        file = next((row[2] for row in databases if row[1] == "main"), "") or ""
        if self._connections.in_memory or not file:
            raise _elsewhere("a database in memory is known to one connection only")
        if not _same(file, self._connections.path):
            raise _elsewhere(f"the connection is to {file}, and the jobs are in {self._connections.path}")

    def _check_schema(self, behind: type[SchemaMismatch]) -> Steps[None]:
        exists = yield Statement("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'holdfast_migration'")
        applied = (yield Statement("SELECT name, digest FROM holdfast_migration")) if exists else []
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
    except FileNotFoundError:  # the app's file does not exist yet
        return False


def _undo(state: TransactionState) -> Steps[None]:
    try:
        if not state.in_transaction:
            yield Statement("ROLLBACK")  # the whole transaction is ours
            return
        yield Statement("ROLLBACK TO holdfast")
        yield Statement("RELEASE holdfast")
    except Exception:
        return  # after some failures SQLite has already rolled back everything


def _elsewhere(message: str) -> InvalidSetting:
    return InvalidSetting(message, code="other_database", fix=OWN_DATABASE)


def _translated(error: Exception) -> Exception | None:
    """The Holdfast error for an error of SQLite, also if SQLAlchemy has wrapped it; None for others."""
    original = getattr(error, "orig", error)
    return translate(original) if isinstance(original, sqlite3.Error | UnicodeEncodeError) else None


def _commit(connection: sqlite3.Connection) -> None:
    """Commit, and translate its errors. Errors of the handler's own statements stay those of the driver."""
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise translate(error) from error

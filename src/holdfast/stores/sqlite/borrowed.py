"""What is done on somebody else's connection to the very same file, inside somebody else's transaction.

Around each verb is a savepoint: a refusal leaves the transaction as it was, and where none is open the few statements
of a verb are still all done or none. The connection keeps every setting it has.
"""

from __future__ import annotations

import abc
import asyncio
import os
import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import TypeVar

from holdfast.engine.job import Enqueued, JobSpec
from holdfast.engine.settlement import Settlement
from holdfast.errors import InvalidSetting, SchemaMismatch
from holdfast.features.workflows.model import Started, WorkflowSpec
from holdfast.stores.base import SchemaStatus
from holdfast.stores.borrowed.guest import SQLITE, Standing, ended
from holdfast.stores.borrowed.recognise import async_guest, guest
from holdfast.stores.flow import Flow, Rows, Statement, Steps, flow
from holdfast.stores.migrate import Plan
from holdfast.stores.sqlite.connection import Connections
from holdfast.stores.sqlite.failures import translate
from holdfast.stores.sqlite.verbs import SqliteVerbs

T = TypeVar("T")


class SqliteBorrowedVerbs:
    def __init__(self, verbs: SqliteVerbs) -> None:
        self._verbs = verbs

    def enqueue(self, specs: Sequence[JobSpec], tenant: str) -> Flow[list[Enqueued]]:
        return self._verbs.enqueue(specs, tenant)

    def start_workflow(self, spec: WorkflowSpec, tenant: str) -> Flow[Started]:
        return self._verbs.start_workflow(spec, tenant)

    @flow()
    def settle(self, lease: str, settlement: Settlement, tenant: str) -> Steps[bool]:
        stale = yield from self._verbs.settle(lease, [settlement], tenant).start()
        return not stale


class Behind(SchemaMismatch):
    """The tables are missing or old, and nothing is open on the connection: they can be brought up to date now."""


class SqliteBorrowing(abc.ABC):
    """The part of the store that works on connections of others."""

    verbs: SqliteVerbs
    _connections: Connections
    _plan: Plan
    _current = False
    """The tables were seen, as this release has them."""

    @property
    def borrowed(self) -> SqliteBorrowedVerbs:
        return SqliteBorrowedVerbs(self.verbs)

    @abc.abstractmethod
    def migrate(self) -> SchemaStatus:
        """Bring the tables up to date, on a connection of the store's own."""

    def run_borrowed(self, connection: object, flow: Flow[T], *, within: bool = False) -> T:
        host = guest(connection)
        frame = partial(self._framed, flow, connection, within)
        try:
            try:
                return host.run(frame)
            except Behind:
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
            except Behind:
                await asyncio.to_thread(self.migrate)
                return await host.arun(frame)
        except Exception as error:
            ours = _translated(error)
            if ours is None:
                raise
            raise ours from error

    def _framed(self, flow: Flow[T], connection: object, within: bool, standing: Standing) -> Steps[T]:
        if standing.database != SQLITE:
            raise _elsewhere(f"the connection is to {standing.database}, and the jobs are in a SQLite file")
        if within and not standing.in_transaction:
            raise ended()
        if connection is not self._connections.lent:
            self._check_file((yield Statement("PRAGMA database_list")))
        if not self._current and not standing.in_transaction:
            yield from self._check_schema(Behind)
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
        self._plan.check_not_newer(dict(applied))  # type: ignore[arg-type]
        if self._plan.pending(dict(applied)):  # type: ignore[arg-type]
            raise behind(
                "the tables of Holdfast are not in this database, or are older than this release",
                code="not_migrated",
                fix="Run: holdfast migrate",
            )
        self._current = True


def _same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except FileNotFoundError:  # the app's file has not been made yet
        return False


def _undo(standing: Standing) -> Steps[None]:
    try:
        if not standing.in_transaction:
            yield Statement("ROLLBACK")  # all of it is ours
            return
        yield Statement("ROLLBACK TO holdfast")
        yield Statement("RELEASE holdfast")
    except Exception:
        return  # some failures make SQLite roll back everything by itself


def _elsewhere(message: str) -> InvalidSetting:
    return InvalidSetting(message, code="other_database", fix="Give a connection to the file that the app was given.")


def _translated(error: Exception) -> Exception | None:
    """SQLite's own error in our words, also where SQLAlchemy has wrapped it; None for anything else."""
    found = getattr(error, "orig", error)
    return translate(found) if isinstance(found, sqlite3.Error) else None

"""The SQLite store: flows in this thread or in a helper thread, errors in our words, migrations."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import random
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from holdfast.errors import StoreUnavailable
from holdfast.features.health.model import USUAL, Concern, Thresholds
from holdfast.stores.aside import aside
from holdfast.stores.base import Finding, SchemaStatus
from holdfast.stores.due import DueWork
from holdfast.stores.ear import Names
from holdfast.stores.flow import Flow, Rows, Statement, drive
from holdfast.stores.migrate import Plan, Script
from holdfast.stores.outage import Outage
from holdfast.stores.recording import sqlite_triggers
from holdfast.stores.sqlite.borrowed import SqliteBorrowing
from holdfast.stores.sqlite.connection import Connections, database_path
from holdfast.stores.sqlite.doctor import conditions, diagnose
from holdfast.stores.sqlite.ear import SqliteEar
from holdfast.stores.sqlite.failures import is_busy, translate
from holdfast.stores.sqlite.lending import SqliteLending
from holdfast.stores.sqlite.verbs import SqliteVerbs

T = TypeVar("T")

RETRIES = 5
# Who waits for the lock of another process is not waited for.
CLOSE_WITHIN = 0.5
PROBE_BYTES = 256 * 1024
"""What enqueuing a job may add to the log."""
PROBE_MILLISECONDS = 100
"""How long a check of the disk waits for the lock of another writer."""


class SqliteStore(SqliteBorrowing, SqliteLending):
    embedded = True
    lanes = 1  # there is one writer at a time; a second turn would only wait for the first

    def __init__(self, url: str) -> None:
        self.url = url
        self.verbs = SqliteVerbs()
        self.outage = Outage()
        self._connections = Connections(database_path(url))
        self._plan = Plan.of(__package__, Script("recording", sqlite_triggers()))
        self._threads: dict[bool, ThreadPoolExecutor] = {}
        self._owner = os.getpid()
        self._ear = SqliteEar(self._connections)

    # --- running flows ---

    def run(self, flow: Flow[T]) -> T:
        latest = time.monotonic() + self._connections.patience
        for attempt in range(RETRIES):
            try:
                with self._connections.borrow() as connection:
                    if flow.peek is not None:
                        answer = run_on(connection, Flow(flow.peek, writes=False))
                        if answer is not None:
                            return answer
                    result = run_on(connection, flow)
                    if flow.writes:
                        self._connections.after_write(connection)
                break
            except sqlite3.Error as error:
                # A lock is waited for by SQLite, once; what else makes it busy is over in a moment.
                if not is_busy(error) or attempt + 1 == RETRIES or time.monotonic() >= latest:
                    raise translate(error) from error
            time.sleep(random.uniform(0.005, 0.02) * 2**attempt)
        else:
            raise AssertionError("unreachable")  # the last attempt breaks or raises
        if flow.tells:
            self._ear.tell("")
        return result

    async def arun(self, flow: Flow[T]) -> T:
        """In a thread: a commit waits for the disk, and the loop must not. What is bound here (the tenant, who asks) is
        bound there as well: a flow may look at it while it runs."""
        loop, here = asyncio.get_running_loop(), contextvars.copy_context()
        return await loop.run_in_executor(self._threads_for(flow), here.run, self.run, flow)

    def _threads_for(self, flow: Flow[Any]) -> ThreadPoolExecutor:
        """Who reads has threads of its own: those that write may all be waiting for somebody else's lock."""
        if self._owner != os.getpid():  # threads do not come along in a fork
            self._threads, self._owner = {}, os.getpid()
        if flow.writes not in self._threads:
            self._threads[flow.writes] = ThreadPoolExecutor(max_workers=4, thread_name_prefix="holdfast-store")
        return self._threads[flow.writes]

    @property
    def listening(self) -> bool:
        return False  # it is told of any commit, not of jobs: a poll finds out, and is cheap

    async def due_work(self, lease: str | None, tenant: str) -> DueWork | None:
        return None

    def listen(self, heard: Callable[[str], None], names: Names | None = None) -> Callable[[], None]:
        return self._ear.add(heard, names)

    def close(self) -> None:
        self._ear.close()
        threads, self._threads = self._threads, {}
        endings = [
            threading.Thread(target=each.shutdown, name="holdfast-closing", daemon=True) for each in threads.values()
        ]
        for ending in endings:
            ending.start()
        for ending in endings:
            ending.join(CLOSE_WITHIN)
        self._connections.close()

    async def leave_loop(self) -> None:
        """Nothing belongs to a loop: connections and threads serve them all."""

    async def aclose(self) -> None:
        await aside(self.close)

    # --- schema ---

    @contextlib.contextmanager
    def _borrowed(self) -> Iterator[sqlite3.Connection]:
        """A connection for what is no flow."""
        try:
            with self._connections.borrow() as connection:
                yield connection
        except sqlite3.Error as error:
            raise translate(error) from error

    def schema(self) -> SchemaStatus:
        with self._borrowed() as connection:
            return self._plan.status(_applied(connection))

    async def aschema(self) -> SchemaStatus:
        return await aside(self.schema)

    def migrate(self) -> SchemaStatus:
        with self._borrowed() as connection:
            status = self._plan.status(_applied(connection))
            if status.current:
                return status  # without the lock, which may be held by whoever is asking: a handler in its transaction
            connection.execute("BEGIN IMMEDIATE")
            applied = _applied(connection)
            self._plan.check_not_newer(applied)
            for script in self._plan.pending(applied):
                try:
                    for statement in split(script.sql):
                        connection.execute(statement)
                except sqlite3.Error as error:
                    raise script.failure(translate(error), str(error)) from error
                connection.execute(
                    "INSERT INTO migration (name, digest) VALUES (?, ?)"
                    " ON CONFLICT (name) DO UPDATE SET digest = excluded.digest",
                    (script.name, script.digest),
                )
            connection.execute("COMMIT")
            return self._plan.status(_applied(connection))

    def check_writable(self) -> None:
        """By the room that is left for a small job, and by a commit on a connection of its own: what is rolled back
        never gets as far as the disk. A lock that another writer holds is no fault, and is not waited for."""
        if self._connections.in_memory:
            return
        with contextlib.suppress(OSError):
            if shutil.disk_usage(self._connections.path).free < PROBE_BYTES:
                raise StoreUnavailable(
                    "There is no space left for the database.", code="disk_full", fix="Free space on its disk."
                )
        try:
            with self._connections.own() as connection:
                connection.execute(f"PRAGMA busy_timeout = {PROBE_MILLISECONDS}")
                connection.execute(
                    "UPDATE migration SET digest = digest WHERE name = (SELECT min(name) FROM migration)"
                )
                self._connections.after_write(connection)
        except sqlite3.Error as error:
            if not is_busy(error):
                raise translate(error) from error

    def migration_sql(self) -> str:
        parts = ["BEGIN IMMEDIATE;"]
        for script in (*self._plan.migrations, self._plan.code):
            parts.append(f"-- {script.name}\n{script.sql}")
            parts.append(f"INSERT INTO migration (name, digest) VALUES ('{script.name}', '{script.digest}');")
        return "\n".join([*parts, "COMMIT;\n"])

    def diagnose(self) -> list[Finding]:
        with self._borrowed() as connection:
            return diagnose(connection, self._connections.path, self._plan.status(_applied(connection)))

    def conditions(self, when: Thresholds = USUAL) -> list[Concern]:
        with self._borrowed() as connection:
            return conditions(connection, self._connections.path, when)

    async def aconditions(self, when: Thresholds = USUAL) -> list[Concern]:
        return await aside(self.conditions, when)


def run_on(connection: sqlite3.Connection, flow: Flow[T]) -> T:
    """Run a flow in a transaction of its own. Text that is not UTF-8 must not keep the rest from being read: the flow
    is run again, and what is wrong with the text is replaced."""
    try:
        return _run_on(connection, flow)
    except sqlite3.OperationalError as error:
        if "Could not decode to UTF-8" not in str(error):
            raise
    usual = connection.text_factory
    connection.text_factory = lambda data: data.decode(errors="replace")
    try:
        return _run_on(connection, flow)
    finally:
        connection.text_factory = usual


def _run_on(connection: sqlite3.Connection, flow: Flow[T]) -> T:
    """One that writes takes the write lock first, so that it never has to give up half-way because somebody else wrote
    in between."""

    def execute(statement: Statement) -> Rows:
        if statement.many:
            connection.executemany(statement.sql, statement.params)
            return []
        return connection.execute(statement.sql, statement.params).fetchall()

    connection.execute("BEGIN IMMEDIATE" if flow.writes else "BEGIN")
    try:
        result = drive(flow.start(), execute)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result


def split(script: str) -> list[str]:
    """The statements of a script; triggers have semicolons inside them, which SQLite can tell."""
    statements, current = [], ""
    for line in script.splitlines(keepends=True):
        current += line
        if sqlite3.complete_statement(current):
            statements.append(current.strip())
            current = ""
    return statements


def _applied(connection: sqlite3.Connection) -> dict[str, str]:
    try:
        return dict(connection.execute("SELECT name, digest FROM migration").fetchall())
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return {}
        raise translate(error) from error
    except sqlite3.DatabaseError as error:
        raise translate(error) from error

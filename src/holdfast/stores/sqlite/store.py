"""``SqliteDatabase``: runs flows in the caller's thread or in a thread pool; health and doctor checks."""

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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from holdfast.engine.operation import drive
from holdfast.errors import StoreUnavailable
from holdfast.features.health.model import DEFAULT_THRESHOLDS, Concern, Thresholds, full_disk, large_log, weak_setting
from holdfast.stores.flow import Flow, Statement, in_thread
from holdfast.stores.listener import Names
from holdfast.stores.migrations import Execute
from holdfast.stores.outage import Outage
from holdfast.stores.requests import DueWork, Finding, Login, MigrationStep, Removal, SchemaStatus
from holdfast.stores.sqlite.connections import Connections, database_path
from holdfast.stores.sqlite.errors import is_busy, translate
from holdfast.stores.sqlite.listener import SqliteListener
from holdfast.stores.sqlite.migrations import plan_with
from holdfast.stores.sqlite.removal import down_on, plan_on, uninstall_on
from holdfast.stores.sqlite.shared_commits import SharedCommits, Write
from holdfast.stores.sqlite.transactions import SqliteTransactions
from holdfast.stores.sqlite.upgrade import apply, identities, take_later_steps

WAL_ALARM = 256 * 1024 * 1024
DISK_ALARM = 200 * 1024 * 1024
FULL = 2


def conditions(connection: sqlite3.Connection, path: str, when: Thresholds) -> list[Concern]:
    """The cheap checks, which health runs every few seconds."""
    if path == ":memory:":
        return []  # the doctor reports it
    synchronous, mode = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "journal_mode"))
    weak = [f"synchronous = {synchronous}"] if synchronous < FULL else []
    weak += [f"journal_mode = {mode}"] if mode != "wal" else []
    log = os.path.getsize(path + "-wal") if os.path.exists(path + "-wal") else 0
    free = shutil.disk_usage(os.path.dirname(os.path.abspath(path))).free
    concerns = [*(weak_setting(each, corrupts=False) for each in weak), large_log(log, when), full_disk(free, when)]
    return [concern for concern in concerns if concern is not None]


def diagnose(connection: sqlite3.Connection, path: str, status: SchemaStatus) -> list[Finding]:
    def pragma(name: str) -> object:
        return connection.execute(f"PRAGMA {name}").fetchone()[0]

    synchronous = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}.get(int(str(pragma("synchronous"))), "?")
    findings = [
        Finding("library", True, f"SQLite {sqlite3.sqlite_version}"),
        status.finding,
    ]
    if path == ":memory:":
        return [
            *findings,
            Finding("durability", False, "the database is in memory", "Use a file for anything real."),
        ]
    mode = pragma("journal_mode")
    safe = mode == "wal" and synchronous in ("FULL", "EXTRA")
    findings.append(
        Finding(
            "durability",
            safe,
            f"journal_mode = {mode}, synchronous = {synchronous}",
            None if safe else "Accepted jobs can be lost in a power cut: use WAL and FULL.",
        )
    )
    sound = pragma("quick_check(1)")
    findings.append(
        Finding("integrity", sound == "ok", str(sound), None if sound == "ok" else "Restore from a backup.")
    )
    size = os.path.getsize(path + "-wal") if os.path.exists(path + "-wal") else 0
    findings.append(
        Finding(
            "write-ahead log",
            size < WAL_ALARM,
            f"{size / 1e6:.1f} MB",
            None if size < WAL_ALARM else "A long reader keeps it from being moved into the file; find and end it.",
        )
    )
    findings.append(_readers(path))
    free = shutil.disk_usage(os.path.dirname(os.path.abspath(path))).free
    findings.append(
        Finding(
            "disk",
            free > DISK_ALARM,
            f"{free / 1e9:.1f} GB free",
            None if free > DISK_ALARM else "Free disk space soon.",
        )
    )
    return findings


def _readers(path: str) -> Finding:
    """Which users besides the owner can read the database, with the jobs and payloads of every tenant."""
    files = [path, *(path + suffix for suffix in ("-wal", "-shm") if os.path.exists(path + suffix))]
    modes = {each: os.stat(each).st_mode for each in files}
    if open_to_all := [each for each, mode in modes.items() if mode & 0o007]:
        return Finding(
            "file mode",
            False,
            f"every user of this machine can read {', '.join(open_to_all)}",
            f"chmod o= {' '.join(open_to_all)}",
        )
    shared = any(mode & 0o070 for mode in modes.values())
    return Finding(
        "file mode", True, "only its owner and group can read it" if shared else "only its owner can read it"
    )


T = TypeVar("T")

RETRIES = 5
# Seconds that closing waits for threads: one may wait for the lock of another process.
CLOSE_WITHIN = 0.5
PROBE_BYTES = 256 * 1024
"""The size that enqueuing a job may add to the log."""
PROBE_MILLISECONDS = 100
"""How long the check of the disk waits for the lock of another writer."""


class SqliteDatabase(SqliteTransactions):
    embedded = True
    pipeline_depth = 1  # there is one writer at a time; a second exchange would only wait for the first

    def __init__(self, url: str, *, features: tuple[str, ...] = ()) -> None:
        """``features`` are the features whose SQL is installed with the engine's."""
        self.url = url
        self.outage = Outage()
        self._connections = Connections(database_path(url))
        self._plan = plan_with(features)
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self._owner = os.getpid()
        self._listener = SqliteListener(self._connections)
        self._shared = SharedCommits(self._run_alone, self._run_together, lambda: self._threads_for("shared"))

    # --- running flows ---

    def run(self, flow: Flow[T]) -> T:
        if flow.short and not self._connections.in_memory:
            return self._shared.run(flow)
        return self._run_alone(flow)

    def _run_alone(self, flow: Flow[T]) -> T:
        def work(connection: sqlite3.Connection) -> T:
            if flow.peek is not None:
                peeked = run_on(connection, Flow(flow.peek, writes=False))
                if peeked is not None:
                    return peeked
            result = run_on(connection, flow)
            if flow.writes:
                self._connections.after_write(connection)
            return result

        result = self._attempt(work)
        if flow.notifies:
            self._listener.notify("")
        return result

    def _run_together(self, writes: Sequence[Write]) -> None:
        def work(connection: sqlite3.Connection) -> list[tuple[Write, Any]]:
            results = run_in_savepoints(connection, writes)
            self._connections.after_write(connection)
            return results

        results = self._attempt(work)
        for write, result in results:
            write.succeed(result)
        if any(write.flow.notifies for write, _ in results):
            self._listener.notify("")

    def _attempt(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Call ``work`` with a connection. SQLite itself waits for a lock, once. Other reasons for SQLITE_BUSY pass
        quickly."""
        latest = time.monotonic() + self._connections.busy_seconds
        for attempt in range(RETRIES):
            try:
                with self._connections.take() as connection:
                    return work(connection)
            except UnicodeEncodeError as error:
                raise translate(error) from error
            except sqlite3.Error as error:
                if not is_busy(error) or attempt + 1 == RETRIES or time.monotonic() >= latest:
                    raise translate(error) from error
            time.sleep(random.uniform(0.005, 0.02) * 2**attempt)
        raise AssertionError("unreachable")  # the last attempt returns or raises

    async def arun(self, flow: Flow[T]) -> T:
        """Run the flow in a thread: a commit waits for the disk, and the loop must not. Context variables (tenant,
        actor) are copied, because a flow may read them while it runs."""
        if flow.short and not self._connections.in_memory:
            return await self._shared.arun(flow)
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()
        threads = self._threads_for("writes" if flow.writes else "reads")
        return await loop.run_in_executor(threads, context.run, self.run, flow)

    def _threads_for(self, work: str) -> ThreadPoolExecutor:
        """Reads, writes and shared commits have separate threads: all writing threads may be waiting for the lock of
        another process."""
        if self._owner != os.getpid():  # a forked child has none of the threads
            self._threads, self._owner = {}, os.getpid()
        if work not in self._threads:
            self._threads[work] = ThreadPoolExecutor(1 if work == "shared" else 4, thread_name_prefix="holdfast-store")
        return self._threads[work]

    @property
    def listening(self) -> bool:
        return False  # any commit notifies, not only new jobs; polling is cheap

    async def due_work(self, lease: str | None, tenant: str, ttl: float | None = None) -> DueWork | None:
        return None

    def listen(
        self, notify: Callable[[str], None], names: Names | None = None, awaited: Names | None = None
    ) -> Callable[[], None]:
        return self._listener.add(notify, names, awaited)

    def refresh_listening(self) -> None:
        self._listener.refresh()

    def close(self) -> None:
        self._listener.close()
        threads, self._threads = self._threads, {}
        closers = [
            threading.Thread(target=pool.shutdown, name="holdfast-closing", daemon=True) for pool in threads.values()
        ]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join(CLOSE_WITHIN)
        self._connections.close()

    async def leave_loop(self) -> None:
        """Nothing to do: connections and threads do not belong to a loop."""

    async def aclose(self) -> None:
        await in_thread(self.close)

    # --- schema ---

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """A connection for work that is not a flow."""
        try:
            with self._connections.take() as connection:
                yield connection
        except sqlite3.Error as error:
            raise translate(error) from error

    def schema(self) -> SchemaStatus:
        with self._connected() as connection:
            return self._plan.status(_applied(connection))

    async def aschema(self) -> SchemaStatus:
        return await in_thread(self.schema)

    def migrate(self) -> SchemaStatus:
        with self._connected() as connection:
            status = self._plan.status(_applied(connection))
            if status.current:
                return status  # without the lock, which the caller may hold: a handler in its transaction
            connection.execute("BEGIN IMMEDIATE")
            apply(connection, self._plan, _applied(connection))
            connection.execute("COMMIT")
            take_later_steps(connection, self._plan, _applied(connection))
            return self._plan.status(_applied(connection))

    def migrate_within(self, connection: Execute) -> None:
        """Create or update the tables in the transaction that is open on a caller's connection."""
        exists = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'holdfast_migration'").fetchall()
        rows = connection.execute("SELECT name, digest FROM holdfast_migration").fetchall() if exists else []
        apply(connection, self._plan, {row[0]: row[1] for row in rows}, at_once=True)

    def migration_plan(self) -> list[MigrationStep]:
        with self._connected() as connection:
            return plan_on(self._plan, _applied(connection))

    def migrate_down(self, release: str) -> list[str]:
        with self._connected() as connection:
            return down_on(connection, self._plan, _applied(connection), release)

    def uninstall(self, *, dry: bool, force: bool = False, roles: bool = False) -> Removal:
        with self._connected() as connection:
            if not _applied(connection):
                return Removal((), 0)
            return uninstall_on(connection, dry=dry, force=force)

    def check_writable(self) -> None:
        """Checks that there is disk space for a small job, and commits on a separate connection: a transaction that is
        rolled back never reaches the disk. A lock held by another writer is not an error."""
        if self._connections.in_memory:
            return
        with contextlib.suppress(OSError):
            if shutil.disk_usage(self._connections.path).free < PROBE_BYTES:
                raise StoreUnavailable(
                    "No space is left for the database.", code="disk_full", fix="Free space on its disk."
                )
        try:
            with self._connections.separate() as connection:
                connection.execute(f"PRAGMA busy_timeout = {PROBE_MILLISECONDS}")
                connection.execute(
                    "UPDATE holdfast_migration SET digest = digest WHERE name = (SELECT min(name) FROM"
                    " holdfast_migration)"
                )
                self._connections.after_write(connection)
        except sqlite3.Error as error:
            if not is_busy(error):
                raise translate(error) from error

    def migration_sql(self) -> str:
        parts = ["BEGIN IMMEDIATE;"]
        for script in (*self._plan.migrations, self._plan.code, *self._plan.later):
            parts.append(f"-- {script.name}\n{script.sql}")
            for name, digest in self._plan.marks(script).items():
                parts.append(f"INSERT INTO holdfast_migration (name, digest) VALUES ('{name}', '{digest}');")
        parts += [f"INSERT INTO holdfast_installed (name) VALUES ('{name}');" for name in identities(self._plan.code)]
        return "\n".join([*parts, "COMMIT;\n"])

    def diagnose(self) -> list[Finding]:
        with self._connected() as connection:
            return diagnose(connection, self._connections.path, self._plan.status(_applied(connection)))

    def logins(self) -> list[Login]:
        return []

    def conditions(self, when: Thresholds = DEFAULT_THRESHOLDS) -> list[Concern]:
        with self._connected() as connection:
            return conditions(connection, self._connections.path, when)

    async def aconditions(self, when: Thresholds = DEFAULT_THRESHOLDS) -> list[Concern]:
        return await in_thread(self.conditions, when)


def run_on(connection: sqlite3.Connection, flow: Flow[T]) -> T:
    """Run a flow in a transaction. If a text is not UTF-8, the flow runs again with invalid bytes replaced, so that all
    other rows can be read."""
    try:
        return _run_on(connection, flow)
    except sqlite3.OperationalError as error:
        if "Could not decode to UTF-8" not in str(error):
            raise
    text_factory = connection.text_factory
    connection.text_factory = lambda data: data.decode(errors="replace")
    try:
        return _run_on(connection, flow)
    finally:
        connection.text_factory = text_factory


def _run_on(connection: sqlite3.Connection, flow: Flow[T]) -> T:
    """A flow that writes takes the write lock first, so that it never fails half-way because of another writer."""
    with _transaction(connection, "BEGIN IMMEDIATE" if flow.writes else "BEGIN"):
        return drive(flow.start(), partial(_execute, connection), Exception)


def run_in_savepoints(connection: sqlite3.Connection, writes: Sequence[Write]) -> list[tuple[Write, Any]]:
    """Run the writes in one transaction. Returns those that did not fail, with their results."""
    results = []
    execute = partial(_execute, connection)
    with _transaction(connection, "BEGIN IMMEDIATE"):
        for write in writes:
            connection.execute("SAVEPOINT shared")
            try:
                results.append((write, write.context.run(drive, write.flow.start(), execute, Exception)))
            except Exception:
                connection.execute("ROLLBACK TO shared")  # fails if SQLite has rolled back the whole transaction
            connection.execute("RELEASE shared")
    return results


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _execute(connection: sqlite3.Connection, statement: Statement) -> Any:
    if statement.many:
        connection.executemany(statement.sql, statement.params)
        return []
    if statement.batch:
        return [_execute(connection, each) for each in statement.batch]
    return connection.execute(statement.sql, statement.params).fetchall()


def _applied(connection: sqlite3.Connection) -> dict[str, str]:
    try:
        return dict(connection.execute("SELECT name, digest FROM holdfast_migration").fetchall())
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return {}
        raise translate(error) from error
    except sqlite3.DatabaseError as error:
        raise translate(error) from error

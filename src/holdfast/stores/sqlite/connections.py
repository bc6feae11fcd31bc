"""Connections to one SQLite file: set up, shared between threads, and checkpointed.

Invariants: every write transaction begins with the write lock (``BEGIN IMMEDIATE``). Nothing is reported as written
before it is synced (``synchronous=FULL``). Only one process at a time checkpoints the write-ahead log, under a separate
lock file, because before SQLite 3.51.3 two at once could damage it. A connection is never used in a forked child. No
write goes to a file that was removed or replaced.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Self

from holdfast.engine.redaction import shown_url
from holdfast.errors import InvalidSetting, StoreUnavailable
from holdfast.stores.host_files import private_handle
from holdfast.stores.locks import fork_safe_lock
from holdfast.stores.sqlite.errors import is_busy, translate

# Without the prefix `fuse.` of file systems in user space.
NETWORK = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ncpfs", "sshfs", "glusterfs", "ceph", "ceph-fuse"),
        *("lustre", "beegfs", "rclone", "s3fs"),
    }
)


def refuse_network_file_system(path: Path, mounts: Path = Path("/proc/self/mounts")) -> None:
    """Raise if the path is on a network file system. Does nothing if the mount table cannot be read."""
    try:
        table = mounts.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    target = path.absolute().resolve()
    best = ("", "")
    for line in table.splitlines():
        parts = line.split(" ")
        if len(parts) < 3:
            continue
        point = parts[1].replace("\\040", " ")
        if target.is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, parts[2])
    if best[1].removeprefix("fuse.") in NETWORK:
        raise InvalidSetting(
            f"{path} is on a network file system ({best[1]} at {best[0]})",
            code="network_file_system",
            fix="Keep the database on a local disk, or use PostgreSQL for several machines.",
        )


Identity = tuple[int, int]


def identity_of(path: str) -> Identity | None:
    """Device and inode of a file; None if it does not exist or cannot be accessed."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def create_private(path: str) -> None:
    """Create the file, readable only by its owner, if it does not exist. SQLite gives the log and its index the same
    mode. An existing file keeps its mode. Errors are ignored: SQLite reports them when it opens the file."""
    with contextlib.suppress(OSError):
        os.close(private_handle(path, os.O_RDWR | os.O_EXCL))


def abandon(connection: sqlite3.Connection) -> None:
    """Never close the connection, not even at exit: the last connection to a file deletes the write-ahead log by its
    name, and by now that name belongs to the log of another file."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def gone(path: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"the database file {path} was removed",
        code="database_gone",
        fix="Restore the file, or restart the processes if it shall be created again.",
    )


log = logging.getLogger("holdfast.store")

BUSY_SECONDS = 60.0
CHECKPOINT_BYTES = 16 * 1024 * 1024
CACHED = 2
"""Connections of the pool with a cache of 16 MB. More are used only by many calls at once, and have 2 MB."""
OLDEST = (3, 38, 0)


def database_path(url: str) -> str:
    """The file of a URL: three slashes for a relative path, four for an absolute one."""
    prefix = "sqlite:///"
    path = url.removeprefix(prefix).split("?", 1)[0]
    if not url.startswith(prefix) or not path or path == "/":
        raise InvalidSetting(
            f"{shown_url(url)} names no database file",
            code="invalid_url",
            fix="Use sqlite:///jobs.db, sqlite:////var/lib/app/jobs.db or sqlite:///:memory:.",
        )
    return path


class StoreConnection(sqlite3.Connection):
    """A connection that remembers the identity of its file."""

    large = True
    """Whether it has a large cache."""

    file: Identity | None = None


class HandlerConnection(StoreConnection):
    """A connection for a handler. Only the block ends its transaction: ``with connection:`` does not end it, and
    ``executescript``, which would commit it, is refused."""

    def commit(self) -> None:
        raise sqlite3.ProgrammingError("the transaction is committed at the end of its block, not inside")

    def rollback(self) -> None:
        raise sqlite3.ProgrammingError("the transaction is rolled back by an exception in its block, not by hand")

    def executescript(self, sql_script: str, /) -> sqlite3.Cursor:
        raise sqlite3.ProgrammingError("a script would commit the transaction first; execute its statements one by one")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> Literal[False]:
        return False


class Connections:
    """A small pool. A database in memory has a single connection, which all threads share."""

    def __init__(self, path: str) -> None:
        if sqlite3.sqlite_version_info < OLDEST:
            raise InvalidSetting(
                f"SQLite {sqlite3.sqlite_version} is too old",
                code="sqlite_too_old",
                fix="Use a newer Python: Holdfast needs SQLite 3.38 or newer.",
            )
        self.path = path
        self.busy_seconds = BUSY_SECONDS
        self.in_memory = path == ":memory:"
        if not self.in_memory:
            refuse_network_file_system(Path(path))
        self._idle: list[StoreConnection] = []
        self._large = 0
        self._file: Identity | None = None
        self._warned = 0.0
        self._guard = fork_safe_lock()
        self._memory_lock = fork_safe_lock()
        self.handler_connection: sqlite3.Connection | None = None
        self._pid = os.getpid()

    @contextlib.contextmanager
    def take(self) -> Iterator[StoreConnection]:
        """A connection of the pool, for the time of the block."""
        with self._memory_lock if self.in_memory else contextlib.nullcontext():
            connection = self._take()
            try:
                yield connection
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                self._give_back(connection)

    @contextlib.contextmanager
    def for_handler(self) -> Iterator[StoreConnection]:
        """A connection for a handler, which may change its settings, so it is not reused. A database in memory has only
        one connection; meanwhile it is ``handler_connection``."""
        if not self.in_memory:
            with self.separate(HandlerConnection) as connection:
                yield connection
            return
        with self.take() as connection:
            self.handler_connection = connection
            try:
                yield connection
            finally:
                self.handler_connection = None
                connection.row_factory, connection.text_factory = None, str

    @contextlib.contextmanager
    def separate(self, cls: type[StoreConnection] = StoreConnection) -> Iterator[StoreConnection]:
        """A new connection outside the pool, for the time of the block."""
        self._check_file()
        connection = self.open(cls)
        try:
            yield connection
        finally:
            self._close(connection)

    def _take(self) -> StoreConnection:
        if self._pid != os.getpid():
            # Closing the parent's connections here would drop the parent's locks, so they are abandoned.
            with self._guard:
                self._idle, self._large, self._pid = [], 0, os.getpid()
        self._check_file()
        with self._guard:
            if self._idle:
                return self._idle.pop()
            large = self._large < CACHED
            self._large += large
        connection = self.open()
        if not large:
            connection.large = False
            connection.execute("PRAGMA cache_size = -2000")
        return connection

    def _check_file(self) -> None:
        """Check that the file still exists and is the same; connections to a previous file are abandoned. A missing
        file is not created again: processes that still use the old one would not see its jobs."""
        if self.in_memory or self._file is None:
            return
        file = identity_of(self.path)
        if file == self._file:
            return
        with self._guard:
            abandoned, self._idle, self._large = self._idle, [], 0
            for connection in abandoned:
                abandon(connection)
            if file is None:
                raise gone(self.path)
            log.warning("%s was replaced by another file; opening it again", self.path)
            self._file = file

    def is_current(self, connection: StoreConnection) -> bool:
        return self.in_memory or connection.file == identity_of(self.path)

    def _give_back(self, connection: StoreConnection) -> None:
        with self._guard:
            if connection.file == self._file:
                # Taken from the end: those with a large cache first.
                self._idle.insert(len(self._idle) if connection.large else 0, connection)
            else:
                abandon(connection)

    def _close(self, connection: StoreConnection) -> None:
        """Close the connection, or abandon it if its file was removed or replaced."""
        if self.is_current(connection):
            connection.close()
        else:
            abandon(connection)

    def open(self, cls: type[StoreConnection] = StoreConnection) -> StoreConnection:
        """Open a connection and set it up."""
        if not self.in_memory:
            create_private(self.path)
        try:
            connection = sqlite3.connect(
                self.path,
                timeout=self.busy_seconds,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=256,
                factory=cls,
            )
        except sqlite3.OperationalError as error:
            raise StoreUnavailable(f"cannot open {self.path}: {error}") from error
        try:
            self._set_up(connection)
        except BaseException as error:
            connection.close()
            if isinstance(error, sqlite3.Error):
                raise translate(error) from error
            raise
        if not self.in_memory:
            connection.file = identity_of(self.path)
            self._file = self._file or connection.file
        return connection

    def _set_up(self, connection: StoreConnection) -> None:
        if not self.in_memory:
            _switch_to_wal(connection, self.busy_seconds)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            # A checkpointed log is overwritten from its beginning but keeps its size, and its size triggers our
            # checkpoints: without this limit, one long log would cause a checkpoint after every write. The limit is
            # close below, because each commit that extends the file also waits for the file system's journal.
            connection.execute(f"PRAGMA journal_size_limit = {CHECKPOINT_BYTES * 63 // 64}")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA cache_size = -16000")
        # Statements that fire triggers have a statement journal; on disk it would cost more than their work.
        connection.execute("PRAGMA temp_store = MEMORY")

    def after_write(self, connection: sqlite3.Connection) -> None:
        """Checkpoint the log if it is large and no other process does. Failures (no space, too many open files) are
        only logged: the write itself is committed, and a caller that sees an error would repeat it."""
        if self.in_memory:
            return
        try:
            if os.stat(self.path + "-wal").st_size < CHECKPOINT_BYTES:
                return
            with _try_lock(self.path + "-wal") as locked:
                if locked:
                    connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except FileNotFoundError:
            return
        except (OSError, sqlite3.Error) as error:
            if time.monotonic() > self._warned:
                self._warned = time.monotonic() + 60.0
                log.warning("The write-ahead log of %s cannot be checkpointed and grows: %s", self.path, error)

    def __del__(self) -> None:
        # Since 3.13 Python warns about a connection that was dropped but not closed. At interpreter exit the modules
        # that `close` uses may already be unloaded, so any error here is ignored.
        try:  # noqa: SIM105 - contextlib is one of those modules
            self.close()
        except Exception:
            pass

    def close(self) -> None:
        with self._guard:
            idle, self._idle = self._idle, []
            if self._pid != os.getpid():
                return
        for connection in idle:
            self._close(connection)


def _switch_to_wal(connection: sqlite3.Connection, seconds: float) -> None:
    """Set the journal mode. The busy timeout does not cover this, and several processes may open a new file at once."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
            continue
        if mode != "wal":
            raise StoreUnavailable(f"the database cannot use a write-ahead log (journal mode {mode})", code="no_wal")
        return


@contextlib.contextmanager
def _try_lock(path: str) -> Iterator[bool]:
    """Try to hold an advisory lock on ``path``; False if another process holds it. On the log itself this is safe:
    SQLite's own locks are on the database and on the index of the log, and of another kind."""
    try:
        import fcntl
    except ImportError:  # no such locks on this platform; checkpoints then happen when the last connection closes
        yield False
        return
    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True
    finally:
        os.close(handle)

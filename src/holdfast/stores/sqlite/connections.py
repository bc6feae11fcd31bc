"""One file: set-up, threads, checkpoints, identity, network file systems.

Connections to one SQLite file: how they are set up, shared between threads, and checkpointed.

Invariants: every write transaction begins with the write lock (``BEGIN IMMEDIATE``); nothing is
reported as written before it is synced (``synchronous=FULL``); only one process at a time moves
the write-ahead log into the file, under a lock file of its own, because before 3.51.3 two at once
could damage it; a connection is never used in a process that was forked from its own; nothing is
written to a file that has another's name by now, or none (``files``).
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Self

from holdfast.engine.redaction import shown_url
from holdfast.errors import InvalidSetting, StoreUnavailable
from holdfast.stores.sqlite.errors import is_busy, translate

# Without the `fuse.` that file systems of user space have in front of their names.
NETWORK = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ncpfs", "sshfs", "glusterfs", "ceph", "ceph-fuse"),
        *("lustre", "beegfs", "rclone", "s3fs"),
    }
)


def refuse_network_file_system(path: Path, mounts: Path = Path("/proc/self/mounts")) -> None:
    """Does nothing where the mount table cannot be read."""
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
    """None when there is no such file, or none that can be seen."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def create_private(path: str) -> None:
    """Make the file, readable by its owner alone, if there is none. SQLite gives the log and its index the same mode. A
    file that is there keeps the mode it has; what cannot be made is left to SQLite, which says why."""
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def mode_like(path: str) -> int:
    """The mode of the database file, for a file beside it: whoever may write the one may write the other."""
    try:
        return os.stat(path).st_mode & 0o666
    except OSError:
        return 0o600


def abandon(connection: sqlite3.Connection) -> None:
    """Never close it, not even at the end of the program: the last connection to a file deletes the write-ahead log by
    its name, and under that name there is another file's log by now."""
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
OLDEST = (3, 38, 0)


def database_path(url: str) -> str:
    """The file a URL names: three slashes for a relative path, four for an absolute one."""
    prefix = "sqlite:///"
    path = url.removeprefix(prefix).split("?", 1)[0]
    if not url.startswith(prefix) or not path or path == "/":
        raise InvalidSetting(
            f"{shown_url(url)} names no database file",
            code="invalid_url",
            fix="Use sqlite:///jobs.db, sqlite:////var/lib/app/jobs.db or sqlite:///:memory:.",
        )
    return path


class OurConnection(sqlite3.Connection):
    """One that knows which file it was opened on."""

    file: Identity | None = None


class LentConnection(OurConnection):
    """One whose transaction is ended by whoever lent it. ``with connection:`` and ``executescript`` would, too."""

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
    """A small pool. A database in memory lives in one connection, which everybody takes turns with."""

    def __init__(self, path: str) -> None:
        if sqlite3.sqlite_version_info < OLDEST:
            raise InvalidSetting(
                f"SQLite {sqlite3.sqlite_version} is too old",
                code="sqlite_too_old",
                fix="Use a newer Python: Holdfast needs SQLite 3.38 or newer.",
            )
        self.path = path
        self.patience = BUSY_SECONDS
        self.in_memory = path == ":memory:"
        if not self.in_memory:
            refuse_network_file_system(Path(path))
        self._idle: list[OurConnection] = []
        self._file: Identity | None = None
        self._warned = 0.0
        self._guard = threading.Lock()
        self._turn = threading.Lock()
        self.lent: sqlite3.Connection | None = None
        self._pid = os.getpid()

    @contextlib.contextmanager
    def borrow(self) -> Iterator[OurConnection]:
        with self._turn if self.in_memory else contextlib.nullcontext():
            connection = self._take()
            try:
                yield connection
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                self._give_back(connection)

    @contextlib.contextmanager
    def lend(self) -> Iterator[OurConnection]:
        """A connection for somebody who may change its settings: it is not used again. The only one of a database
        in memory has to be, and is known by ``lent`` meanwhile."""
        if not self.in_memory:
            with self.own(LentConnection) as connection:
                yield connection
            return
        with self.borrow() as connection:
            self.lent = connection
            try:
                yield connection
            finally:
                self.lent = None
                connection.row_factory, connection.text_factory = None, str

    @contextlib.contextmanager
    def own(self, kind: type[OurConnection] = OurConnection) -> Iterator[OurConnection]:
        """One of its own, for the time of the block."""
        self._look()
        connection = self.open(kind)
        try:
            yield connection
        finally:
            self.let_go(connection)

    def _take(self) -> OurConnection:
        if self._pid != os.getpid():
            # Closing the parent's connections here would drop the parent's locks: leave them alone.
            with self._guard:
                self._idle, self._pid = [], os.getpid()
        self._look()
        with self._guard:
            if self._idle:
                return self._idle.pop()
        return self.open()

    def _look(self) -> None:
        """Whether the file is still there, and the same; connections to one that was there before are not used again.
        A new file is not made where there was one: what is in it would be lost to everybody who had the old one."""
        if self.in_memory or self._file is None:
            return
        file = identity_of(self.path)
        if file == self._file:
            return
        with self._guard:
            left, self._idle = self._idle, []
            for connection in left:
                abandon(connection)
            if file is None:
                raise gone(self.path)
            log.warning("%s was replaced by another file; opening it again", self.path)
            self._file = file

    def is_current(self, connection: OurConnection) -> bool:
        return self.in_memory or connection.file == identity_of(self.path)

    def _give_back(self, connection: OurConnection) -> None:
        with self._guard:
            if connection.file == self._file:
                self._idle.append(connection)
            else:
                abandon(connection)

    def let_go(self, connection: OurConnection) -> None:
        """Close it; unless its file is not there any more."""
        if self.is_current(connection):
            connection.close()
        else:
            abandon(connection)

    def open(self, kind: type[OurConnection] = OurConnection) -> OurConnection:
        """A connection that nobody else uses; the caller lets it go."""
        if not self.in_memory:
            create_private(self.path)
        try:
            connection = sqlite3.connect(
                self.path,
                timeout=self.patience,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=256,
                factory=kind,
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

    def _set_up(self, connection: OurConnection) -> None:
        if not self.in_memory:
            _switch_to_wal(connection, self.patience)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            # A log that was moved into the file is begun anew, but keeps its size unless told not to; and by its
            # size we judge whether it needs moving. Without this one long log would mean a checkpoint every write.
            connection.execute(f"PRAGMA journal_size_limit = {CHECKPOINT_BYTES // 4}")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA cache_size = -16000")
        # Statements that fire triggers keep a journal of their own; on disk it would cost more than their work.
        connection.execute("PRAGMA temp_store = MEMORY")

    def after_write(self, connection: sqlite3.Connection) -> None:
        """Move a grown log into the file, if no other process is at it. Whatever keeps it from that (no space, no more
        open files) is no reason to say that what was written was not: whoever is told so would write it again."""
        if self.in_memory:
            return
        try:
            if os.stat(self.path + "-wal").st_size < CHECKPOINT_BYTES:
                return
            with _only_one(self.path + "-checkpoint", mode_like(self.path)) as mine:
                if mine:
                    connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except FileNotFoundError:
            return
        except (OSError, sqlite3.Error) as error:
            if time.monotonic() > self._warned:
                self._warned = time.monotonic() + 60.0
                log.warning("The write-ahead log of %s cannot be checkpointed and grows: %s", self.path, error)

    def __del__(self) -> None:
        # From 3.13 on Python complains of a connection that was dropped and not closed. At interpreter exit the
        # modules that `close` uses may already be gone, so any error here is ignored.
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
            self.let_go(connection)


def _switch_to_wal(connection: sqlite3.Connection, patience: float) -> None:
    """Changing the journal mode of a new file is not covered by the busy timeout: several openers race for it."""
    deadline = time.monotonic() + patience
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
def _only_one(path: str, mode: int) -> Iterator[bool]:
    """Hold an advisory lock on ``path`` if nobody else does."""
    try:
        import fcntl
    except ImportError:  # no such locks on this platform; checkpoints then happen when the last connection closes
        yield False
        return
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    with contextlib.suppress(OSError):  # another user's
        if os.fstat(handle).st_mode & 0o777 != mode:
            os.fchmod(handle, mode)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True
    finally:
        os.close(handle)

"""Trouble with a SQLite file that begins at the k-th statement of a process, whichever that is.

``held``      another connection has the write lock, for longer than anybody waits
``short``     the same, and gives it back in time
``written``   another connection commits something just then: a transaction that has read cannot go on to write
``full``      no write finds room                ``broken``    neither reads nor writes come through
``handles``   nothing can be opened              ``killed``    the process is gone

All of it is real to SQLite: locks are taken, and system calls answer what they do on a disk that is full or broken
(SQLite has a table of those it makes, for tests like these). ``PRAGMA data_version`` is not counted: it is asked for
all the time by whoever listens.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import errno
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, Self, get_args
from weakref import WeakSet

from holdfast.stores.sqlite import connections
from holdfast.stores.sqlite.connections import StoreConnection

Fate = Literal["held", "short", "written", "full", "broken", "handles", "killed"]
Trouble = tuple[int, Fate] | tuple[int, Fate, str]
"""At which statement; or at which of those that begin so, since those of a worker come in any order."""
REACHABLE = hasattr(_sqlite3, "__file__") and hasattr(ctypes.CDLL(_sqlite3.__file__), "sqlite3_vfs_find")
"""Whether SQLite's table of system calls is at hand: in a Python that has SQLite built in it is not."""
FATES: tuple[Fate, ...] = tuple(
    fate for fate in get_args(Fate) if REACHABLE or fate not in ("full", "broken", "handles")
)
WAITING = 0.1
"""Seconds that a connection waits for a lock, so that whoever is to be told that he has not got it is told soon."""
SHORT = 0.03
"""Seconds that somebody else has the lock who gives it back in time."""
LISTENING = "PRAGMA data_version"
NEVER = 1_000_000_000
LONGEST = 160
"""How much of a statement is looked at."""

VARIABLE = "HOLDFAST_TEST_TROUBLE"
STATEMENTS, NEXT, LASTING = "statements", "next-trouble", "lasting-trouble"
"""Files in the folder that a process is told by: all it has asked for, what is to come, and that it has begun and is
not over."""


_watch: Watch | None = None


class Watch:
    """Counts what is asked of SQLite in this process, and begins the trouble when it is time."""

    def __init__(self, path: str, folder: Path | None = None) -> None:
        """With ``folder`` each statement is noted there, and it is looked there for a trouble to come."""
        self.asked = 0
        self.connections: WeakSet[StoreConnection] = WeakSet()
        """Those that are used: none is to be left in a transaction."""
        self._path = path
        self._folder = folder
        self._notes: int | None = None
        if folder is not None:
            self._notes = os.open(folder / STATEMENTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._guard = threading.Lock()
        self._next: tuple[int, Fate, float, str] | None = None
        self._enough = threading.Event()
        self._others: list[threading.Thread] = []

    def expect(self, trouble: Trouble, seconds: float) -> None:
        """That statement from now on meets it; it is over after so many seconds."""
        number, fate, *text = trouble
        with self._guard:
            self._next = (number, fate, seconds, "".join(text))

    def over(self) -> None:
        """Whatever there is of it ends now."""
        with self._guard:
            self._next = None
        self._enough.set()
        for other in self._others:
            other.join(20)
        self._others, self._enough = [], threading.Event()

    def close(self) -> None:
        self.over()
        if self._notes is not None:
            os.close(self._notes)
            self._notes = None

    def passing(self, sql: str) -> None:
        if sql == LISTENING:
            return
        with self._guard:
            if self._folder is not None:
                self._look()
            self.asked += 1
            sql = " ".join(sql.split())[:LONGEST]
            if self._notes is not None:
                os.write(self._notes, f"{sql}\n".encode())
            if self._next is None or not sql.startswith(self._next[3]):
                return
            number, fate, seconds, text = self._next
            self._next = None if number <= 1 else (number - 1, fate, seconds, text)
            if number <= 1:
                self._begin(fate, seconds)

    def _look(self) -> None:
        assert self._folder is not None
        with suppress(FileNotFoundError):
            number, fate, seconds, text = (self._folder / NEXT).read_text().split(" ", 3)
            (self._folder / NEXT).unlink()
            self._next = (int(number), fate, float(seconds), text)  # type: ignore[assignment]

    def _begin(self, fate: Fate, seconds: float) -> None:
        if self._folder is not None:
            (self._folder / LASTING).touch()
        if fate == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        elif fate == "written":
            self._write()
            self._ended()
        elif fate in ("held", "short"):
            self._hold(seconds if fate == "held" else SHORT)
        else:
            deny(fate)
            self._later(seconds, allow)

    def _later(self, seconds: float, end: Callable[[], object]) -> None:
        enough = self._enough

        def wait() -> None:
            enough.wait(seconds)
            end()
            self._ended()

        other = threading.Thread(target=wait, name="trouble", daemon=True)
        other.start()
        self._others.append(other)

    def _write(self) -> None:
        """Unless the write lock is taken: then nobody else can."""
        with closing(self._other()) as other, suppress(sqlite3.OperationalError):
            other.execute("create table if not exists beside (n integer)")
            other.execute("insert into beside values (1)")

    def _hold(self, seconds: float) -> None:
        other, enough = self._other(), self._enough

        def take() -> bool:
            try:
                other.execute("begin immediate")
            except sqlite3.OperationalError:
                return False
            return True

        def hold(taken: bool) -> None:
            while not taken and not enough.wait(0.001):  # one of our own has it: as soon as that gives it back
                taken = take()
            enough.wait(seconds)
            other.close()
            self._ended()

        holder = threading.Thread(target=hold, args=(take(),), name="trouble", daemon=True)
        holder.start()
        self._others.append(holder)

    def _ended(self) -> None:
        if self._folder is not None:
            (self._folder / LASTING).unlink(missing_ok=True)

    def _other(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, isolation_level=None, timeout=0, check_same_thread=False)


@contextmanager
def watching(url: str, folder: Path | None = None) -> Iterator[Watch]:
    """Every statement of our connections, in this process, for the time of the block."""
    global _watch
    watch = _watch = Watch(url.removeprefix("sqlite:///"), folder)

    def execute(self: StoreConnection, sql: str, *given: Any) -> sqlite3.Cursor:
        watch.connections.add(self)
        watch.passing(sql)
        return sqlite3.Connection.execute(self, sql, *given)

    def executemany(self: StoreConnection, sql: str, *given: Any) -> sqlite3.Cursor:
        watch.passing(sql)
        return sqlite3.Connection.executemany(self, sql, *given)

    StoreConnection.execute, StoreConnection.executemany = execute, executemany  # type: ignore[method-assign,assignment]
    try:
        yield watch
    finally:
        _watch = None
        del StoreConnection.execute, StoreConnection.executemany
        watch.close()


class Counted(sqlite3.Connection):
    """A program's own connection, whose statements count as well."""

    def execute(self, sql: str, *given: Any) -> sqlite3.Cursor:
        return self.cursor().execute(sql, *given)

    def cursor(self, *_: Any) -> sqlite3.Cursor:  # type: ignore[override]
        return super().cursor(_CountedCursor)

    def commit(self) -> None:
        _pass("COMMIT")
        super().commit()


class _CountedCursor(sqlite3.Cursor):
    def execute(self, sql: str, *given: Any) -> Self:
        _pass(sql)
        super().execute(sql, *given)
        return self

    def executemany(self, sql: str, *given: Any) -> Self:
        _pass(sql)
        super().executemany(sql, *given)
        return self


def _pass(sql: str) -> None:
    if _watch is not None:
        _watch.passing(sql)


@contextmanager
def waiting(seconds: float) -> Iterator[None]:
    """How long the connections of a store that is opened in the block wait for a lock."""
    before, connections.BUSY_SECONDS = connections.BUSY_SECONDS, seconds
    try:
        yield
    finally:
        connections.BUSY_SECONDS = before


# -- in a process of its own ----------------------------------------------------------------------------------------

PROGRAM = "from tests.faults.trouble import run; run()"
"""For `Warm`: `holdfast` with its arguments, in trouble."""


def run() -> None:
    from holdfast import config
    from holdfast.cli.main import run as holdfast

    folder = Path(os.environ[VARIABLE])
    # Longer than one of its own needs beside others, and not as long as a trouble lasts.
    with watching(os.environ[config.URL_VARIABLE], folder), waiting(0.4):
        sys.argv[0] = "holdfast"
        holdfast()


def tell(folder: Path, trouble: Trouble, seconds: float) -> None:
    """To a process that is told by this folder: at this statement from now on."""
    number, fate, *text = trouble
    (folder / "told").write_text(f"{number} {fate} {seconds} {''.join(text)}")
    (folder / "told").rename(folder / NEXT)


def statements(folder: Path) -> list[str]:
    return (folder / STATEMENTS).read_text().splitlines()


# -- system calls that fail -------------------------------------------------------------------------------------------


class _Vfs(ctypes.Structure):
    """Of `sqlite3_vfs`; all but the last few are passed over."""


_Set = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Vfs), ctypes.c_char_p, ctypes.c_void_p)
_Vfs._fields_ = [
    *((name, ctypes.c_int) for name in ("iVersion", "szOsFile", "mxPathname")),
    *((f"unused{n}", ctypes.c_void_p) for n in range(16)),
    ("set_system_call", _Set),
]
_At = ctypes.CFUNCTYPE(
    ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_longlong, use_errno=True
)
_Open = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_int, use_errno=True)
_Cut = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_longlong, use_errno=True)


def _refusing(number: int) -> Callable[..., int]:
    def refuse(*_: object) -> int:
        ctypes.set_errno(number)
        return -1

    return refuse


_CALLS: dict[Fate, dict[bytes, Any]] = {
    "full": {b"pwrite64": _At(_refusing(errno.ENOSPC)), b"pwrite": _At(_refusing(errno.ENOSPC))},
    "broken": {
        # Of EIO on reading SQLite says that the database is corrupt, and not that it could not be read.
        **{name: _At(_refusing(errno.ETIMEDOUT)) for name in (b"pread64", b"pread")},
        **{name: _At(_refusing(errno.EIO)) for name in (b"pwrite64", b"pwrite")},
        b"ftruncate": _Cut(_refusing(errno.EIO)),
    },
    "handles": {b"open": _Open(_refusing(errno.EMFILE))},
}


def deny(fate: Fate) -> None:
    for name, call in _CALLS[fate].items():
        _set(name, ctypes.cast(call, ctypes.c_void_p))


def allow() -> None:
    for calls in _CALLS.values():
        for name in calls:
            _set(name, None)


def _set(name: bytes, call: ctypes.c_void_p | None) -> None:
    library = ctypes.CDLL(_sqlite3.__file__)
    library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
    vfs = library.sqlite3_vfs_find(None)
    assert vfs.contents.iVersion >= 3
    vfs.contents.set_system_call(vfs, name, call)

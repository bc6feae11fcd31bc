"""Injects a fault into a SQLite file at the k-th statement of a process.

``held``      another connection holds the write lock, for longer than the busy timeout
``short``     another connection holds the write lock and releases it in time
``written``   another connection commits: a transaction that has read can no longer write
``full``      writes fail with ENOSPC            ``broken``    reads and writes fail
``handles``   no file can be opened              ``killed``    the process is killed

The faults are real to SQLite: locks are taken, and system calls return the errors of a full or broken disk (SQLite has
a table of its system calls for such tests). ``PRAGMA data_version`` is not counted, because listeners run it all the
time.
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

FaultKind = Literal["held", "short", "written", "full", "broken", "handles", "killed"]
Fault = tuple[int, FaultKind] | tuple[int, FaultKind, str]
"""The number of the statement, the kind, and optionally a prefix: then only statements with the prefix are counted,
because the statements of a worker come in any order."""
REACHABLE = hasattr(_sqlite3, "__file__") and hasattr(ctypes.CDLL(_sqlite3.__file__), "sqlite3_vfs_find")
"""Whether SQLite's table of system calls is accessible: not in a Python with SQLite built in."""
FAULT_KINDS: tuple[FaultKind, ...] = tuple(
    kind for kind in get_args(FaultKind) if REACHABLE or kind not in ("full", "broken", "handles")
)
BUSY_TIMEOUT = 0.1
"""Seconds that a connection waits for a lock, short so that a refused lock is reported soon."""
SHORT = 0.03
"""Seconds for which the fault ``short`` holds the lock."""
LISTENING = "PRAGMA data_version"
NEVER = 1_000_000_000
LONGEST = 160
"""Characters of a statement that are recorded and compared."""

VARIABLE = "HOLDFAST_TEST_SQLITE_FAULTS"
STATEMENTS, NEXT, LASTING = "statements", "next-fault", "active-fault"
"""Files in the folder of a process: its statements, the next fault, and a mark while a fault is active."""


_injector: FaultInjector | None = None


class FaultInjector:
    """Counts the SQLite statements of this process and starts the scheduled fault."""

    settings: dict[str, Any] = {}  # noqa: RUF012 - there are none for the link of this process

    def __init__(self, url: str, folder: Path | None = None) -> None:
        """With ``folder``, record each statement there and read the next fault from there."""
        self.url = url
        self.requests = 0
        self.connections: WeakSet[StoreConnection] = WeakSet()
        """Connections that ran a statement; none may be left in a transaction."""
        self._path = url.removeprefix("sqlite:///")
        self._folder = folder
        self._log: int | None = None
        if folder is not None:
            self._log = os.open(folder / STATEMENTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._guard = threading.Lock()
        self._next: tuple[int, FaultKind, float, str] | None = None
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def inject(self, fault: Fault, seconds: float) -> None:
        """Start the fault at the given statement from now on; end it after `seconds`."""
        number, kind, *text = fault
        with self._guard:
            self._next = (number, kind, seconds, "".join(text))

    def clear(self) -> None:
        """End the fault, whether it has started or not."""
        with self._guard:
            self._next = None
        self._stop.set()
        for thread in self._threads:
            thread.join(20)
        self._threads, self._stop = [], threading.Event()

    def close(self) -> None:
        self.clear()
        if self._log is not None:
            os.close(self._log)
            self._log = None

    def before_statement(self, sql: str) -> None:
        if sql == LISTENING:
            return
        with self._guard:
            if self._folder is not None:
                self._read_next()
            self.requests += 1
            sql = " ".join(sql.split())[:LONGEST]
            if self._log is not None:
                os.write(self._log, f"{sql}\n".encode())
            if self._next is None or not sql.startswith(self._next[3]):
                return
            number, kind, seconds, text = self._next
            self._next = None if number <= 1 else (number - 1, kind, seconds, text)
            if number <= 1:
                self._begin(kind, seconds)

    def _read_next(self) -> None:
        assert self._folder is not None
        with suppress(FileNotFoundError):
            number, kind, seconds, text = (self._folder / NEXT).read_text().split(" ", 3)
            (self._folder / NEXT).unlink()
            self._next = (int(number), kind, float(seconds), text)  # type: ignore[assignment]

    def _begin(self, kind: FaultKind, seconds: float) -> None:
        if self._folder is not None:
            (self._folder / LASTING).touch()
        if kind == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        elif kind == "written":
            self._write()
            self._ended()
        elif kind in ("held", "short"):
            self._hold(seconds if kind == "held" else SHORT)
        else:
            deny(kind)
            self._later(seconds, allow)

    def _later(self, seconds: float, end: Callable[[], object]) -> None:
        stop = self._stop

        def wait() -> None:
            stop.wait(seconds)
            end()
            self._ended()

        self._start(wait)

    def _start(self, run: Callable[..., None], *args: object) -> None:
        self._threads.append(threading.Thread(target=run, args=args, name="sqlite-fault", daemon=True))
        self._threads[-1].start()

    def _write(self) -> None:
        """Commit a write on another connection, unless the write lock is taken."""
        with closing(self._other()) as other, suppress(sqlite3.OperationalError):
            other.execute("create table if not exists beside (n integer)")
            other.execute("insert into beside values (1)")

    def _hold(self, seconds: float) -> None:
        other, stop = self._other(), self._stop

        def take() -> bool:
            try:
                other.execute("begin immediate")
            except sqlite3.OperationalError:
                return False
            return True

        def hold(taken: bool) -> None:
            while not taken and not stop.wait(0.001):  # a connection of this process has it: take it when released
                taken = take()
            stop.wait(seconds)
            other.close()
            self._ended()

        self._start(hold, take())

    def _ended(self) -> None:
        if self._folder is not None:
            (self._folder / LASTING).unlink(missing_ok=True)

    def _other(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, isolation_level=None, timeout=0, check_same_thread=False)


@contextmanager
def watching(url: str, folder: Path | None = None) -> Iterator[FaultInjector]:
    """Watch every statement of the store's connections in this process during the block."""
    global _injector
    injector = _injector = FaultInjector(url, folder)

    def execute(self: StoreConnection, sql: str, *parameters: Any) -> sqlite3.Cursor:
        injector.connections.add(self)
        injector.before_statement(sql)
        return sqlite3.Connection.execute(self, sql, *parameters)

    def executemany(self: StoreConnection, sql: str, *parameters: Any) -> sqlite3.Cursor:
        injector.before_statement(sql)
        return sqlite3.Connection.executemany(self, sql, *parameters)

    StoreConnection.execute, StoreConnection.executemany = execute, executemany  # type: ignore[method-assign,assignment]
    try:
        yield injector
    finally:
        _injector = None
        del StoreConnection.execute, StoreConnection.executemany
        injector.close()


class Counted(sqlite3.Connection):
    """A connection of the application whose statements are counted as well."""

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        return self.cursor().execute(sql, *parameters)

    def cursor(self, *_: Any) -> sqlite3.Cursor:  # type: ignore[override]
        return super().cursor(_CountedCursor)

    def commit(self) -> None:
        _before_statement("COMMIT")
        super().commit()


class _CountedCursor(sqlite3.Cursor):
    def execute(self, sql: str, *parameters: Any) -> Self:
        _before_statement(sql)
        super().execute(sql, *parameters)
        return self

    def executemany(self, sql: str, *parameters: Any) -> Self:
        _before_statement(sql)
        super().executemany(sql, *parameters)
        return self


def _before_statement(sql: str) -> None:
    if _injector is not None:
        _injector.before_statement(sql)


@contextmanager
def busy_timeout(seconds: float) -> Iterator[None]:
    """Set how long the connections of a store opened in the block wait for a lock."""
    before, connections.BUSY_SECONDS = connections.BUSY_SECONDS, seconds
    try:
        yield
    finally:
        connections.BUSY_SECONDS = before


# -- in another process ---------------------------------------------------------------------------------------------

PROGRAM = "from tests.faults.sqlite_faults import run; run()"
"""For `Warm`: runs `holdfast` with fault injection."""


def run() -> None:
    from holdfast import config
    from holdfast.cli.main import run as holdfast

    folder = Path(os.environ[VARIABLE])
    # Longer than its own transactions hold the lock, shorter than a fault lasts.
    with watching(os.environ[config.URL_VARIABLE], folder), busy_timeout(0.4):
        sys.argv[0] = "holdfast"
        holdfast()


def schedule_fault(folder: Path, fault: Fault, seconds: float) -> None:
    """Schedule a fault in the process that reads this folder."""
    number, kind, *text = fault
    (folder / "new-fault").write_text(f"{number} {kind} {seconds} {''.join(text)}")
    (folder / "new-fault").rename(folder / NEXT)


def statements(folder: Path) -> list[str]:
    return (folder / STATEMENTS).read_text().splitlines()


# -- system calls that fail -------------------------------------------------------------------------------------------


class _Vfs(ctypes.Structure):
    """The struct `sqlite3_vfs`; most fields are unused here."""


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


_CALLS: dict[FaultKind, dict[bytes, Any]] = {
    "full": {b"pwrite64": _At(_refusing(errno.ENOSPC)), b"pwrite": _At(_refusing(errno.ENOSPC))},
    "broken": {
        # SQLite reports EIO on a read as a corrupt database, not as a failed read.
        **{name: _At(_refusing(errno.ETIMEDOUT)) for name in (b"pread64", b"pread")},
        **{name: _At(_refusing(errno.EIO)) for name in (b"pwrite64", b"pwrite")},
        b"ftruncate": _Cut(_refusing(errno.EIO)),
    },
    "handles": {b"open": _Open(_refusing(errno.EMFILE))},
}


def deny(kind: FaultKind) -> None:
    for name, call in _CALLS[kind].items():
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

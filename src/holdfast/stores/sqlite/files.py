"""Whether a database file is still the one that was opened. SQLite goes on writing to a file that was deleted or moved
away, and nobody else will ever see what it writes: that must be noticed, and said."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sqlite3

from holdfast.errors import StoreUnavailable

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
        f"the database file {path} is not there any more",
        code="database_gone",
        fix="Put it back, or restart what uses it if there is to be a new one.",
    )

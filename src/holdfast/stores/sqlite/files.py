"""Whether a database file is still the one that was opened. SQLite goes on writing to a file that was deleted or moved
away, and nobody else will ever see what it writes: that must be noticed, and said."""

from __future__ import annotations

import ctypes
import os
import sqlite3

from holdfast.domain.errors import StoreUnavailable

Identity = tuple[int, int]


def identity_of(path: str) -> Identity | None:
    """None when there is no such file, or none that can be seen."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


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

"""``SqliteListener``: reads ``data_version``, which changes when another connection, in any process, commits.

On Linux the kernel reports each write to the write-ahead log (inotify), so an idle listener waits without reading. The
report comes before the commit is visible: the listener then reads often until the version changes. Where there is no
inotify, it reads often while there are commits, and rarely while there are none.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator

from typing_extensions import override

from holdfast.errors import StoreUnavailable
from holdfast.stores.listener import Listener
from holdfast.stores.sqlite.connections import Connections, StoreConnection

# Seconds from a write to the log to the first read; the pause doubles up to the longest. A small commit takes about as
# long as the first; that of a busy worker takes longer, and each read takes the interpreter from its handlers.
FIRST_READ, SLOWEST_READ = 0.0003, 0.003
# For how long a commit is expected after a write to the log.
EXPECTING_FOR = 0.05
# Seconds between two notifications.
NOTIFY_EVERY = 0.001
# Time between two reads otherwise. Where writes are reported, only in case a report is missing or the disk is slow.
REPORTED_MILLISECONDS = 50
ACTIVE_EVERY, IDLE_EVERY = 0.001, 0.005
# Seconds without a commit until a listener is idle.
ACTIVE_FOR = 1.0
# Seconds between two checks for the end of the thread and for a replaced file.
CHECK_EVERY = 0.3

_IN_MODIFY = 0x2


class SqliteListener(Listener):
    def __init__(self, connections: Connections) -> None:
        super().__init__()
        self._connections = connections

    @override
    def _wake(self) -> None:
        """Nothing to do: ``_listen`` waits for ``closing``, or only for a short time."""

    @override
    def _listen(self, closing: threading.Event) -> None:
        if self._connections.in_memory:  # all writers are in this process, and notify the listener themselves
            closing.wait()
            return
        while not closing.is_set():
            with contextlib.suppress(sqlite3.Error, StoreUnavailable), self._connections.separate() as connection:
                if self._poll(connection, closing):
                    return
            closing.wait(0.2)  # the file cannot be read now

    def _poll(self, connection: StoreConnection, closing: threading.Event) -> bool:
        """Poll until the thread must end (True) or the file was replaced (False)."""
        last_version = _version(connection)  # the first read creates the log
        with _reports(self._connections.path + "-wal") as reports:
            self.notify("")  # of earlier commits
            now = changed = checked = time.monotonic()
            expected_until, pause = 0.0, FIRST_READ
            while not closing.is_set():
                if now - checked > CHECK_EVERY:
                    checked = now
                    if self._is_unused():
                        return True
                    if not self._connections.is_current(connection):
                        return False
                if now < expected_until:
                    time.sleep(pause)
                    pause = min(2 * pause, SLOWEST_READ)
                    expecting = True
                else:
                    expecting = False
                    if reports is None:
                        closing.wait(ACTIVE_EVERY if now - changed < ACTIVE_FOR else IDLE_EVERY)
                    elif reports.poll(REPORTED_MILLISECONDS):
                        expected_until, pause = time.monotonic() + EXPECTING_FOR, FIRST_READ
                now, version = time.monotonic(), _version(connection)
                if version != last_version:
                    last_version, changed = version, now
                    if expecting:  # otherwise it may be an earlier commit than the one whose writes were reported
                        expected_until = 0.0
                    self.notify("")
                    time.sleep(NOTIFY_EVERY)
        return True


def _version(connection: StoreConnection) -> int:
    version: int = connection.execute("PRAGMA data_version").fetchone()[0]
    return version


class _Reports:
    """Reports of writes to a file."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._waiting = select.poll()  # not ``select``, which takes no descriptor above 1,023
        self._waiting.register(handle, select.POLLIN)

    def poll(self, milliseconds: int) -> bool:
        """Wait for a report; False if there is none."""
        return bool(self._waiting.poll(milliseconds)) and bool(os.read(self._handle, 65536))


@contextlib.contextmanager
def _reports(path: str) -> Iterator[_Reports | None]:
    """Reports of writes to the file from now on; None where there are none."""
    handle = -1
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        handle = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK) if hasattr(libc, "inotify_init1") else -1
    try:
        # A few are allowed for each user.
        watched = handle >= 0 and libc.inotify_add_watch(handle, os.fsencode(path), _IN_MODIFY) >= 0
        yield _Reports(handle) if watched else None
    finally:
        if handle >= 0:
            os.close(handle)

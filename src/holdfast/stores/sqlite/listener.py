"""``SqliteListener``: polls ``data_version``, which changes when another connection, in any process, commits."""

from __future__ import annotations

import contextlib
import sqlite3
import threading

from typing_extensions import override

from holdfast.errors import StoreUnavailable
from holdfast.stores.listener import Listener
from holdfast.stores.sqlite.connections import Connections, StoreConnection

# Seconds between two polls, and so the delay of a notification. A poll takes 3 µs; with the waits this is 1.6 % of a
# core.
POLL_EVERY = 0.003
# Polls between two checks for the end of the thread and for a replaced file.
CHECK_AFTER = 100


class SqliteListener(Listener):
    def __init__(self, connections: Connections) -> None:
        super().__init__()
        self._connections = connections

    @override
    def _wake(self) -> None:
        """Nothing to do: ``_listen`` waits only for ``closing``."""

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
        last_version, polls = None, 0
        while not closing.wait(POLL_EVERY):
            polls += 1
            if polls % CHECK_AFTER == 0:
                if self._is_unused():
                    return True
                if not self._connections.is_current(connection):
                    return False
            version = connection.execute("PRAGMA data_version").fetchone()[0]
            if version != last_version:
                last_version = version
                self.notify("")
        return True

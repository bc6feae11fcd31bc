"""Hearing of changes in a SQLite file: ``data_version`` moves when another connection, in any process, commits."""

from __future__ import annotations

import contextlib
import sqlite3
import threading

from typing_extensions import override

from holdfast.errors import StoreUnavailable
from holdfast.stores.listener import Listener
from holdfast.stores.sqlite.connections import Connections, OurConnection

# A look takes three microseconds; at this pace, the waiting included, it is 1.6 % of one core. A job is seen within it.
PACE = 0.003


class SqliteListener(Listener):
    def __init__(self, connections: Connections) -> None:
        super().__init__()
        self._connections = connections

    @override
    def _rouse(self) -> None:
        """It waits for ``closing`` and nothing else."""

    @override
    def _listen(self, closing: threading.Event) -> None:
        if self._connections.in_memory:  # all writers share the one connection, and tell of it themselves
            closing.wait()
            return
        while not closing.is_set():
            with contextlib.suppress(sqlite3.Error, StoreUnavailable), self._connections.own() as connection:
                if self._watch(connection, closing):
                    return
            closing.wait(0.2)  # the file cannot be read just now

    def _watch(self, connection: OurConnection, closing: threading.Event) -> bool:
        """Whether there is nothing more to hear; not when the file is another by now."""
        seen, looks = None, 0
        while not closing.wait(PACE):
            looks += 1
            if looks % 100 == 0:
                if self._unheard():
                    return True
                if not self._connections.is_current(connection):
                    return False
            version = connection.execute("PRAGMA data_version").fetchone()[0]
            if version != seen:
                seen = version
                self.tell("")
        return True

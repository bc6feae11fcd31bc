"""Our own connections. Each keeps a cursor, and with it what the driver has found out about the statement before:
mostly the next one has the same text, and then nobody asks again how each of its values is to be sent."""

from __future__ import annotations

from typing import Any

from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor, adapters
from psycopg.adapt import Dumper
from psycopg.pq import Format

from holdfast.stores.flow import Rows, Statement
from holdfast.stores.postgres.arrays import TYPES

# A cursor holds its last rows until the next: many of them are let go with it.
KEPT_ROWS = 100


class AsItIs(Dumper):
    """For what is in the server's own form already."""

    format = Format.BINARY

    def dump(self, obj: bytes) -> bytes:
        return obj


for _kind, (_oid, _) in TYPES.items():  # classes of ours: nobody else sends such
    adapters.register_dumper(_kind, type(f"{_kind.__name__}AsTheyAre", (AsItIs,), {"oid": _oid}))


class OurConnection(Connection[Any]):
    _kept: Cursor[Any] | None = None

    def ask(self, statement: Statement) -> Rows:
        cursor = self._kept or self.cursor()
        self._kept = None  # unless all goes well
        cursor.execute(statement.sql, statement.params)
        # What `description` would say, which makes an object of every column for it.
        rows = [] if cursor.rownumber is None else cursor.fetchall()
        if len(rows) <= KEPT_ROWS:
            self._kept = cursor
        return rows


class OurAsyncConnection(AsyncConnection[Any]):
    _kept: AsyncCursor[Any] | None = None

    async def ask(self, statement: Statement) -> Rows:
        cursor = self._kept or self.cursor()
        self._kept = None
        await cursor.execute(statement.sql, statement.params)
        rows = [] if cursor.rownumber is None else await cursor.fetchall()
        if len(rows) <= KEPT_ROWS:
            self._kept = cursor
        return rows

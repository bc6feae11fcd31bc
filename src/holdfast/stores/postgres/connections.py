"""Our own connections, and their settings. Each keeps a cursor, and with it what the driver has found out about the
statement before: mostly the next one has the same text, and then nobody asks again how each of its values is sent.
"""

from __future__ import annotations

from typing import Any

from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor, adapters
from psycopg.adapt import Dumper
from psycopg.pq import Format
from psycopg.types.json import set_json_loads
from psycopg.types.string import TextLoader

from holdfast.domain.payload import look_at
from holdfast.stores.flow import Rows, Statement
from holdfast.stores.postgres.arrays import TYPES
from holdfast.stores.postgres.times import TimeLoader

CONNECTION: dict[str, Any] = {
    "autocommit": True,
    "connect_timeout": 10,
    "application_name": "holdfast",
    "keepalives": 1,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "prepare_threshold": None,  # until it is known to be direct
}
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


def prepare_connection(connection: Connection[Any] | AsyncConnection[Any]) -> None:
    """Ids come as text: making UUID objects of them only to print them again is most of the cost of a claim."""
    connection.adapters.register_loader("uuid", TextLoader)
    connection.adapters.register_loader("timestamptz", TimeLoader)
    set_json_loads(look_at, connection)

"""A connection for a handler's own statements, in one transaction that also ends its job.

Each block has a connection of its own, closed afterwards: none of our settings are on it, and none that the handler
makes (a search path, a role, a row factory) can reach the next; behind a pooler only SET LOCAL is sure to end there.
psycopg refuses ``commit()`` and ``rollback()`` inside a transaction block, so that its end stays with us.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from psycopg import AsyncConnection, Connection, OperationalError

from holdfast.errors import StoreUnavailable
from holdfast.stores.postgres.connections import CONNECTION
from holdfast.stores.postgres.pooler import aprepare_if_direct, prepare_if_direct

# Autocommit, so that the block's BEGIN and COMMIT are the only ones.
SETTINGS = CONNECTION | {"application_name": "holdfast handler"}


class PostgresLending:
    url: str

    @contextmanager
    def transaction(self) -> Iterator[Connection[Any]]:
        try:
            connection = Connection.connect(self.url, **SETTINGS)
        except OperationalError as error:
            raise _unreachable(error) from error
        try:
            prepare_if_direct(connection)
            with connection.transaction():
                yield connection
        finally:
            connection.close()

    @asynccontextmanager
    async def atransaction(self) -> AsyncIterator[AsyncConnection[Any]]:
        try:
            connection = await AsyncConnection.connect(self.url, **SETTINGS)
        except OperationalError as error:
            raise _unreachable(error) from error
        try:
            await aprepare_if_direct(connection)
            async with connection.transaction():
                yield connection
        finally:
            await connection.close()


def _unreachable(error: Exception) -> StoreUnavailable:
    message = str(error).strip().split("\n")[0]
    return StoreUnavailable(f"the database cannot be reached: {message}")

"""A connection for a handler's own statements, in one transaction that also ends its job.

Each block has a connection of its own, closed afterwards: none of our settings are on it, and none that the handler
makes (a search path, a role, a row factory) can reach the next; behind a pooler only SET LOCAL is sure to end there.
psycopg refuses ``commit()`` and ``rollback()`` inside a transaction block, so that its end stays with us.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from holdfast.domain.errors import StoreUnavailable

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection

SETTINGS: dict[str, Any] = {
    "autocommit": True,  # so that the block's BEGIN and COMMIT are the only ones
    "connect_timeout": 10,
    "application_name": "holdfast handler",
    "keepalives": 1,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "prepare_threshold": None,  # until it is known to be direct
}


class PostgresLending:
    url: str

    @contextmanager
    def transaction(self) -> Iterator[Connection[Any]]:
        import psycopg

        from holdfast.stores.postgres.pooler import prepare_if_direct

        try:
            connection = psycopg.connect(self.url, **SETTINGS)
        except psycopg.OperationalError as error:
            raise _unreachable(error) from error
        try:
            prepare_if_direct(connection)
            with connection.transaction():
                yield connection
        finally:
            connection.close()

    @asynccontextmanager
    async def atransaction(self) -> AsyncIterator[AsyncConnection[Any]]:
        import psycopg

        from holdfast.stores.postgres.pooler import aprepare_if_direct

        try:
            connection = await psycopg.AsyncConnection.connect(self.url, **SETTINGS)
        except psycopg.OperationalError as error:
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

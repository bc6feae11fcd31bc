"""The connections of one event loop: a pool, and before it the connection that was used last.

To take a connection from the pool and to give it back costs as much as a short statement, and nearly always one
statement follows another. So the last one is kept at hand while nobody waits for any. Now and then it goes through the
pool all the same, which replaces what has grown old; and when nobody has used it for a while it goes back for good, as
the pool closes what is idle.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from psycopg.pq import TransactionStatus

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool

    from holdfast.stores.postgres.connections import OurAsyncConnection

KEPT_FOR = 60.0


class LoopConnections:
    """Of the loop that is running. Whoever has taken a connection gives it back, whatever has become of it."""

    def __init__(self, pool: AsyncConnectionPool[OurAsyncConnection]) -> None:
        self._pool = pool
        self._kept: OurAsyncConnection | None = None
        self._waiting = 0
        self._used = self._due = self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._returning: asyncio.Task[None] | None = None

    async def take(self, within: float) -> OurAsyncConnection:
        kept, self._kept = self._kept, None
        if kept is not None:
            self._used = True
            return kept
        self._waiting += 1
        try:
            return await self._pool.getconn(within)
        finally:
            self._waiting -= 1

    async def give_back(self, connection: OurAsyncConnection) -> None:
        if self._kept is not None or self._waiting or self._due or self._closed or not _is_idle(connection):
            self._due = False
            await self._pool.putconn(connection)
            return
        self._kept = connection
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(KEPT_FOR, self._look)

    def _look(self) -> None:
        """Once a minute, while one is kept."""
        self._timer = None
        if self._used:
            self._used, self._due = False, True
            self._timer = asyncio.get_running_loop().call_later(KEPT_FOR, self._look)
        elif self._kept is not None:
            kept, self._kept = self._kept, None
            self._returning = asyncio.create_task(self._pool.putconn(kept))

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._returning is not None:
            await self._returning
        kept, self._kept = self._kept, None
        if kept is not None:
            await self._pool.putconn(kept)
        await self._pool.close()


def _is_idle(connection: OurAsyncConnection) -> bool:
    return connection.pgconn.transaction_status == TransactionStatus.IDLE

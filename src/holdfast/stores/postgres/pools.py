"""Pools per thread and per event loop, the kept connection.

The connections of one event loop: a pool, and before it the connection that was used last.

To take a connection from the pool and to give it back costs as much as a short statement, and nearly always one
statement follows another. So the last one is kept at hand while nobody waits for any. Now and then it goes through the
pool all the same, which replaces what has grown old; and when nobody has used it for a while it goes back for good, as
the pool closes what is idle.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, TypeAlias

from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout

from holdfast.stores.outage import Outage
from holdfast.stores.postgres.connections import CONNECTION, POOL, OurAsyncConnection, OurConnection, prepare_connection
from holdfast.stores.postgres.pipeline import aprepare_if_direct, prepare_if_direct

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool, ConnectionPool

    from holdfast.stores.outage import Outage
    from holdfast.stores.postgres.connections import OurAsyncConnection, OurConnection


KEPT_FOR = 15.0
# A pool that cannot connect tries again after pauses that double: after a long outage it would sleep for as long again.
# So it gives up after this many seconds, and whoever waits asks anew, which makes it try at once.
ASK_ANEW = 1.0
# As many connections as a pool may have: after a restart of the server all of them are dead.
DISCARDED = 10
# How long maintenance and an exchange wait for one another before a second connection is opened. That, and planning the
# statements there anew, takes as long.
MOMENT = 0.05


class LoopPool:
    """Of the loop that is running. Whoever has taken a connection gives it back, whatever has become of it."""

    def __init__(self, pool: AsyncConnectionPool[OurAsyncConnection], outage: Outage) -> None:
        self._pool = pool
        self._outage = outage
        self._kept: OurAsyncConnection | None = None
        self._waiting = 0
        self._out = 0  # how many are in use, and those of them that maintenance has
        self._briefly: set[OurAsyncConnection] = set()
        self._returned: asyncio.Future[None] | None = None
        self._used = self._due = self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._returning: asyncio.Task[None] | None = None

    async def comes_to_rest(self) -> bool:
        """Whether none is in use, or one is at hand, or given back within a moment."""
        end = time.monotonic() + MOMENT
        while self._kept is None and self._out and (left := end - time.monotonic()) > 0:
            self._returned = self._returned or asyncio.get_running_loop().create_future()
            await asyncio.wait({self._returned}, timeout=left)
        return self._kept is not None or not self._out

    async def take(self, within: float, *, quiet: bool = False, brief: bool = False) -> OurAsyncConnection:
        """``quiet``: one on which nothing has come unasked, if there is any. ``brief`` is maintenance: it and the
        exchanges of an idle worker wait a moment for one another, so that one connection is enough for both."""
        if self._briefly:
            await self.comes_to_rest()
        found = await self._taken(within, quiet)
        self._out += 1
        if brief:
            self._briefly.add(found)
        return found

    async def _taken(self, within: float, quiet: bool) -> OurAsyncConnection:
        for _ in range(DISCARDED if quiet else 0):
            found = await self._take(within)
            if _is_quiet(found):
                return found
            await found.close()
            await self._pool.putconn(found)
        return await self._take(within)

    async def _take(self, within: float) -> OurAsyncConnection:
        kept, self._kept = self._kept, None
        if kept is not None:
            self._used = True
            return kept
        self._waiting += 1
        try:
            return await self._wait(within)
        finally:
            self._waiting -= 1

    async def _wait(self, within: float) -> OurAsyncConnection:
        end = time.monotonic() + within
        while (left := end - time.monotonic()) > 0:
            with contextlib.suppress(PoolTimeout):
                return await self._pool.getconn(min(left, ASK_ANEW))
        raise _no_connection(within, self._outage)

    async def give_back(self, connection: OurAsyncConnection) -> None:
        self._out -= 1
        self._briefly.discard(connection)
        try:
            await self._keep(connection)
        finally:
            if self._returned is not None:
                returned, self._returned = self._returned, None
                if not returned.done():
                    returned.set_result(None)

    async def _keep(self, connection: OurAsyncConnection) -> None:
        if self._kept is not None or self._waiting or self._due or self._closed or not _is_idle(connection):
            self._due = False
            await self._pool.putconn(connection)
            return
        self._kept = connection
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(KEPT_FOR, self._look)

    def _look(self) -> None:
        """Every ``KEPT_FOR`` seconds, while one is kept."""
        self._timer = None
        if self._used:
            self._used, self._due = False, True
            self._timer = asyncio.get_running_loop().call_later(KEPT_FOR, self._look)
        elif self._kept is not None:
            kept, self._kept = self._kept, None
            self._returning = asyncio.create_task(self._pool.putconn(kept))

    async def close(self, within: float) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._returning is not None:
            await self._returning
        kept, self._kept = self._kept, None
        if kept is not None:
            await self._pool.putconn(kept)
        await self._pool.close(within)


def take_now(
    pool: ConnectionPool[OurConnection], within: float, outage: Outage, *, quiet: bool = False
) -> OurConnection:
    """The same for whoever has no loop."""
    for _ in range(DISCARDED if quiet else 0):
        found = _take_now(pool, within, outage)
        if _is_quiet(found):
            return found
        found.close()
        pool.putconn(found)
    return _take_now(pool, within, outage)


def _take_now(pool: ConnectionPool[OurConnection], within: float, outage: Outage) -> OurConnection:
    end = time.monotonic() + within
    while (left := end - time.monotonic()) > 0:
        with contextlib.suppress(PoolTimeout):
            return pool.getconn(min(left, ASK_ANEW))
    raise _no_connection(within, outage)


def _no_connection(within: float, outage: Outage) -> PoolTimeout:
    return PoolTimeout(f"there was no connection within {within:g} s: {outage.reason or 'all are in use'}")


def _is_quiet(connection: OurConnection | OurAsyncConnection) -> bool:
    """A server that was stopped has said so on every connection, or closed it. Who writes over one of those learns that
    the connection was lost, and not whether the write was done; so it is better not begun."""
    if connection.closed or not hasattr(select, "poll"):
        return not connection.closed
    ear = select.poll()
    ear.register(connection.fileno(), select.POLLIN)
    return not ear.poll(0)


def _is_idle(connection: OurAsyncConnection) -> bool:
    return connection.pgconn.transaction_status == TransactionStatus.IDLE


Lanes: TypeAlias = "dict[bool, LoopPool]"

CONNECT_WITHIN = 15.0
# After a busy time, what nobody uses is closed after so many seconds, one connection at a time.
MAX_IDLE = 20.0
# A pool that is closed waits so long for connections that it has begun to open.
CLOSE_WITHIN = 0.5


class Pools:
    """``size`` is how many connections each may have, and ``hot`` how many one has that is for what is hot."""

    def __init__(self, url: str, size: int, hot: int, outage: Outage) -> None:
        self._url = url
        self._outage = outage
        self._size, self._hot = size, hot
        self._of_threads: ConnectionPool[OurConnection] | None = None
        self._opening = threading.Lock()
        # A pool belongs to the loop it was opened on; a program may have several, one after another.
        self._of_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Lanes] = weakref.WeakKeyDictionary()
        self._owner = os.getpid()
        self._inherited: object = None

    def _leave_to_parent(self) -> None:
        """In a forked child the connections are still the parent's: to use or to close them would garble its own."""
        if self._owner != os.getpid():
            self._owner = os.getpid()
            self._inherited = (self._of_threads, self._of_loops)  # kept, so that nobody finalizes them
            self._of_threads, self._of_loops = None, weakref.WeakKeyDictionary()

    def of_threads(self) -> ConnectionPool[OurConnection]:
        self._leave_to_parent()
        if self._of_threads is None:
            with self._opening:  # the first calls may come from many threads at once
                if self._of_threads is None:
                    self._of_threads = ConnectionPool(
                        self._url,
                        connection_class=OurConnection,
                        max_size=self._size,
                        configure=_ready,
                        open=True,
                        **_settings(self._outage),
                    )
        return self._of_threads

    async def of_loop(self, hot: bool = False) -> LoopPool:
        """A pool hands out the connection that has rested longest, so what is hot has one of its own: it would go from
        backend to backend, and each plans it anew (docs/adr/0034)."""
        self._leave_to_parent()
        lanes = self._of_loops.setdefault(asyncio.get_running_loop(), {})
        found = lanes.get(hot)
        if found is None:
            pool = AsyncConnectionPool(
                self._url,
                connection_class=OurAsyncConnection,
                max_size=self._hot if hot else self._size,
                configure=_aready,
                open=False,
                **_settings(self._outage),
            )
            found = lanes[hot] = LoopPool(pool, self._outage)
            await pool.open()
        return found

    async def of_maintenance(self) -> LoopPool:
        """The hot pool, if one of its connections is at hand: so an idle worker needs none besides. Else the other."""
        self._leave_to_parent()
        hot = self._of_loops.get(asyncio.get_running_loop(), {}).get(True)
        return hot if hot is not None and await hot.comes_to_rest() else await self.of_loop()

    def close(self) -> None:
        self._leave_to_parent()
        if self._of_threads is not None:
            self._of_threads.close(CLOSE_WITHIN)
            self._of_threads = None

    async def leave_loop(self) -> None:
        self._leave_to_parent()
        lanes = self._of_loops.pop(asyncio.get_running_loop(), {})
        await asyncio.gather(*(pool.close(CLOSE_WITHIN) for pool in lanes.values()))


def _settings(outage: Outage) -> dict[str, Any]:
    """What every pool is given."""
    return {
        "min_size": 0,
        "max_idle": MAX_IDLE,
        "kwargs": CONNECTION | {"outage": outage},
        "timeout": CONNECT_WITHIN,
        "reconnect_timeout": ASK_ANEW,
        "name": POOL,
    }


def _ready(connection: OurConnection) -> None:
    prepare_connection(connection)
    prepare_if_direct(connection)


async def _aready(connection: OurAsyncConnection) -> None:
    prepare_connection(connection)
    await aprepare_if_direct(connection)

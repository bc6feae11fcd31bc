"""Connection pools: one for all threads, and two per event loop (exchanges have their own)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import weakref
from typing import Any, TypeAlias, cast

from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout

from holdfast.stores.locks import fork_safe_lock
from holdfast.stores.outage import Outage
from holdfast.stores.postgres.connections import (
    CONNECTION,
    POOL,
    AsyncStoreConnection,
    StoreConnection,
    prepare_connection,
)
from holdfast.stores.postgres.errors import is_login_refused
from holdfast.stores.postgres.pipeline import readable
from holdfast.stores.postgres.session import apin, pin

KEPT_FOR = 15.0
# A pool that cannot connect retries after pauses that double, so after a long outage it would sleep for just as long.
# Instead it gives up after this many seconds, and the caller asks again, which makes it try at once.
RECONNECT_AFTER = 1.0
# The number of connections a pool may have: after a restart of the server all of them are dead.
MAX_DISCARDED = 10
# Seconds that maintenance and exchanges wait for each other before a second connection is opened. Opening it and
# planning the statements there takes about as long.
SHARE_WAIT = 0.05


class _CancellablePool(AsyncConnectionPool[AsyncStoreConnection]):
    """Ends with its loop. The tasks of a pool ignore a cancellation while they connect, and ``asyncio.run`` cancels the
    tasks that are left once, and then waits for them: it would wait for ever."""

    @classmethod
    async def worker(cls, q: Any) -> None:
        with contextlib.suppress(_Ended):
            await super().worker(cast(Any, _UntilCancelled(q)))


class _Ended(Exception):
    """A task of a pool was cancelled, and has not said so."""


class _UntilCancelled:
    def __init__(self, queue: asyncio.Queue[Any]) -> None:
        self._queue = queue

    async def get(self) -> object:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise _Ended
        return await self._queue.get()


class LoopPool:
    """The connections of one event loop: a pool, and in front of it the connection that was used last.

    Taking a connection from the pool and returning it costs as much as a short statement, and statements usually follow
    each other. So the last connection is kept outside the pool while no task waits for one. Every ``KEPT_FOR`` seconds
    it goes through the pool, which replaces old connections; if it was not used for that long, it goes back for good,
    because the pool closes idle connections. Every connection taken must be given back, whatever its state.
    """

    def __init__(self, pool: AsyncConnectionPool[AsyncStoreConnection], outage: Outage) -> None:
        self._pool = pool
        self._outage = outage
        self._kept: AsyncStoreConnection | None = None
        self._waiting = 0
        self._in_use = 0
        self._in_maintenance: set[AsyncStoreConnection] = set()  # those of them that maintenance uses
        self._returned: asyncio.Future[None] | None = None
        self._used = self._due = self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._returning: asyncio.Task[None] | None = None

    async def becomes_free(self) -> bool:
        """Whether a connection is free now or within ``SHARE_WAIT``, or none is in use."""
        end = time.monotonic() + SHARE_WAIT
        while self._kept is None and self._in_use and (left := end - time.monotonic()) > 0:
            self._returned = self._returned or asyncio.get_running_loop().create_future()
            await asyncio.wait({self._returned}, timeout=left)
        return self._kept is not None or not self._in_use

    async def take(self, within: float, *, alive: bool = False, brief: bool = False) -> AsyncStoreConnection:
        """Take a connection. ``alive`` discards connections that the server has closed. ``brief`` marks maintenance: it
        and the exchanges of an idle worker wait briefly for each other, so that both share one connection."""
        if self._in_maintenance:
            await self.becomes_free()
        connection = await self._take_checked(within, alive)
        self._in_use += 1
        if brief:
            self._in_maintenance.add(connection)
        return connection

    async def _take_checked(self, within: float, alive: bool) -> AsyncStoreConnection:
        for _ in range(MAX_DISCARDED if alive else 0):
            connection = await self._take(within)
            if _is_alive(connection):
                return connection
            await connection.close()
            await self._pool.putconn(connection)
        return await self._take(within)

    async def _take(self, within: float) -> AsyncStoreConnection:
        kept, self._kept = self._kept, None
        if kept is not None:
            self._used = True
            return kept
        self._waiting += 1
        try:
            return await self._wait(within)
        finally:
            self._waiting -= 1

    async def _wait(self, within: float) -> AsyncStoreConnection:
        end = time.monotonic() + within
        while (left := end - time.monotonic()) > 0:
            with contextlib.suppress(PoolTimeout):
                return await self._pool.getconn(min(left, RECONNECT_AFTER))
            if is_login_refused(self._outage.connecting):
                break
        raise _no_connection(within, self._outage)

    async def give_back(self, connection: AsyncStoreConnection) -> None:
        self._in_use -= 1
        self._in_maintenance.discard(connection)
        try:
            await self._keep(connection)
        finally:
            if self._returned is not None:
                returned, self._returned = self._returned, None
                if not returned.done():
                    returned.set_result(None)

    async def _keep(self, connection: AsyncStoreConnection) -> None:
        if self._kept is not None or self._waiting or self._due or self._closed or not _is_idle(connection):
            self._due = False
            await self._pool.putconn(connection)
            return
        self._kept = connection
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(KEPT_FOR, self._rotate)

    def _rotate(self) -> None:
        """Return the kept connection to the pool: at its next use, or now if it was not used for ``KEPT_FOR``
        seconds."""
        self._timer = None
        if self._used:
            self._used, self._due = False, True
            self._timer = asyncio.get_running_loop().call_later(KEPT_FOR, self._rotate)
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
    pool: ConnectionPool[StoreConnection], within: float, outage: Outage, *, alive: bool = False
) -> StoreConnection:
    """Take a connection from a sync pool. ``alive`` discards connections that the server has closed."""
    for _ in range(MAX_DISCARDED if alive else 0):
        connection = _take_now(pool, within, outage)
        if _is_alive(connection):
            return connection
        connection.close()
        pool.putconn(connection)
    return _take_now(pool, within, outage)


def _take_now(pool: ConnectionPool[StoreConnection], within: float, outage: Outage) -> StoreConnection:
    end = time.monotonic() + within
    while (left := end - time.monotonic()) > 0:
        with contextlib.suppress(PoolTimeout):
            return pool.getconn(min(left, RECONNECT_AFTER))
        if is_login_refused(outage.connecting):
            break
    raise _no_connection(within, outage)


def _no_connection(within: float, outage: Outage) -> PoolTimeout:
    if is_login_refused(outage.connecting):
        return PoolTimeout(outage.connecting)
    return PoolTimeout(f"there was no connection within {within:g} s: {outage.connecting or 'all are in use'}")


def _is_alive(connection: StoreConnection | AsyncStoreConnection) -> bool:
    """Whether nothing is waiting to be read: a server that was stopped has sent an error on every connection, or closed
    it. A write on such a connection would fail without telling whether it was committed, so it must not start."""
    return not connection.closed and not readable([connection.fileno()], 0)


def _is_idle(connection: AsyncStoreConnection) -> bool:
    return connection.pgconn.transaction_status == TransactionStatus.IDLE


PoolsByUse: TypeAlias = "dict[bool, LoopPool]"

CONNECT_WITHIN = 15.0
# Seconds after which unused connections are closed, one at a time.
MAX_IDLE = 20.0
# Seconds that closing a pool waits for connections that are being opened.
CLOSE_WITHIN = 0.5


class Pools:
    """All pools of a store. ``size`` is the maximum of connections of a pool, ``hot`` that of the pool for hot
    flows."""

    def __init__(self, url: str, size: int, hot: int, outage: Outage) -> None:
        self._url = url
        self._outage = outage
        self._size, self._hot = size, hot
        self._thread_pool: ConnectionPool[StoreConnection] | None = None
        self._opening = fork_safe_lock()
        # A pool belongs to the loop it was opened on; a program may run several loops one after another.
        self._loop_pools: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, PoolsByUse] = weakref.WeakKeyDictionary()
        self._owner = os.getpid()
        self._inherited: object = None

    def _leave_to_parent(self) -> None:
        """Forget inherited pools in a forked child: using or closing their connections would corrupt the parent's."""
        if self._owner != os.getpid():
            self._owner = os.getpid()
            self._inherited = (self._thread_pool, self._loop_pools)  # referenced, so that they are never finalized
            self._thread_pool, self._loop_pools = None, weakref.WeakKeyDictionary()

    def thread_pool(self) -> ConnectionPool[StoreConnection]:
        self._leave_to_parent()
        if self._thread_pool is None:
            with self._opening:  # the first calls may come from several threads at once
                if self._thread_pool is None:
                    self._thread_pool = ConnectionPool(
                        self._url,
                        connection_class=StoreConnection,
                        max_size=self._size,
                        configure=_ready,
                        open=True,
                        **_settings(self._outage),
                    )
        return self._thread_pool

    async def loop_pool(self, hot: bool = False) -> LoopPool:
        """The pool of the running loop. Hot flows have their own: a pool hands out the connection that was idle
        longest, so in a shared pool they would move from backend to backend, and each would plan them again
        (docs/adr/0025)."""
        self._leave_to_parent()
        pools = self._loop_pools.setdefault(asyncio.get_running_loop(), {})
        loop_pool = pools.get(hot)
        if loop_pool is None:
            pool = _CancellablePool(
                self._url,
                connection_class=AsyncStoreConnection,
                max_size=self._hot if hot else self._size,
                configure=_aready,
                open=False,
                **_settings(self._outage),
            )
            loop_pool = pools[hot] = LoopPool(pool, self._outage)
            await pool.open()
        return loop_pool

    async def maintenance_pool(self) -> LoopPool:
        """The hot pool if one of its connections is free, so that an idle worker needs only one; else the other
        pool."""
        self._leave_to_parent()
        hot = self._loop_pools.get(asyncio.get_running_loop(), {}).get(True)
        return hot if hot is not None and await hot.becomes_free() else await self.loop_pool()

    def close(self) -> None:
        self._leave_to_parent()
        if self._thread_pool is not None:
            self._thread_pool.close(CLOSE_WITHIN)
            self._thread_pool = None

    async def leave_loop(self) -> None:
        self._leave_to_parent()
        pools = self._loop_pools.pop(asyncio.get_running_loop(), {})
        await asyncio.gather(*(pool.close(CLOSE_WITHIN) for pool in pools.values()))


def _settings(outage: Outage) -> dict[str, Any]:
    """The settings that all pools share."""
    return {
        "min_size": 0,
        "max_idle": MAX_IDLE,
        "kwargs": CONNECTION | {"outage": outage},
        "timeout": CONNECT_WITHIN,
        "reconnect_timeout": RECONNECT_AFTER,
        "name": POOL,
    }


def _ready(connection: StoreConnection) -> None:
    prepare_connection(connection)
    pin(connection)


async def _aready(connection: AsyncStoreConnection) -> None:
    prepare_connection(connection)
    await apin(connection)

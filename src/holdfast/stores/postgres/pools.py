"""The pools of a store: one for all its threads, and for each event loop one or two of its own."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from typing import Any, TypeAlias

from psycopg_pool import AsyncConnectionPool, ConnectionPool

from holdfast.stores.outage import Outage
from holdfast.stores.postgres.connections import CONNECTION, POOL, OurAsyncConnection, OurConnection, prepare_connection
from holdfast.stores.postgres.keeping import ASK_ANEW, LoopConnections
from holdfast.stores.postgres.pooler import aprepare_if_direct, prepare_if_direct

Lanes: TypeAlias = "dict[bool, LoopConnections]"

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

    async def of_loop(self, hot: bool = False) -> LoopConnections:
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
            found = lanes[hot] = LoopConnections(pool, self._outage)
            await pool.open()
        return found

    async def of_maintenance(self) -> LoopConnections:
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

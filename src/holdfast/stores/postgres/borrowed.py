"""Run flows on connections that the application's own pool lends, instead of on ours (docs/adr/0041).

A borrowed connection goes back as it came. Nothing is registered on it: psycopg's cursors have our conversions, and
asyncpg gets and returns what is independent of its codecs. No transaction stays open, and the pool is never closed. Its
settings are read at its first use: if they differ from those we rely on, every flow sets ours in a transaction.

The exchanges and the maintenance of a worker, and its listener, keep connections of their own: they stay on one
backend, where their plans are cached, and a LISTEN must stay open. So do calls that the pool cannot serve: a sync call
with an async pool, a call on another event loop than that of the pool, or in a forked child.
"""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import psycopg
from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor, IsolationLevel
from psycopg.adapt import AdaptersMap
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg.types.json import set_json_loads
from psycopg.types.string import TextLoader

from holdfast.engine.payload import decode_for_display
from holdfast.stores.application_pool import ASYNC_PSYCOPG, ASYNCPG, ENGINE, PSYCOPG, driver_of, kind_of
from holdfast.stores.flow import Flow, Rows, Statement, adrive_steps, drive_steps, in_thread, maintaining, wait_limit_of
from holdfast.stores.postgres.asyncpg_statements import as_psycopg_error, fetch
from holdfast.stores.postgres.connections import TimeLoader, _log_warning
from holdfast.stores.postgres.errors import lost, translate
from holdfast.stores.postgres.pools import CONNECT_WITHIN, MAX_DISCARDED, _is_alive
from holdfast.stores.postgres.runner import RETRIES, Watchdog, can_retry, only_once, pause
from holdfast.stores.postgres.session import DIFFERS, PIN_LOCALLY

if TYPE_CHECKING:
    from holdfast.stores.application_pool import ApplicationPool

T = TypeVar("T")

LOOP_TURNS = 4
"""Turns of an event loop that it needs to read an error and then the end of a connection: each is first announced."""

_pins_locally: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
"""By connection: whether its settings differ from those of ``session.PINNED``."""
_adapters = AdaptersMap(psycopg.adapters)
_adapters.register_loader("uuid", TextLoader)
_adapters.register_loader("timestamptz", TimeLoader)


class _Context:
    adapters, connection = _adapters, None


set_json_loads(decode_for_display, _Context())


class StoreCursor(Cursor[Any]):
    """A cursor with our conversions on a connection with others."""

    @property
    def adapters(self) -> AdaptersMap:
        return _adapters


class AsyncStoreCursor(AsyncCursor[Any]):
    @property
    def adapters(self) -> AdaptersMap:
        return _adapters


class ApplicationConnections:
    """Runs flows on connections of one pool, and repeats them where that is safe."""

    def __init__(self, pool: ApplicationPool, watchdog: Watchdog, answer_within: float) -> None:
        self._pool: Any = pool
        self._kind, self._driver = kind_of(pool), driver_of(pool)
        self._watchdog, self._answer_within = watchdog, answer_within
        self._is_sync = self._kind in (PSYCOPG, ENGINE)
        self._owner = os.getpid()
        self._loop: weakref.ref[asyncio.AbstractEventLoop] | None = None

    def serves(self) -> bool:
        """Whether a sync call can use the pool."""
        return self._is_sync and self._owner == os.getpid()

    def serves_loop(self, flow: Flow[Any]) -> bool:
        """Whether this async call can use the pool. An async pool belongs to the loop of its first call."""
        if flow.hot or maintaining.get() or self._owner != os.getpid():
            return False
        if self._is_sync:
            return True
        running = asyncio.get_running_loop()
        loop = None if self._loop is None else self._loop()
        if loop is None or loop.is_closed():
            loop, self._loop = running, weakref.ref(running)
        return loop is running

    # --- sync ---

    def run(self, flow: Flow[T]) -> T:
        timeout, limit = flow.response_timeout or self._answer_within, wait_limit_of.get()
        end = time.monotonic() + 2 * timeout
        for attempt in range(RETRIES + MAX_DISCARDED):
            try:
                with self._lent(min(timeout, CONNECT_WITHIN), attempt > 0 or only_once(flow)) as connection:
                    number = self._watchdog.begin(connection, timeout, limit)
                    try:
                        return _run_on(connection, flow)
                    finally:
                        self._watchdog.end(number)
            except Exception as raised:
                error = _driver_error(raised)
                if time.monotonic() > min(end, limit.until) or not can_retry(error, flow, attempt, MAX_DISCARDED):
                    raise translate(error) from raised
                flow = flow.again() if lost(error) else flow
            time.sleep(pause(attempt))
        raise AssertionError("unreachable")

    @contextmanager
    def _lent(self, within: float, alive: bool) -> Iterator[Connection[Any]]:
        """Take a connection. ``alive`` replaces those that the server has closed."""
        for number in range(MAX_DISCARDED):
            with self._taken(within) as connection:
                if alive and number + 1 < MAX_DISCARDED and not _is_alive(cast(Any, connection)):
                    connection.close()
                    continue
                yield connection
                return

    @contextmanager
    def _taken(self, within: float) -> Iterator[Connection[Any]]:
        if self._kind == PSYCOPG:
            taken = self._pool.getconn(within)
            try:
                yield taken
            finally:
                self._pool.putconn(taken)
            return
        with self._pool.connect() as connection:
            try:
                yield connection.connection.driver_connection
            finally:
                if connection.connection.driver_connection.closed:
                    connection.invalidate()

    # --- async ---

    async def arun(self, flow: Flow[T]) -> T:
        if self._is_sync:
            return await in_thread(self.run, flow)
        timeout, limit = flow.response_timeout or self._answer_within, wait_limit_of.get()
        end = time.monotonic() + 2 * timeout
        for attempt in range(RETRIES + MAX_DISCARDED):
            try:
                async with self._alent(min(timeout, CONNECT_WITHIN), attempt > 0 or only_once(flow)) as connection:
                    if self._driver == ASYNCPG:
                        async with asyncio.timeout(min(timeout, limit.left())):
                            return await _arun_on_asyncpg(connection, flow)
                    number = self._watchdog.begin(connection, timeout, limit)
                    try:
                        return await _arun_on(connection, flow)
                    finally:
                        self._watchdog.end(number)
            except Exception as raised:
                error = _driver_error(raised)
                if time.monotonic() > min(end, limit.until) or not can_retry(error, flow, attempt, MAX_DISCARDED):
                    raise translate(error) from raised
                flow = flow.again() if lost(error) else flow
            await asyncio.sleep(pause(attempt))
        raise AssertionError("unreachable")

    @asynccontextmanager
    async def _alent(self, within: float, alive: bool) -> AsyncIterator[Any]:
        for number in range(MAX_DISCARDED):
            async with self._ataken(within) as connection:
                if alive and number + 1 < MAX_DISCARDED and not await _answers(connection):
                    if not _is_closed(connection):
                        await connection.close()
                    continue
                yield connection
                return

    @asynccontextmanager
    async def _ataken(self, within: float) -> AsyncIterator[Any]:
        if self._kind == ASYNCPG:
            async with self._pool.acquire(timeout=within) as connection:
                yield connection
        elif self._kind == ASYNC_PSYCOPG:
            taken = await self._pool.getconn(within)
            try:
                yield taken
            finally:
                await self._pool.putconn(taken)
        else:
            async with self._pool.connect() as connection:
                driver: Any = (await connection.get_raw_connection()).driver_connection
                try:
                    yield driver
                finally:
                    if _is_closed(driver):
                        await connection.invalidate()


def _is_closed(connection: Any) -> bool:
    if isinstance(connection, AsyncConnection):
        return connection.closed
    try:
        return bool(connection.is_closed())
    except Exception:  # the pool has taken back a connection that was lost, and its proxy refuses every call
        return True


async def _answers(connection: Any) -> bool:
    """Whether the server has not closed the connection. asyncpg notices when the loop has read what it sent: an error,
    then the end."""
    if isinstance(connection, AsyncConnection):
        return _is_alive(cast(Any, connection))
    for _ in range(LOOP_TURNS):
        await asyncio.sleep(0)
    return not _is_closed(connection)


def _driver_error(error: Exception) -> Exception:
    """The error as one of psycopg, which tells whether it can be repeated and what it means."""
    error = getattr(error, "orig", None) or error  # SQLAlchemy failed to connect
    if isinstance(error, psycopg.Error):
        return error
    return as_psycopg_error(error) or error


# --- on a connection of psycopg ---


def _run_on(connection: Connection[Any], flow: Flow[T]) -> T:
    cursor = StoreCursor(connection, row_factory=tuple_row)

    def execute(statement: Statement) -> Rows:
        cursor.execute(statement.sql, statement.params)
        return [] if cursor.rownumber is None else cursor.fetchall()

    autocommit, level = connection.autocommit, connection.isolation_level
    connection.add_notice_handler(_log_warning)
    try:
        # Both are kept in this process and cost no round trip. The level is that of our BEGIN.
        connection.autocommit, connection.isolation_level = True, IsolationLevel.READ_COMMITTED
        if (locally := _pins_locally.get(connection)) is None:
            locally = _pins_locally[connection] = bool(execute(DIFFERS)[0][0])
        if flow.single and not locally:
            return drive_steps(flow.start(), execute)
        with connection.transaction():
            if locally:
                execute(PIN_LOCALLY)
            return drive_steps(flow.start(), execute)
    finally:
        cursor.close()
        connection.remove_notice_handler(_log_warning)
        if _is_idle(connection):
            connection.isolation_level, connection.autocommit = level, autocommit
        else:
            connection.close()


async def _arun_on(connection: AsyncConnection[Any], flow: Flow[T]) -> T:
    cursor = AsyncStoreCursor(connection, row_factory=tuple_row)

    async def execute(statement: Statement) -> Rows:
        await cursor.execute(statement.sql, statement.params)
        return [] if cursor.rownumber is None else await cursor.fetchall()

    autocommit, level = connection.autocommit, connection.isolation_level
    connection.add_notice_handler(_log_warning)
    try:
        await connection.set_autocommit(True)
        await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
        return await _arun_with(connection, flow, execute, connection.transaction)
    finally:
        await cursor.close()
        connection.remove_notice_handler(_log_warning)
        if _is_idle(connection):
            await connection.set_isolation_level(level)
            await connection.set_autocommit(autocommit)
        else:
            await connection.close()


def _is_idle(connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    """Whether no transaction is open. Otherwise the flow was interrupted, and the pool replaces the connection."""
    return not connection.closed and connection.info.transaction_status == TransactionStatus.IDLE


# --- on a connection of asyncpg ---


async def _arun_on_asyncpg(connection: Any, flow: Flow[T]) -> T:
    async def execute(statement: Statement) -> Rows:
        return await fetch(connection, statement)

    connection.add_log_listener(_log_asyncpg_warning)
    try:
        lent = getattr(connection, "_con", connection)  # a pool lends a new proxy each time
        transaction = partial(connection.transaction, isolation="read_committed")
        return await _arun_with(lent, flow, execute, transaction)
    finally:
        if not _is_closed(connection):
            connection.remove_log_listener(_log_asyncpg_warning)


def _log_asyncpg_warning(connection: Any, notice: Any) -> None:
    _log_warning(cast(Any, SimpleNamespace(sqlstate=notice.sqlstate, message_primary=notice.message)))


async def _arun_with(
    connection: Any, flow: Flow[T], execute: Callable[[Statement], Any], transaction: Callable[[], Any]
) -> T:
    if (locally := _pins_locally.get(connection)) is None:
        locally = _pins_locally[connection] = bool((await execute(DIFFERS))[0][0])
    if flow.single and not locally:
        return await adrive_steps(flow.start(), execute)
    async with transaction():
        if locally:
            await execute(PIN_LOCALLY)
        return await adrive_steps(flow.start(), execute)

"""Run a flow on a connection, sync and async; retry rules; the watchdog for missing responses."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import psycopg

from holdfast.engine.operation import adrive, drive
from holdfast.stores.flow import Flow, Rows, Statement, Steps, WaitLimit, adrive_steps, drive_steps
from holdfast.stores.locks import fork_safe_lock
from holdfast.stores.postgres.connections import AsyncStoreConnection, StoreConnection
from holdfast.stores.postgres.errors import lost
from holdfast.stores.postgres.session import PIN_LOCALLY

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection


CHECK_EVERY = 0.5
# Seconds without waits until the thread ends: one call after another needs one thread, not many.
LINGER = 10.0
# A statement that takes longer than this may wait for a lock. It is reported at most every REPORT_EVERY seconds.
SLOW = 1.0
REPORT_EVERY = 30.0


class Watchdog:
    """Ends waits for responses that do not arrive.

    A server that is cut off silently (a dead link, a firewall that drops its state) leaves sockets open on which
    nothing ever arrives, and a driver that waits in C cannot be interrupted. One thread per store checks all waits
    twice a second and shuts down the socket of a wait that exceeds its limit: the driver then finds its connection
    closed. A wait that is merely long is reported to the store, which finds out which transaction holds the lock.
    """

    def __init__(self, report_slow: Callable[[], None]) -> None:
        """``report_slow`` is called in a new thread."""
        self._report_slow = report_slow
        self._reported = float("-inf")
        self._guard = fork_safe_lock()
        self._waits: dict[int, tuple[float, float, int, WaitLimit]] = {}
        self._number = 0
        self._thread: threading.Thread | None = None
        self._owner = os.getpid()

    def begin(self, connection: Connection[Any] | AsyncConnection[Any], seconds: float, limit: WaitLimit) -> int:
        """Watch a connection until ``end`` is called with the returned number. It must not be used for other work
        before that."""
        now = time.monotonic()
        wait = (now, now + seconds, connection.fileno(), limit)
        with self._guard:
            if self._thread is None or self._owner != os.getpid():
                self._start()
            self._number = number = self._number + 1
            self._waits[number] = wait
        return number

    def end(self, number: int) -> None:
        with self._guard:
            self._waits.pop(number, None)

    def _start(self) -> None:
        if self._owner != os.getpid():  # in a forked child, which has neither the thread nor the waits
            self._waits, self._owner = {}, os.getpid()
        self._thread = threading.Thread(target=self._watch, name="holdfast-watchdog", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        idle_since = time.monotonic()
        while True:
            time.sleep(CHECK_EVERY)
            now = time.monotonic()
            with self._guard:
                if self._waits:
                    idle_since = now
                elif now - idle_since > LINGER:
                    self._thread = None
                    return
                # Under the lock, so that the file descriptor still belongs to that connection.
                for number, (_, until, fileno, limit) in list(self._waits.items()):
                    if now > until or now > limit.until:
                        del self._waits[number]
                        _shut(fileno)
                slow = any(now - began > SLOW for began, *_ in self._waits.values())
            if slow and now - self._reported > REPORT_EVERY:
                self._reported = now
                threading.Thread(target=self._report_slow, name="holdfast-blockers", daemon=True).start()


def _shut(fileno: int) -> None:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fileno)) as wire:
        wire.shutdown(socket.SHUT_RDWR)


T = TypeVar("T")


class Reading(Generic[T]):
    """Splits a read-only flow into batches of statements that are sent together (pipeline.py).

    Call ``next_batch`` and ``advance`` until the batch is empty. Then the reading is ``over``, or its ``rest`` must run
    in a transaction. Each of our reads first binds the transaction to its tenant and needs nothing else of it: under
    READ COMMITTED every statement has its own snapshot anyway. So each batch is a transaction that includes its
    binding. Other statements may depend on earlier ones of their transaction, so from the first of them on, the flow
    runs in one transaction.
    """

    result: T

    def __init__(self, steps: Steps[T]) -> None:
        self._steps = steps
        self._bound: Statement | None = None
        self.over = False
        self._resume(None)

    def next_batch(self) -> list[Statement]:
        while not self.over and self._next.binds:
            self._bound = self._next
            self._resume([])
        if self.over or not (self._next.reads or self._next.alone):
            return []
        batch = [*(self._next.batch or (self._next,))]
        if self._bound is not None and self._next.reads:
            batch.insert(0, self._bound)
        return batch

    def advance(self, results: list[Rows]) -> None:
        own = results if self._bound is None or not self._next.reads else results[1:]
        self._resume([*own] if self._next.batch else own[0])

    def rest(self) -> Steps[T]:
        if self._bound is not None:
            yield self._bound
        while not self.over:
            self._resume((yield self._next))
        return self.result

    def close(self) -> None:
        self._steps.close()

    def _resume(self, rows: Rows | None) -> None:
        try:
            self._next = next(self._steps) if rows is None else self._steps.send(rows)
        except StopIteration as end:
            self.over, self.result = True, end.value


def run_on(connection: Connection[Any], flow: Flow[T]) -> T:
    """Run a flow on a connection, in a transaction unless the flow is a single statement."""

    execute = connection.fetch if isinstance(connection, StoreConnection) else _fetch_on(connection)
    locally = isinstance(connection, StoreConnection) and connection.pins_locally
    if flow.single and not locally:
        return drive(flow.start(), execute, Exception)
    if isinstance(connection, StoreConnection) and connection.batches and not flow.writes:
        return _read_on(connection, Reading(flow.start()))
    with connection.transaction():
        if locally:
            execute(PIN_LOCALLY)
        return drive_steps(flow.start(), execute)


def _read_on(connection: StoreConnection, reading: Reading[T]) -> T:
    with contextlib.closing(reading):
        while batch := reading.next_batch():
            reading.advance(connection.fetch_together(batch))
        if reading.over:
            return reading.result
        with connection.transaction():
            return drive_steps(reading.rest(), connection.fetch)


def run_steps(connection: Connection[Any], steps: Steps[T]) -> T:
    """Run a part of a larger operation, which manages the transaction itself."""
    return drive_steps(steps, _fetch_on(connection))


def _fetch_on(connection: Connection[Any]) -> Callable[[Statement], Rows]:
    def execute(statement: Statement) -> Rows:
        cursor = connection.execute(statement.sql, statement.params)
        return cursor.fetchall() if cursor.description else []

    return execute


async def arun_on(connection: AsyncStoreConnection, flow: Flow[T]) -> T:
    """Run a flow on an async connection, as ``run_on`` does."""
    if flow.single and not connection.pins_locally:
        return await adrive(flow.start(), connection.fetch, Exception)
    if connection.batches and not flow.writes:
        return await _aread_on(connection, Reading(flow.start()))
    async with connection.transaction():
        if connection.pins_locally:
            await connection.fetch(PIN_LOCALLY)
        return await adrive_steps(flow.start(), connection.fetch)


async def _aread_on(connection: AsyncStoreConnection, reading: Reading[T]) -> T:
    with contextlib.closing(reading):
        while batch := reading.next_batch():
            reading.advance(await connection.fetch_together(batch))
        if reading.over:
            return reading.result
        async with connection.transaction():
            return await adrive_steps(reading.rest(), connection.fetch)


RETRIES = 6


def can_retry(error: Exception, flow: Flow[Any], attempt: int, connections: int) -> bool:
    """Whether to run a flow again after an error. A transaction that lost a race is retried. After a lost connection a
    flow is retried only if it cannot have written anything, or can find out (``repeat``). Its first attempt may still
    be running on the server: then the ids collide once."""
    if flow.repeat is not None and lost(error):
        return attempt + 1 < RETRIES + connections  # all connections of the pool may be dead
    if attempt + 1 >= RETRIES:
        return False
    if isinstance(error, psycopg.errors.SerializationFailure | psycopg.errors.DeadlockDetected):
        return True
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return attempt < 2  # during a failover a new connection may reach the right server
    if getattr(error, "sqlstate", None) == "ZH020" and attempt == 0:
        return True  # the agent was disabled between the check and the insert: the check now refuses it properly
    if flow.start is flow.repeat and isinstance(error, psycopg.errors.UniqueViolation):
        return True
    # A read can be retried. In a storm several connections are lost in a row; a server that is down is waited for once.
    return isinstance(error, psycopg.OperationalError) and not flow.writes and (attempt == 0 or lost(error))


def only_once(flow: Flow[Any]) -> bool:
    """Whether a flow is a write that cannot be retried, and so must not start on a dead connection. A worker could
    compare its holdings and repeat an exchange, but that costs two round trips; checking the connection costs 3 µs."""
    return flow.writes and flow.repeat is None


def pause(attempt: int) -> float:
    return random.uniform(0.2, 1.0) * 0.01 * float(2 ** min(attempt, 5))

"""Run a flow on a connection, sync and async; retry rules; watchdog for missing answers.

Ends the wait for an answer that does not come.

A server that is cut off without a word (a dead link, a firewall that forgets) leaves sockets open on which nothing ever
arrives; a driver that waits in C cannot be interrupted. One thread a store looks twice a second at what is being waited
for, and shuts the socket of whoever has waited too long: the driver then finds its connection closed. Of a wait that is
merely long it tells the store, which finds out who is in the way.

A flow that only reads, as batches of questions that are sent together (see pipeline.py).

Each of our reads binds the transaction to its tenant first, and needs nothing else of it: the statements that follow
look at the database anew anyway. So each batch is a transaction, and carries its binding. What is no read of ours may
need what came before it in its transaction, or leave something there; from then on there is one, as in any other flow.
"""

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

from holdfast.stores.flow import Binding, Flow, Rows, Statement, Steps, WaitLimit, drive
from holdfast.stores.postgres.connections import OurAsyncConnection, OurConnection
from holdfast.stores.postgres.errors import lost

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection


PACE = 0.5
# The thread outlives what it watches: one call after another must not mean one thread after another.
LINGER = 10.0
# An answer that takes longer than this may be waiting for a lock; said at most once in so many seconds.
SLOW = 1.0
TELL_EVERY = 30.0


class Watchdog:
    def __init__(self, slow: Callable[[], None]) -> None:
        """``slow`` is called in a thread of its own."""
        self._slow = slow
        self._told = float("-inf")
        self._guard = threading.Lock()
        self._waits: dict[int, tuple[float, float, int, WaitLimit]] = {}
        self._number = 0
        self._thread: threading.Thread | None = None
        self._owner = os.getpid()

    def begin(self, connection: Connection[Any] | AsyncConnection[Any], seconds: float, whose: WaitLimit) -> int:
        """Answers the number to ``end`` it by; the connection must not be used by anybody else before that."""
        now = time.monotonic()
        wait = (now, now + seconds, connection.fileno(), whose)
        with self._guard:
            if self._thread is None or self._owner != os.getpid():
                self._rise()
            self._number = number = self._number + 1
            self._waits[number] = wait
        return number

    def end(self, number: int) -> None:
        with self._guard:
            self._waits.pop(number, None)

    def _rise(self) -> None:
        if self._owner != os.getpid():  # in a forked child: neither the thread nor those who wait are here
            self._waits, self._owner = {}, os.getpid()
        self._thread = threading.Thread(target=self._watch, name="holdfast-watchdog", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        idle_since = time.monotonic()
        while True:
            time.sleep(PACE)
            now = time.monotonic()
            with self._guard:
                if self._waits:
                    idle_since = now
                elif now - idle_since > LINGER:
                    self._thread = None
                    return
                # Under the lock, so that the number of the socket is still that connection's.
                for number, (_, until, fileno, whose) in list(self._waits.items()):
                    if now > until or now > whose.until:
                        del self._waits[number]
                        _shut(fileno)
                slow = any(now - began > SLOW for began, *_ in self._waits.values())
            if slow and now - self._told > TELL_EVERY:
                self._told = now
                threading.Thread(target=self._slow, name="holdfast-blockers", daemon=True).start()


def _shut(fileno: int) -> None:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fileno)) as wire:
        wire.shutdown(socket.SHUT_RDWR)


T = TypeVar("T")


class Reading(Generic[T]):
    """``questions`` and ``answered`` in turn, until there are none; then it is ``over``, or the ``rest`` is to be run
    in a transaction."""

    result: T

    def __init__(self, steps: Steps[T]) -> None:
        self._steps = steps
        self._bound: Statement | None = None
        self.over = False
        self._go_on(None)

    def questions(self) -> list[Statement]:
        while not self.over and self._next.binds:
            self._bound = self._next
            self._go_on([])
        if self.over or not (self._next.reads or self._next.alone):
            return []
        asked = [*(self._next.beside or (self._next,))]
        if self._bound is not None and self._next.reads:
            asked.insert(0, self._bound)
        return asked

    def answered(self, answers: list[Rows]) -> None:
        own = answers if self._bound is None or not self._next.reads else answers[1:]
        self._go_on([*own] if self._next.beside else own[0])

    def rest(self) -> Steps[T]:
        if self._bound is not None:
            yield self._bound
        while not self.over:
            self._go_on((yield self._next))
        return self.result

    def close(self) -> None:
        self._steps.close()

    def _go_on(self, rows: Rows | None) -> None:
        try:
            self._next = next(self._steps) if rows is None else self._steps.send(rows)
        except StopIteration as end:
            self.over, self.result = True, end.value


def run_on(connection: Connection[Any], flow: Flow[T]) -> T:
    """Run a flow on a connection, in a transaction of its own unless the flow is one statement."""

    execute = connection.ask if isinstance(connection, OurConnection) else _asking(connection)
    if flow.single:
        return drive(flow.start(), execute)
    if isinstance(connection, OurConnection) and connection.batches and not flow.writes:
        return _read_on(connection, Reading(flow.start()))
    binding = Binding()
    with connection.transaction():
        return drive(flow.start(), lambda statement: [] if binding.spares(statement) else execute(statement))


def _read_on(connection: OurConnection, reading: Reading[T]) -> T:
    with contextlib.closing(reading):
        while asked := reading.questions():
            reading.answered(connection.ask_together(asked))
        if reading.over:
            return reading.result
        binding = Binding()
        with connection.transaction():
            return drive(reading.rest(), lambda each: [] if binding.spares(each) else connection.ask(each))


def asked(connection: Connection[Any], steps: Steps[T]) -> T:
    """The same for a part of something, which is in a transaction or needs none."""
    return drive(steps, _asking(connection))


def _asking(connection: Connection[Any]) -> Callable[[Statement], Rows]:
    def execute(statement: Statement) -> Rows:
        cursor = connection.execute(statement.sql, statement.params)
        return cursor.fetchall() if cursor.description else []

    return execute


async def arun_on(connection: OurAsyncConnection, flow: Flow[T]) -> T:
    if flow.single:
        return await _adrive(flow.start(), connection)
    if connection.batches and not flow.writes:
        return await _aread_on(connection, Reading(flow.start()))
    async with connection.transaction():
        return await _adrive(flow.start(), connection)


async def _aread_on(connection: OurAsyncConnection, reading: Reading[T]) -> T:
    with contextlib.closing(reading):
        while asked := reading.questions():
            reading.answered(await connection.ask_together(asked))
        if reading.over:
            return reading.result
        async with connection.transaction():
            return await _adrive(reading.rest(), connection)


async def _adrive(steps: Steps[T], connection: OurAsyncConnection) -> T:
    try:
        statement, binding = next(steps), Binding()
        while True:
            if binding.spares(statement):
                statement = steps.send([])
            elif statement.beside:
                statement = steps.send([await connection.ask(each) for each in statement.beside])
            else:
                statement = steps.send(await connection.ask(statement))
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        steps.close()


RETRIES = 6


def tried_again(error: Exception, flow: Flow[Any], attempt: int, connections: int) -> bool:
    """A transaction that lost a race starts again; a lost connection only where nothing can have been written,
    or where the flow knows how to find out. Its first try may still be on its way: then the ids collide once."""
    if flow.repeat is not None and lost(error):
        return attempt + 1 < RETRIES + connections  # every one of the pool may have to be found dead first
    if attempt + 1 >= RETRIES:
        return False
    if isinstance(error, psycopg.errors.SerializationFailure | psycopg.errors.DeadlockDetected):
        return True
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return attempt < 2  # a primary that is one no more, or not yet: a new connection may find the right one
    if getattr(error, "sqlstate", None) == "ZH020" and attempt == 0:
        return True  # the agent was disabled between the answer and the insert: then the answer is another
    if flow.start is flow.repeat and isinstance(error, psycopg.errors.UniqueViolation):
        return True
    return isinstance(error, psycopg.OperationalError) and not flow.writes and attempt == 0


def only_once(flow: Flow[Any]) -> bool:
    """A write that cannot be tried again, and so is not begun on a connection that is already dead. A worker could
    compare what it holds and repeat its exchange, but that costs it two round trips, and this costs 3 µs."""
    return flow.writes and flow.repeat is None


def pause(attempt: int) -> float:
    return random.uniform(0.2, 1.0) * 0.01 * float(2 ** min(attempt, 5))

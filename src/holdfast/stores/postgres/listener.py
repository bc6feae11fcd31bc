"""``PostgresListener``: one connection that listens on the channel named like the schema.

Notifications carry keyed hashes (``sql/notify.sql``), because any login of the database can listen and notify. New jobs
are announced only in queues that are awaited: the connection holds a shared advisory lock for each of them. A
transaction that inserted a job before the lock was held announces nothing and may commit later, so the subscribers of
the queue are notified when one of the transactions of that moment has ended (``spec/``).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import random
import socket
import threading
import time
from typing import Any

import psycopg
from typing_extensions import override

from holdfast.stores.listener import LINGER, Listener
from holdfast.stores.outage import Outage
from holdfast.stores.postgres.connections import CONNECTION, connected
from holdfast.stores.postgres.pipeline import readable, receives_notifications

log = logging.getLogger("holdfast.store")

# Seconds between two reads: notifications are passed on in batches, so that a busy database does not occupy the
# process.
BATCH_PAUSE = 0.001
# Seconds between two notifications about everything: they are rare, and any login can send them.
EVERYTHING_PAUSE = 0.05
# Seconds between two queries that check whether the connection still works.
CHECK_EVERY = 30.0
# Seconds between two looks at the transactions that were under way when a lock was taken, doubling from the first to
# the last, and for how long: after that, workers poll anyway.
FIRST_LOOK, LAST_LOOK, LOOKED_FOR = 0.005, 0.5, 5.0
# Seconds between two attempts to take a lock that another session holds alone.
LOCK_EVERY = 0.02
# Cached hashes of names: queues, and jobs with waiting callers.
MOST_SIGNALS = 10_000
# Seconds between two attempts to connect, doubling from the first to the last.
FIRST_PAUSE, LAST_PAUSE = 0.1, 6.4


class PostgresListener(Listener):
    def __init__(self, url: str, schema: str, outage: Outage) -> None:
        super().__init__()
        self._outage = outage
        self.listening = False
        self._schema = schema
        self._settings = CONNECTION | {"conninfo": url}
        self._wake_socket: socket.socket | None = None
        self._behind_pooler = False
        self._key = ""
        self._signals: dict[str, str] = {}

    @override
    def refresh(self) -> None:
        if self.listening:  # otherwise it reads what is awaited when it begins to listen
            self._wake()

    @override
    def _wake(self) -> None:
        wake_socket = self._wake_socket
        if wake_socket is not None:
            with contextlib.suppress(OSError):
                wake_socket.send(b".")

    @override
    def _listen(self, closing: threading.Event) -> None:
        woken, wake_socket = socket.socketpair()
        woken.setblocking(False)
        wake_socket.setblocking(False)  # a full buffer wakes as well
        with woken, wake_socket:
            self._wake_socket = wake_socket
            try:
                self._listen_until_woken(woken, closing)
            finally:
                self.listening = False

    def _listen_until_woken(self, woken: socket.socket, closing: threading.Event) -> None:
        pause = FIRST_PAUSE
        while not closing.is_set():
            if self._behind_pooler:
                self._wait_until_unused(woken.fileno(), closing)
                return
            _drain(woken)
            try:
                with connected(self._settings["conninfo"]) as connection:
                    if not connection.direct and not receives_notifications(connection, self._settings, woken.fileno()):
                        self._give_up(closing)
                        continue
                    key = connection.execute(f'select "{self._schema}".signal_key()').fetchone()
                    self._key, self._signals = str(key and key[0]), {}
                    connection.execute(f'listen "{self._schema}"')
                    pause = FIRST_PAUSE
                    self.listening = True
                    awaited = AwaitedQueues(connection, self._schema)
                    self.notify("")  # notifications may have been missed before
                    self._receive(connection, awaited, woken, closing)
                    return
            except psycopg.Error as error:
                if self.listening:  # one connection was lost; the server may be available
                    self.listening = False
                    self.notify("")  # subscribers poll now, and replace their own dead connections meanwhile
                    continue
                # The store logs an outage. If only the listener cannot connect, it is logged when that lasts.
                alone = pause == LAST_PAUSE and not self._outage.reason
                level = logging.WARNING if alone else logging.DEBUG
                log.log(level, "Not listening for notifications, retrying: %s", str(error).strip().split("\n")[0])
                closing.wait(random.uniform(0.5, 1.0) * pause)
                pause = min(LAST_PAUSE, pause * 2)

    @override
    def _signal(self, name: str) -> str:
        signal = self._signals.get(name)
        if signal is None:
            if len(self._signals) > MOST_SIGNALS:
                self._signals.clear()
            signal = self._signals[name] = hashlib.sha256((self._key + name).encode()).hexdigest()[:32]
        return signal

    def _give_up(self, closing: threading.Event) -> None:
        """Stop connecting for good: the mode of a pooler does not change. Subscribers poll."""
        if closing.is_set():
            return
        self._behind_pooler = True
        log.warning(
            "Notifications are unavailable: the connection goes through a transaction pooler such as PgBouncer "
            "with pool_mode = transaction. The worker polls instead. Start it with --no-notify to silence this "
            "message, or use a direct connection for immediate pickup"
        )

    def _wait_until_unused(self, woken: int, closing: threading.Event) -> None:
        while not closing.is_set() and not self._is_unused():
            if readable([woken], LINGER):
                return

    def _receive(
        self,
        connection: psycopg.Connection[Any],
        awaited: AwaitedQueues,
        woken: socket.socket,
        closing: threading.Event,
    ) -> None:
        pgconn = connection.pgconn
        last_check = time.monotonic()
        last_everything, everything_pending = 0.0, False
        between: list[str] = []  # notifications that psycopg reads while it waits for the answer to a statement
        connection.add_notify_handler(lambda notification: between.append(notification.payload))
        while not closing.is_set() and not self._is_unused():
            for queue in awaited.update(self._awaited()):
                self.notify(self._signal(queue))
            due = last_everything + EVERYTHING_PAUSE - time.monotonic() if everything_pending else LINGER
            within = 0.0 if between else max(0.0, min(due, awaited.next_look()))
            ready = readable([pgconn.socket, woken.fileno()], within)
            if woken.fileno() in ready:
                _drain(woken)
            if time.monotonic() - last_check > CHECK_EVERY:
                connection.execute("select 1")
                last_check = time.monotonic()
            pgconn.consume_input()
            signals = set(between)
            between.clear()
            while (notification := pgconn.notifies()) is not None:
                signals.add(notification.extra.decode(errors="replace"))
            everything_pending = everything_pending or "" in signals
            if everything_pending and time.monotonic() - last_everything >= EVERYTHING_PAUSE:
                everything_pending, last_everything = False, time.monotonic()
                self.notify("")
            for signal in signals - {""}:
                self.notify(signal)
            if signals:
                closing.wait(BATCH_PAUSE)


class AwaitedQueues:
    """The advisory locks on the queues whose new jobs must be announced, held by the connection of the listener."""

    def __init__(self, connection: psycopg.Connection[Any], schema: str) -> None:
        self._connection = connection
        self._schema = schema
        self._held: set[str] = set()
        self._earlier: dict[str, set[int]] = {}
        """Transactions that were under way when a queue was locked, and have not ended yet."""
        self._pause, self._look_at, self._look_until = FIRST_LOOK, 0.0, 0.0
        self._lock_at = 0.0  # when to try again to take locks
        self._release({""})  # taken by signal_key(), for listeners that do not say what they await

    def update(self, wanted: set[str]) -> set[str]:
        """Hold locks for the wanted queues and no others. Returns those that may have jobs which were not announced."""
        if released := self._held - wanted:
            self._release(released)
            self._held -= released
            self._earlier = {queue: earlier for queue, earlier in self._earlier.items() if queue in self._held}
        if (taken := wanted - self._held) and time.monotonic() >= self._lock_at:
            # It fails while another session holds the lock alone, and every new job of the queue is announced.
            self._held |= self._locks("pg_try_advisory_lock_shared", taken)
            self._lock_at = time.monotonic() + LOCK_EVERY if taken - self._held else 0.0
            # An id of its own, which has ended, follows all that were given out before; a snapshot alone knows the
            # transactions only up to the last that has ended.
            ((last,),) = self._connection.execute("select pg_current_xact_id()::text::bigint").fetchall()
            if earlier := {id for id in self._under_way() if id < last}:
                self._earlier |= dict.fromkeys(taken, earlier)
            now = time.monotonic()
            self._pause, self._look_at, self._look_until = FIRST_LOOK, now + FIRST_LOOK, now + LOOKED_FOR
            return taken
        if self._earlier and time.monotonic() >= self._look_at:
            return self._look()
        return set()

    def next_look(self) -> float:
        """Seconds until ``update`` has something to do."""
        due = [self._look_at] if self._earlier else []
        due += [self._lock_at] if self._lock_at else []
        return min(due, default=time.monotonic() + LINGER) - time.monotonic()

    def _look(self) -> set[str]:
        now, under_way = time.monotonic(), self._under_way()
        ended = {queue for queue, earlier in self._earlier.items() if not earlier <= under_way}
        left = {queue: earlier & under_way for queue, earlier in self._earlier.items()}
        self._earlier = {queue: earlier for queue, earlier in left.items() if earlier} if now < self._look_until else {}
        self._pause = min(LAST_LOOK, self._pause * 2)
        self._look_at = now + self._pause
        return ended

    def _under_way(self) -> set[int]:
        statement = "select id::text::bigint from pg_snapshot_xip(pg_current_snapshot()) id"
        rows = self._connection.execute(statement).fetchall()
        return {id for (id,) in rows}

    def _release(self, queues: set[str]) -> None:
        self._locks("pg_advisory_unlock_shared", queues)

    def _locks(self, function: str, queues: set[str]) -> set[str]:
        """Call the function with the key of each queue. Returns those for which it was true."""
        statement = f"select queue, {function}(hashtext(%s), hashtext(queue)) from unnest(%s::text[]) queue"
        rows = self._connection.execute(statement, [self._schema, sorted(queues)]).fetchall()
        return {queue for queue, done in rows if done}


def _drain(woken: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        while woken.recv(4096):
            pass

"""``PostgresListener``: one connection that listens on the channel named like the schema.

Notifications carry keyed hashes (``sql/notify.sql``), because any login of the database can listen and notify.
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
CHECK_EVERY = 15.0
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
    def _wake(self) -> None:
        wake_socket = self._wake_socket
        if wake_socket is not None:
            with contextlib.suppress(OSError):
                wake_socket.send(b".")

    @override
    def _listen(self, closing: threading.Event) -> None:
        woken, wake_socket = socket.socketpair()
        with woken, wake_socket:
            self._wake_socket = wake_socket
            try:
                self._listen_until_woken(woken.fileno(), closing)
            finally:
                self.listening = False

    def _listen_until_woken(self, woken: int, closing: threading.Event) -> None:
        pause = FIRST_PAUSE
        while not closing.is_set():
            if self._behind_pooler:
                self._wait_until_unused(woken, closing)
                return
            try:
                with connected(self._settings["conninfo"]) as connection:
                    if not connection.direct and not receives_notifications(connection, self._settings, woken):
                        self._give_up(closing)
                        continue
                    key = connection.execute(f'select "{self._schema}".signal_key()').fetchone()
                    self._key, self._signals = str(key and key[0]), {}
                    connection.execute(f'listen "{self._schema}"')
                    pause = FIRST_PAUSE
                    self.listening = True
                    self.notify("")  # notifications may have been missed before
                    self._receive(connection, woken, closing)
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

    def _receive(self, connection: psycopg.Connection[Any], woken: int, closing: threading.Event) -> None:
        pgconn = connection.pgconn
        last_check = time.monotonic()
        last_everything, everything_pending = 0.0, False
        while not closing.is_set() and not self._is_unused():
            due = last_everything + EVERYTHING_PAUSE - time.monotonic()
            ready = readable([pgconn.socket, woken], max(0.0, due) if everything_pending else LINGER)
            if woken in ready:
                return
            if time.monotonic() - last_check > CHECK_EVERY:
                connection.execute("select 1")
                last_check = time.monotonic()
            pgconn.consume_input()
            signals = set()
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

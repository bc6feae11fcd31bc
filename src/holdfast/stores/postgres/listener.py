"""Hearing of changes in a PostgreSQL database: one connection that listens on the channel named like the schema.

What is said there is a hash with a key (``sql/notify.sql``), since any login of the database can listen and speak.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import random
import select
import socket
import threading
import time
from typing import Any

import psycopg
from typing_extensions import override

from holdfast.stores.listener import LINGER, Listener
from holdfast.stores.outage import Outage
from holdfast.stores.postgres.pipeline import brings_notices, is_direct

log = logging.getLogger("holdfast.store")

# What comes within this time of the last is told together: a busy database must not keep the process busy listening.
BREATH = 0.001
# A hint about everything is passed on at most once in this time: it is rare, and anybody can send one.
EVERYTHING = 0.05
# Now and then something is asked, to find out whether the connection still is one.
SOUNDING = 15.0
# Hashes that are kept: of queues, and of jobs that are waited for.
MOST_SIGNALS = 10_000
# Between two attempts to connect: from the first to the last, doubling.
FIRST_PAUSE, LAST_PAUSE = 0.1, 6.4


class PostgresListener(Listener):
    def __init__(self, url: str, schema: str, settings: dict[str, Any], outage: Outage) -> None:
        super().__init__()
        self._outage = outage
        self.listening = False
        self._schema = schema
        self._settings = settings | {"conninfo": url}
        self._rope: socket.socket | None = None
        self._in_vain = False
        self._key = ""
        self._signals: dict[str, str] = {}

    @override
    def _rouse(self) -> None:
        rope = self._rope
        if rope is not None:
            with contextlib.suppress(OSError):
                rope.send(b".")

    @override
    def _listen(self, closing: threading.Event) -> None:
        bell, rope = socket.socketpair()
        with bell, rope:
            self._rope = rope
            try:
                self._listen_until_rung(bell.fileno(), closing)
            finally:
                self.listening = False

    def _listen_until_rung(self, bell: int, closing: threading.Event) -> None:
        pause = FIRST_PAUSE
        while not closing.is_set():
            if self._in_vain:
                self._sit(bell, closing)
                return
            try:
                with psycopg.connect(**self._settings) as connection:
                    if not is_direct(connection) and not brings_notices(connection, self._settings, bell):
                        self._give_up(closing)
                        continue
                    key = connection.execute(f'select "{self._schema}".signal_key()').fetchone()
                    self._key, self._signals = str(key and key[0]), {}
                    connection.execute(f'listen "{self._schema}"')
                    pause = FIRST_PAUSE
                    self.listening = True
                    self.tell("")  # whatever was said while nobody listened
                    self._attend(connection, bell, closing)
                    return
            except psycopg.Error as error:
                if self.listening:  # one connection was lost: the server may well be there
                    self.listening = False
                    self.tell("")  # who listens looks now, and replaces his own dead connections beside this one
                    continue
                # The store logs an outage. A listener that alone cannot connect is logged when that lasts.
                alone = pause == LAST_PAUSE and not self._outage.reason
                level = logging.WARNING if alone else logging.DEBUG
                log.log(level, "Not listening for notifications, retrying: %s", str(error).strip().split("\n")[0])
                closing.wait(random.uniform(0.5, 1.0) * pause)
                pause = min(LAST_PAUSE, pause * 2)

    @override
    def _signal(self, name: str) -> str:
        found = self._signals.get(name)
        if found is None:
            if len(self._signals) > MOST_SIGNALS:
                self._signals.clear()
            found = self._signals[name] = hashlib.sha256((self._key + name).encode()).hexdigest()[:32]
        return found

    def _give_up(self, closing: threading.Event) -> None:
        """For good: what a pooler lets through is a setting of its own. Whoever listens looks by himself as well."""
        if closing.is_set():
            return
        self._in_vain = True
        log.warning(
            "Notifications are unavailable: the connection goes through a transaction pooler such as PgBouncer "
            "with pool_mode = transaction. The worker polls instead. Start it with --no-notify to silence this "
            "message, or use a direct connection for immediate pickup"
        )

    def _sit(self, bell: int, closing: threading.Event) -> None:
        while not closing.is_set() and not self._unheard():
            if select.select([bell], [], [], LINGER)[0]:
                return

    def _attend(self, connection: psycopg.Connection[Any], bell: int, closing: threading.Event) -> None:
        pgconn = connection.pgconn
        sounded = time.monotonic()
        everything, held = 0.0, False
        while not closing.is_set() and not self._unheard():
            patience = max(0.0, everything + EVERYTHING - time.monotonic()) if held else LINGER
            ready, _, _ = select.select([pgconn.socket, bell], [], [], patience)
            if bell in ready:
                return
            if time.monotonic() - sounded > SOUNDING:
                connection.execute("select 1")
                sounded = time.monotonic()
            pgconn.consume_input()
            said = set()
            while (notice := pgconn.notifies()) is not None:
                said.add(notice.extra.decode(errors="replace"))
            held = held or "" in said
            if held and time.monotonic() - everything >= EVERYTHING:
                held, everything = False, time.monotonic()
                self.tell("")
            for what in said - {""}:
                self.tell(what)
            if said:
                closing.wait(BREATH)

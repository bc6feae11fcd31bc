"""Ends the wait for an answer that does not come.

A server that is cut off without a word (a dead link, a firewall that forgets) leaves sockets open on which nothing ever
arrives; a driver that waits in C cannot be interrupted. One thread a store looks twice a second at what is being waited
for, and shuts the socket of whoever has waited too long: the driver then finds its connection closed. Of a wait that is
merely long it tells the store, which finds out who is in the way.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.stores.patience import Patience

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
        self._waits: dict[int, tuple[float, float, int, Patience]] = {}
        self._number = 0
        self._thread: threading.Thread | None = None
        self._owner = os.getpid()

    def begin(self, connection: Connection[Any] | AsyncConnection[Any], seconds: float, whose: Patience) -> int:
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

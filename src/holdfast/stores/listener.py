"""``Listener``: one thread per store that receives notifications and passes them to its subscribers.

The thread runs while there is a subscriber, and a little longer. A notification is a hint: subscribers also poll. It is
about one name, or about everything (the empty string). A subscriber receives only the names that it wants.
"""

from __future__ import annotations

import abc
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable

# Seconds without a subscriber until the thread ends: waiting for one result after another needs one connection, not
# many.
from holdfast.stores.locks import fork_safe_lock

LINGER = 5.0
# Seconds to wait for the thread at close. It is a daemon thread, and its server may not respond.
CLOSE_WITHIN = 0.5


Names = Callable[[], Iterable[str]]


class Listener(abc.ABC):
    def __init__(self) -> None:
        self._subscribers: dict[int, tuple[Callable[[str], None], Names | None, Names | None]] = {}
        self._numbers = itertools.count()
        self._guard = fork_safe_lock()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._owner = os.getpid()
        self._last_removed = 0.0

    def add(
        self, notify: Callable[[str], None], names: Names | None = None, awaited: Names | None = None
    ) -> Callable[[], None]:
        """Subscribe ``notify`` and return the function that unsubscribes it. It is called from the listener's thread,
        and must return quickly. ``names`` returns the names it wants at that moment; without ``names`` it is called
        with ``""`` for every notification. ``awaited`` returns the queues whose new jobs must be announced at that
        moment; it is called again after ``refresh``."""
        with self._guard:
            if self._owner != os.getpid():  # in a forked child, which has neither the thread nor the subscribers
                self._subscribers, self._thread, self._owner = {}, None, os.getpid()
            number = next(self._numbers)
            self._subscribers[number] = (notify, names, awaited)
            if self._thread is None or not self._thread.is_alive():
                self._closing = threading.Event()
                self._thread = threading.Thread(
                    target=self._listen, args=(self._closing,), name="holdfast-listener", daemon=True
                )
                self._thread.start()
        if awaited is not None:
            self.refresh()

        def stop() -> None:
            with self._guard:
                self._subscribers.pop(number, None)
                self._last_removed = time.monotonic()
            if awaited is not None:
                self.refresh()

        return stop

    def refresh(self) -> None:
        """What a subscriber awaits has changed. As soon as jobs of a queue that was not awaited before are announced,
        its subscribers are notified once, because earlier jobs were not."""
        return  # where every job is announced, there is nothing to do

    def _awaited(self) -> set[str]:
        with self._guard:
            functions = [awaited for _, _, awaited in self._subscribers.values() if awaited is not None]
        return {name for awaited in functions for name in awaited()}

    def _is_unused(self) -> bool:
        """Whether there was no subscriber for a while, so that the thread must end: the next subscriber starts another.
        ``_listen`` checks it regularly."""
        with self._guard:
            if self._subscribers or time.monotonic() - self._last_removed < LINGER:
                return False
            self._thread = None
            return True

    def notify(self, signal: str) -> None:
        """Call the subscribers that want this signal: ``""``, or a name in the form of ``_signal``."""
        for notify, names, _ in tuple(self._subscribers.values()):
            if signal == "" or names is None:
                notify("")
                continue
            for name in names():
                if self._signal(name) == signal:
                    notify(name)

    def _signal(self, name: str) -> str:
        """The form in which notifications carry a name."""
        return name

    def close(self) -> None:
        with self._guard:
            thread, self._thread = self._thread, None
            self._subscribers.clear()
            self._closing.set()
        if thread is not None and self._owner == os.getpid() and thread is not threading.current_thread():
            self._wake()
            thread.join(timeout=CLOSE_WITHIN)

    @abc.abstractmethod
    def _wake(self) -> None:
        """Interrupt the wait of ``_listen`` after ``closing`` was set."""

    @abc.abstractmethod
    def _listen(self, closing: threading.Event) -> None:
        """Receive and pass on notifications until ``closing`` is set or ``_is_unused``; runs in the thread."""

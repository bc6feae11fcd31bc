"""One thread a store that hears of changes and tells whoever asked to be told.

It lives while somebody listens, and a little longer. What it says is a hint: everybody who listens looks by himself
as well. A hint is about everything (the empty string) or about one name, and a listener is told of names that it has
asked for; others are not even passed on.
"""

from __future__ import annotations

import abc
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable

# Waiting for one result after another must not mean one connection after another.
LINGER = 5.0
# It may be asking a server that does not answer: it is a daemon, and nobody has to wait for that.
CLOSE_WITHIN = 0.5


Names = Callable[[], Iterable[str]]


class Listener(abc.ABC):
    def __init__(self) -> None:
        self._heard: dict[int, tuple[Callable[[str], None], Names | None]] = {}
        self._numbers = itertools.count()
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._owner = os.getpid()
        self._left = 0.0

    def add(self, heard: Callable[[str], None], names: Names | None = None) -> Callable[[], None]:
        """Begin to tell ``heard``, which must be quick and may be called from the ear's thread; answers how to stop.
        ``names`` says what it wants to be told of at that moment; without it, it is told of everything, as ``""``."""
        with self._guard:
            if self._owner != os.getpid():  # in a forked child: neither the thread nor those who listened are here
                self._heard, self._thread, self._owner = {}, None, os.getpid()
            number = next(self._numbers)
            self._heard[number] = (heard, names)
            if self._thread is None or not self._thread.is_alive():
                self._closing = threading.Event()
                self._thread = threading.Thread(
                    target=self._listen, args=(self._closing,), name="holdfast-ear", daemon=True
                )
                self._thread.start()

        def stop() -> None:
            with self._guard:
                self._heard.pop(number, None)
                self._left = time.monotonic()

        return stop

    def _unheard(self) -> bool:
        """Nobody has listened for a while: whoever comes next will start another thread. To be asked now and then."""
        with self._guard:
            if self._heard or time.monotonic() - self._left < LINGER:
                return False
            self._thread = None
            return True

    def tell(self, what: str) -> None:
        """Pass on what was said: nothing, or a name as ``_signal`` has it."""
        for heard, names in tuple(self._heard.values()):
            if what == "" or names is None:
                heard("")
                continue
            for name in names():
                if self._signal(name) == what:
                    heard(name)

    def _signal(self, name: str) -> str:
        """How a name is said."""
        return name

    def close(self) -> None:
        with self._guard:
            thread, self._thread = self._thread, None
            self._heard.clear()
            self._closing.set()
        if thread is not None and self._owner == os.getpid() and thread is not threading.current_thread():
            self._rouse()
            thread.join(timeout=CLOSE_WITHIN)

    @abc.abstractmethod
    def _rouse(self) -> None:
        """Cut short whatever ``_listen`` waits for: ``closing`` has been set."""

    @abc.abstractmethod
    def _listen(self, closing: threading.Event) -> None:
        """Hear and tell until ``closing`` is set or nobody listens; runs in the thread."""

"""A TCP proxy on loopback between a client and its PostgreSQL server, which can be told to lose things.

It knows just enough of the protocol to tell that the server has answered: a server that says it is ready for the next
query has finished, and committed, the last one.
"""

from __future__ import annotations

import re
import socket
import threading
from contextlib import suppress
from typing import Literal, Self
from urllib.parse import urlsplit, urlunsplit

READY = re.compile(rb"Z\x00\x00\x00\x05[ITE]\Z")
Fate = Literal["answer", "request", "silence"]


class Proxy:
    """``with Proxy(url) as proxy:`` connect to ``proxy.url``. Everything is forwarded until told otherwise."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._server = (parts.hostname, parts.port or 5432)
        self._listener = socket.create_server(("127.0.0.1", 0))
        user = f"{parts.username}:{parts.password}@" if parts.password else f"{parts.username}@"
        place = f"{user}127.0.0.1:{self._listener.getsockname()[1]}"
        self.url = urlunsplit(parts._replace(netloc=place))
        self.cuts = 0
        self.asked = 0
        """How many requests there were: also those by which a connection is opened, or closed."""
        self.lost = b""
        """The request that was cut last."""
        self._guard = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._doomed: list[tuple[bytes, Fate, bytes]] = []
        self._nth: tuple[int, Fate, float] | None = None
        self._open = threading.Event()
        self._open.set()
        self._closed = False

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed = True
        self._open.set()
        _close(self._listener)
        self.cut_all()

    # --- what can go wrong ---

    def cut(self, pattern: bytes, fate: Fate = "answer", times: int = 1, after: bytes = b"") -> None:
        """The next request that has ``pattern`` in it loses its connection: after the server has carried it out and
        before the client hears of it (``answer``), or before the server hears of it (``request``). ``after`` is what
        that connection has asked for before: a worker has others."""
        with self._guard:
            self._doomed += [(pattern, fate, after)] * times

    def cut_nth(self, number: int, fate: Fate, silence: float = 0.0) -> None:
        """The same for the request with that number from now on, whatever it asks for and whoever asks. With
        ``silence`` nobody is cut off: it is not answered, nor is any other, for so many seconds."""
        with self._guard:
            self._nth = (self.asked + number, fate, silence)

    def cut_none(self) -> None:
        """A request that was to be cut, and has not come, is none any more."""
        with self._guard:
            self._nth = None

    def cut_all(self) -> None:
        """Every connection there is, now."""
        with self._guard:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            _close(*pair)

    def blackhole(self) -> None:
        """Connections stay open, and nothing gets through any more."""
        self._open.clear()

    def restore(self) -> None:
        self._open.set()

    # --- forwarding ---

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._server, timeout=10)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            with self._guard:
                self._pairs.append((client, server))
            answers = _Answers()
            for pump in (self._requests, self._replies):
                threading.Thread(target=pump, args=(client, server, answers), name="proxy-pump", daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket, answers: _Answers) -> None:
        asked = b""
        with suppress(OSError):
            while data := client.recv(65536):
                self._open.wait()
                asked = asked[-65536:] + data
                fate = self._fate_of(data, asked)
                if fate == "request":
                    break
                if fate == "answer":
                    answers.withheld = True
                server.sendall(data)
        if not answers.withheld:
            _close(client, server)

    def _replies(self, client: socket.socket, server: socket.socket, answers: _Answers) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                self._open.wait()
                if not answers.withheld:
                    client.sendall(data)
                elif READY.search(data) or not answers.greeted:  # who has not come in yet is asked back and forth
                    break
                answers.greeted = answers.greeted or READY.search(data) is not None
        _close(client, server)

    def _fate_of(self, data: bytes, asked: bytes) -> Fate | None:
        with self._guard:
            self.asked += 1
            if self._nth is not None and self.asked == self._nth[0]:
                _, nth, silence = self._nth
                self.cuts += 1
                self.lost = data
                if nth != "silence":
                    return nth
                self.blackhole()
                threading.Timer(silence, self.restore).start()
            for index, (pattern, fate, after) in enumerate(self._doomed):
                if pattern in data and after in asked:
                    del self._doomed[index]
                    self.cuts += 1
                    return fate
        return None


class _Answers:
    """Of one connection."""

    greeted = False
    withheld = False


def _close(*sockets: socket.socket) -> None:
    for each in sockets:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()

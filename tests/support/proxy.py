"""A TCP proxy on loopback between a client and its PostgreSQL server, which loses requests or answers, or holds both.

It knows enough of the protocol to see that the server has answered: a server that reports it is ready for the next
query has finished, and committed, the last one.
"""

from __future__ import annotations

import re
import socket
import threading
from contextlib import suppress
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

from tests.support.http_server import Listener

READY = re.compile(rb"Z\x00\x00\x00\x05[ITE]\Z")
Fate = Literal["answer", "request", "silence"]
Cut = tuple[int, Fate]


class Proxy(Listener):
    """``with Proxy(url) as proxy:`` connect to ``proxy.url``. It forwards everything until a method below is called."""

    settings: dict[str, Any] = {}  # noqa: RUF012 - of a worker process that uses the proxy

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._server = (parts.hostname, parts.port or 5432)
        self.cuts = 0
        self.requests = 0
        """The number of requests, including those that open or close a connection."""
        self.lost = b""
        """The request that was cut last."""
        self._guard = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._doomed: list[tuple[bytes, Fate, bytes]] = []
        self._nth: tuple[int, Fate, float] | None = None
        self._open = threading.Event()
        self._open.set()
        super().__init__()
        user = f"{parts.username}:{parts.password}@" if parts.password else f"{parts.username}@"
        self.url = urlunsplit(parts._replace(netloc=f"{user}127.0.0.1:{self.port}"))

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self._open.set()
        self.cut_all()
        super().__exit__(*error)

    # --- faults ---

    def cut(self, pattern: bytes, fate: Fate = "answer", times: int = 1, after: bytes = b"") -> None:
        """Cut the connection of the next request that contains ``pattern``: after the server has executed it and before
        the client gets the answer (``answer``), or before the server gets it (``request``). The connection must have
        sent ``after`` before, which tells the connections of a worker apart."""
        with self._guard:
            self._doomed += [(pattern, fate, after)] * times

    def inject(self, fault: Cut, seconds: float = 0.0) -> None:
        """Cut the request with this number, counted from now over all connections. With the fate ``silence`` no
        connection is cut: neither this request nor any other is answered for ``seconds``."""
        with self._guard:
            self._nth = (self.requests + fault[0], fault[1], seconds)

    def clear(self) -> None:
        """Forget a pending fault of `inject`."""
        with self._guard:
            self._nth = None

    def cut_all(self) -> None:
        """Cut every open connection now."""
        with self._guard:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            _close(*pair)

    def blackhole(self) -> None:
        """Keep connections open, but forward nothing, not even their end: as with a hung server, a stopped pooler or a
        firewall that dropped its connections, there is no error, no end of file and no reset."""
        self._open.clear()

    def restore(self) -> None:
        self._open.set()

    # --- forwarding ---

    def serve(self, connection: socket.socket) -> None:
        server = socket.create_connection(self._server, timeout=10)
        server.settimeout(None)
        with self._guard:
            self._pairs.append((connection, server))
        answers = _Answers()
        self.start(self._requests, connection, server, answers)
        self._replies(connection, server, answers)

    def _requests(self, client: socket.socket, server: socket.socket, answers: _Answers) -> None:
        sent = b""
        with suppress(OSError):
            while data := client.recv(65536):
                self._open.wait()
                sent = sent[-65536:] + data
                fate = self._fate_of(data, sent)
                if fate == "request":
                    break
                if fate == "answer":
                    answers.withheld = True
                server.sendall(data)
        self._open.wait()
        if not answers.withheld:
            _close(client, server)

    def _replies(self, client: socket.socket, server: socket.socket, answers: _Answers) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                self._open.wait()
                if not answers.withheld:
                    client.sendall(data)
                elif READY.search(data) or not answers.greeted:  # a login takes several messages
                    break
                answers.greeted = answers.greeted or READY.search(data) is not None
        self._open.wait()
        _close(client, server)

    def _fate_of(self, data: bytes, sent: bytes) -> Fate | None:
        with self._guard:
            self.requests += 1
            if self._nth is not None and self.requests == self._nth[0]:
                _, nth, silence = self._nth
                self.cuts += 1
                self.lost = data
                if nth != "silence":
                    return nth
                self.blackhole()
                threading.Timer(silence, self.restore).start()
            for index, (pattern, fate, after) in enumerate(self._doomed):
                if pattern in data and after in sent:
                    del self._doomed[index]
                    self.cuts += 1
                    return fate
        return None


class _Answers:
    """State of one connection."""

    greeted = False
    withheld = False


def _close(*sockets: socket.socket) -> None:
    for end in sockets:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()

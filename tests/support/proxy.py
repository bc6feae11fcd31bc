"""TCP proxies on loopback between a client and its PostgreSQL server.

`Proxy` loses requests or answers; `Wire` holds everything. `Proxy` knows enough of the protocol to see that the server
has answered: a server that reports it is ready for the next query has finished, and committed, the last one.
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
    """``with Proxy(url) as proxy:`` connect to ``proxy.url``. It forwards everything until a method below is called."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._server = (parts.hostname, parts.port or 5432)
        self._listener = socket.create_server(("127.0.0.1", 0))
        user = f"{parts.username}:{parts.password}@" if parts.password else f"{parts.username}@"
        address = f"{user}127.0.0.1:{self._listener.getsockname()[1]}"
        self.url = urlunsplit(parts._replace(netloc=address))
        self.cuts = 0
        self.asked = 0
        """The number of requests, including those that open or close a connection."""
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

    # --- faults ---

    def cut(self, pattern: bytes, fate: Fate = "answer", times: int = 1, after: bytes = b"") -> None:
        """Cut the connection of the next request that contains ``pattern``: after the server has executed it and before
        the client gets the answer (``answer``), or before the server gets it (``request``). The connection must have
        sent ``after`` before, which tells the connections of a worker apart."""
        with self._guard:
            self._doomed += [(pattern, fate, after)] * times

    def cut_nth(self, number: int, fate: Fate, silence: float = 0.0) -> None:
        """Cut the request with this number, counted from now over all connections. With the fate ``silence`` no
        connection is cut: neither this request nor any other is answered for ``silence`` seconds."""
        with self._guard:
            self._nth = (self.asked + number, fate, silence)

    def cut_none(self) -> None:
        """Forget a pending `cut_nth`."""
        with self._guard:
            self._nth = None

    def cut_all(self) -> None:
        """Cut every open connection now."""
        with self._guard:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            _close(*pair)

    def blackhole(self) -> None:
        """Keep connections open, but forward nothing."""
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
        _close(client, server)

    def _fate_of(self, data: bytes, sent: bytes) -> Fate | None:
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
                if pattern in data and after in sent:
                    del self._doomed[index]
                    self.cuts += 1
                    return fate
        return None


class _Answers:
    """State of one connection."""

    greeted = False
    withheld = False


class Wire:
    """Forwards everything to `target`, except while it is held.

    While held, both ends stay connected and nothing gets through, as with a hung server, a stopped pooler or a
    firewall that dropped its connections: no error, no end of file, no reset.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._flowing = threading.Event()
        self._flowing.set()
        self._closed = False
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="wire", daemon=True).start()

    def url(self, url: str) -> str:
        """The same database, through this wire."""
        parts = urlsplit(url)
        account = parts.netloc.rpartition("@")[0]
        return parts._replace(netloc=f"{account}@127.0.0.1:{self.port}").geturl()

    def hold(self) -> None:
        """Stop forwarding in both directions, also on new connections."""
        self._flowing.clear()

    def flow(self) -> None:
        """Forward what was held, and continue."""
        self._flowing.set()

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        self._sockets.append(near)
        self._flowing.wait()
        try:
            far = socket.create_connection(self._target)
        except OSError:
            near.close()
            return
        self._sockets.append(far)
        if self._closed:  # closed meanwhile, so `close` did not see these
            _close(near, far)
            return
        threading.Thread(target=self._pump, args=(near, far), daemon=True).start()
        self._pump(far, near)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._flowing.wait()
                sink.sendall(data)
        self._flowing.wait()  # the end of the stream is held too
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closed = True
        self._flowing.set()
        _close(self._listener, *self._sockets)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def wire_to(url: str) -> Wire:
    """A wire to the server of this URL."""
    parts = urlsplit(url)
    return Wire((parts.hostname or "127.0.0.1", parts.port or 5432))


def _close(*sockets: socket.socket) -> None:
    for end in sockets:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()

"""A wire between a client and a server that can be held: both ends stay connected, and nothing flows any more.

That is how a client meets a hung server, a pooler that has stopped, or a firewall that has forgotten its connections:
no error, no end of file, no reset, only silence.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

CHUNK = 65_536


class Wire:
    """Listens on a port of loopback and hands everything on to `target`, while it flows."""

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
        """The same database, by way of this wire."""
        parts = urlsplit(url)
        account = parts.netloc.rpartition("@")[0]
        return parts._replace(netloc=f"{account}@127.0.0.1:{self.port}").geturl()

    def hold(self) -> None:
        """From now on nothing flows, either way, also on connections that are made later."""
        self._flowing.clear()

    def flow(self) -> None:
        """What was held goes on its way."""
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
        if self._closed:  # meanwhile: nobody will come by to close these
            near.close()
            far.close()
            return
        threading.Thread(target=self._pump, args=(near, far), daemon=True).start()
        self._pump(far, near)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                self._flowing.wait()
                sink.sendall(data)
        self._flowing.wait()  # not even the end comes through
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closed = True
        self._flowing.set()
        for each in (self._listener, *list(self._sockets)):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def wire_to(url: str) -> Wire:
    """A wire to the server of that URL."""
    parts = urlsplit(url)
    return Wire((parts.hostname or "127.0.0.1", parts.port or 5432))

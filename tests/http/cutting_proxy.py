"""A TCP proxy in front of a service that cuts connections where a test decides."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

PART = 1_024
"""Bytes of a response between two decisions: a slow service may send much at once."""

Fate = Callable[[bytes, bytes], bool]
"""Whether to cut a connection now, given its request and response so far."""


class Cutting:
    """``with Cutting(url, fate) as proxy``: connect to ``proxy.url``. The last ``part`` bytes before a cut are not
    passed on."""

    def __init__(self, url: str, fate: Fate, part: int = PART) -> None:
        parts = urlsplit(url)
        self._service = (str(parts.hostname), int(parts.port or 80))
        self._fate, self._part = fate, part
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}{parts.path}"
        self.cuts = 0
        self._over = False
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        with contextlib.suppress(OSError):
            socket.create_connection(self._listening.getsockname(), timeout=5).close()
        self._threads[0].join(5)  # it must not wait on a socket that is closed below
        self._listening.close()
        for connection in self._sockets:
            _end(connection)
        for thread in self._threads:
            thread.join(5)

    def _start(self, run: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=run, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._over:
            client, _ = self._listening.accept()
            service = socket.create_connection(self._service)
            self._sockets += [client, service]
            request = bytearray()
            self._start(self._forward, client, service, request)
            self._start(self._answer, service, client, request)

    def _forward(self, client: socket.socket, service: socket.socket, request: bytearray) -> None:
        with contextlib.suppress(OSError):
            while part := client.recv(65_536):
                request += part
                service.sendall(part)
        _end(service)

    def _answer(self, service: socket.socket, client: socket.socket, request: bytearray) -> None:
        response = bytearray()
        with contextlib.suppress(OSError):
            while part := service.recv(self._part):
                response += part
                if self._fate(bytes(request), bytes(response)):
                    self.cuts += 1
                    break
                client.sendall(part)
        _end(client)
        _end(service)


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()

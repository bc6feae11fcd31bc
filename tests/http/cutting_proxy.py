"""A TCP proxy in front of a service that cuts connections where a test decides."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

from tests.support.http_server import Listener

PART = 1_024
"""Bytes of a response between two decisions: a slow service may send much at once."""

Fate = Callable[[bytes, bytes], bool]
"""Whether to cut a connection now, given its request and response so far."""


class Cutting(Listener):
    """``with Cutting(url, fate) as proxy``: connect to ``proxy.url``. The last ``part`` bytes before a cut are not
    passed on."""

    def __init__(self, url: str, fate: Fate, part: int = PART) -> None:
        parts = urlsplit(url)
        self._service = (str(parts.hostname), int(parts.port or 80))
        self._fate, self._part = fate, part
        self.cuts = 0
        super().__init__()
        self.url += parts.path

    def serve(self, connection: socket.socket) -> None:
        request, response = bytearray(), bytearray()
        with socket.create_connection(self._service) as service:
            self.connections.append(service)
            self.start(self._forward, connection, service, request)
            with suppress(OSError):
                while part := service.recv(self._part):
                    response += part
                    if self._fate(bytes(request), bytes(response)):
                        self.cuts += 1
                        break
                    connection.sendall(part)
            connection.shutdown(socket.SHUT_RDWR)

    def _forward(self, client: socket.socket, service: socket.socket, request: bytearray) -> None:
        with suppress(OSError):
            while part := client.recv(65_536):
                request += part
                service.sendall(part)
        with suppress(OSError):
            service.shutdown(socket.SHUT_RDWR)

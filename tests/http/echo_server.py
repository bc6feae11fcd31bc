"""A server with persistent connections that answers every request with its path."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.http.scripted_server import request_on


class Echo:
    """``hold`` is called with the path before each response. ``connections`` has every accepted connection."""

    def __init__(self, hold: Callable[[str], None]) -> None:
        self._hold = hold
        self.connections: list[socket.socket] = []
        self._over = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while not self._over.is_set():
            connection, _ = self._listening.accept()
            self.connections.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            while request := request_on(connection):
                path = request.split(b" ")[1].decode()
                self._hold(path)
                body = json.dumps({"path": path}).encode()
                head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                connection.sendall(head.encode() + body)

    def close(self) -> None:
        self._over.set()
        socket.create_connection(self._listening.getsockname(), timeout=5).close()
        self._threads[0].join(5)
        self._listening.close()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)


@contextmanager
def echoing(hold: Callable[[str], None] = lambda _: None) -> Iterator[Echo]:
    server = Echo(hold)
    try:
        yield server
    finally:
        server.close()

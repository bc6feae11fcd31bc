"""HTTP servers on loopback: `Web` serves pages that a test defines, `serving` an ASGI application, and the
classes of `Listener` misbehave byte by byte."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self

import uvicorn

from tests.support.waiting import until

End = Literal["closed", "reset", "open"]
Turn = tuple[int | None, bytes, End]
"""The number of bytes of the request that a `Receiver` reads (None: all), its answer, and how it ends."""


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Page(BaseHTTPRequestHandler):
    server: Web
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.asked.append(Asked(self.command, self.path, headers, body))
        self.close_connection = True
        with suppress(OSError):  # the client has disconnected
            self.respond(body)

    def respond(self, body: bytes) -> None:
        page = self.server.pages.get(self.path.partition("?")[0])
        if page is None:
            self.answer(404, b"no such page")
        else:
            page(self)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_OPTIONS = do_CONNECT = _serve

    def answer(self, status: int = 200, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"content-length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Web(ThreadingHTTPServer):
    daemon_threads = True
    page: type[Page] = Page

    def __init__(self, host: str = "127.0.0.1") -> None:
        super().__init__((host, 0), self.page)
        self.pages: dict[str, Callable[[Page], None]] = {}
        self.asked: list[Asked] = []
        self.over = threading.Event()
        """Set at the end of the test: pages that never answer wait for it."""

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def says(self, path: str, status: int = 200, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.pages[path] = lambda page: page.answer(status, body, headers)

    def handle_error(self, request: object, client_address: object) -> None:
        """Some tests have clients that disconnect."""


@contextmanager
def running(tls: ssl.SSLContext | None = None, server: Web | None = None) -> Iterator[Web]:
    server = server or Web()
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def serving(service: Any, loop: Any = "auto") -> Iterator[str]:
    """Serve an ASGI application on a free port, in another thread; the server has stopped when the block ends."""
    config = uvicorn.Config(
        service, host="127.0.0.1", port=0, loop=loop, log_level="error", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        until(lambda: server.started, "the server listens")
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


class Listener:
    """A TCP server that calls ``serve`` in a thread for each connection. ``over`` is set when it closes."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.port: int = self._listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.over = threading.Event()
        self.connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.start(self._accept)

    def serve(self, connection: socket.socket) -> None:
        raise NotImplementedError

    def start(self, run: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=run, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self.over.is_set():
            self.connections.append(self._listening.accept()[0])
            self.start(self._serve, self.connections[-1])

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            if not self.over.is_set():
                self.serve(connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        with suppress(OSError):  # a connection ends the wait in accept()
            socket.create_connection(self._listening.getsockname(), timeout=5).close()
        self._threads[0].join(5)
        self._listening.close()
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)


class Receiver(Listener):
    """Serves each connection as ``turn`` specifies at that moment. ``asked`` has the bytes read of each request."""

    def __init__(self) -> None:
        self.turn: Turn | Callable[[bytes], Turn] = (None, b"", "closed")
        self.asked: list[bytes] = []
        super().__init__()

    def serve(self, connection: socket.socket) -> None:
        turn = self.turn
        self.asked.append(read_request(connection, None if callable(turn) else turn[0]))
        _, answer, end = turn(self.asked[-1]) if callable(turn) else turn
        connection.sendall(answer)
        if end == "open":
            self.over.wait(30)
        if end == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def read_request(connection: socket.socket, most: int | None = None) -> bytes:
    """At most ``most`` bytes, or one whole request by its Content-Length."""
    read = b""
    while most is None or len(read) < most:
        if most is None and (end := read.find(b"\r\n\r\n")) >= 0:
            head = read[:end].lower()
            _, _, length = head.partition(b"content-length: ")
            if len(read) >= end + 4 + int(length.partition(b"\r\n")[0] or 0):
                break
        piece = connection.recv(65536 if most is None else most - len(read))
        if not piece:
            break
        read += piece
    return read

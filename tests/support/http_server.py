"""HTTP servers on loopback: `Web` serves pages that a test defines, `Receiver` misbehaves byte by byte."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

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
        page = self.server.pages.get(self.path.partition("?")[0])
        try:
            if page is None:
                self.answer(404, b"no such page")
            else:
                page(self)
        except OSError:  # the client has disconnected
            pass

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

    def __init__(self, host: str = "127.0.0.1") -> None:
        super().__init__((host, 0), Page)
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
def running(tls: ssl.SSLContext | None = None) -> Iterator[Web]:
    server = Web()
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


class Receiver:
    """Serves each connection as ``turn`` specifies at that moment."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.turn: Turn | Callable[[bytes], Turn] = (None, b"", "closed")
        self.asked: list[bytes] = []
        """The bytes read of each request."""
        self.over = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="receiver", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _accept(self) -> None:
        while not self.over.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            if callable(self.turn):
                request = _read(connection, None)
                self.asked.append(request)
                _, answer, end = self.turn(request)
            else:
                most, answer, end = self.turn
                self.asked.append(_read(connection, most))
            connection.sendall(answer)
            if end == "open":
                self.over.wait(30)
            if end == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def close(self) -> None:
        self.over.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)


def _read(connection: socket.socket, most: int | None) -> bytes:
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


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()
    try:
        yield receiver
    finally:
        receiver.close()

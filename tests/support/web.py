"""A small web server on loopback whose pages do what a test says, badly if it wants."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


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
        except OSError:  # whoever asked has gone
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
        """Set when the test is over: what waits for ever waits for this."""

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def says(self, path: str, status: int = 200, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.pages[path] = lambda page: page.answer(status, body, headers)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that breaks off is what some tests are about."""


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

"""A server that follows a script byte by byte, for responses that no correct server sends."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Script = Callable[[socket.socket, bytes], None]


class Hostile:
    """Answers the n-th request with the n-th script, and further ones with the last. ``heard`` has the requests."""

    def __init__(self, *scripts: Script) -> None:
        self._scripts = scripts
        self.heard: list[bytes] = []
        self.over = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while not self.over.is_set():
            connection, _ = self._listening.accept()
            connection.settimeout(5)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            request = request_on(connection)
            if request and not self.over.is_set():
                self.heard.append(request)
                self._scripts[min(len(self.heard), len(self._scripts)) - 1](connection, request)

    def close(self) -> None:
        self.over.set()
        with contextlib.suppress(OSError):  # a connection ends the wait in accept()
            socket.create_connection(self._listening.getsockname(), timeout=5).close()
        self._threads[0].join(5)
        self._listening.close()
        for thread in self._threads:
            thread.join(5)


def request_on(connection: socket.socket) -> bytes:
    got = b""
    while b"\r\n\r\n" not in got:
        part = connection.recv(65_536)
        if not part:
            return got
        got += part
    head, _, body = got.partition(b"\r\n\r\n")
    length = next(
        (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-l")), 0
    )
    while len(body) < length:
        body += connection.recv(65_536)
    return head + b"\r\n\r\n" + body


def event(seq: int, end: str = "\n") -> str:
    """One ledger event as the event stream sends it."""
    facts = {"seq": seq, "job_id": "7", "tenant": "t", "kind": "ä", "type": "enqueue", "from_state": None}
    facts |= {"to_state": "queued", "attempt": 0, "at": "2027-01-31T09:00:00Z", "actor": "a", "meta": {}}
    lines = (f"id: {seq}", "event: job.enqueue", f"data: {json.dumps(facts, ensure_ascii=False)}", "", "")
    return end.join(lines)


def answers(status: int, body: bytes | str = b"", kind: str = "application/json", **headers: str) -> Script:
    """A complete response, after which the connection is closed."""
    text = body.encode() if isinstance(body, str) else body
    extra = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status} So\r\nContent-Type: {kind}\r\nContent-Length: {len(text)}\r\n"

    def script(connection: socket.socket, _: bytes) -> None:
        connection.sendall(f"{head}Connection: close\r\n{extra}\r\n".encode() + text)

    return script


def half(body: bytes) -> Script:
    """Sends half of the announced body."""

    def script(connection: socket.socket, _: bytes) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body) * 2}\r\n\r\n"
        connection.sendall(head.encode() + body)

    return script


def hangs_up(connection: socket.socket, _: bytes) -> None:
    """Sends no response."""


@contextmanager
def hostile(*scripts: Script) -> Iterator[Hostile]:
    server = Hostile(*scripts)
    try:
        yield server
    finally:
        server.close()

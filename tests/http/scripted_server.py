"""Servers that follow a script byte by byte, for responses that no correct server sends, and one that echoes paths."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable

from tests.support.http_server import Listener, read_request

Script = Callable[[socket.socket, bytes], None]


class Hostile(Listener):
    """Answers the n-th request with the n-th script, and further ones with the last. ``heard`` has the requests."""

    def __init__(self, *scripts: Script) -> None:
        self._scripts = scripts
        self.heard: list[bytes] = []
        super().__init__()

    def serve(self, connection: socket.socket) -> None:
        connection.settimeout(5)
        if request := read_request(connection):
            self.heard.append(request)
            self._scripts[min(len(self.heard), len(self._scripts)) - 1](connection, request)


class Echo(Listener):
    """Answers every request with its path, on persistent connections; ``hold`` is called with the path before."""

    def __init__(self, hold: Callable[[str], None] = lambda _: None) -> None:
        self._hold = hold
        super().__init__()

    def serve(self, connection: socket.socket) -> None:
        while request := read_request(connection):
            path = request.split(b" ")[1].decode()
            self._hold(path)
            body = json.dumps({"path": path}).encode()
            head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)


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

"""The latency of ``/livez`` while eight clients send the worst possible bodies, without credentials and with a token,
or read the paths that are given (``tests/faults/test_60_heavy_read.py`` fills a database for it).

The clients are a separate process (``python -m bench.hostile HOST PORT [TOKEN [PATH…]]``), which sends until it is
ended. The latencies are those of another client, with one request after another on one connection.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

CLIENTS = 8
OPEN = 64 * 1024
KEYS = b"{" + b",".join(b'"%x":1' % n for n in range(8_000)) + b"}"
NOBODY = "hfa_" + "0" * 32 + "_" + "a" * 43
JSON, FORM = "application/json", "application/x-www-form-urlencoded"


def _sent(path: str, body: bytes, kind: str = JSON, token: str = "") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nConnection: close\r\n"
    head += f"Authorization: Bearer {token}\r\n" if token else ""
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def without_credentials() -> list[bytes]:
    """Bodies that any client may send: at the limits of open paths, and above them."""
    many = b"{" + b",".join(b'"k%d":1' % n for n in range(560_000)) + b"}"
    return [
        _sent("/api/v1/decide/x", many),
        _sent(f"/api/v1/decide/{NOBODY}", KEYS[: OPEN - 1]),
        _sent(f"/decide/{NOBODY}", b"a=1&" * (OPEN // 4), FORM),
        _sent("/login", b"&" * OPEN, FORM),
        _sent("/login", b"token=" + b"%41" * (OPEN // 3 - 3), FORM),
        _sent("/api/v1/jobs", many),
        _sent("/login", b"x" * OPEN, FORM)[:-100],
        b"GET /livez HTTP/1.1\r\nHost: x\r\nA: " + b"x" * OPEN,
    ]


def with_a_token(token: str) -> list[bytes]:
    """Bodies at the limits of clients that may enqueue, and just above."""
    keys = b"{" + b",".join(b'"k%d":1' % n for n in range(49_000)) + b"}"
    bodies = [
        b'{"kind": "x", "payload": {"a": [' + b"[]," * 49_000 + b"1]}}",
        b'{"kind": "x", "payload": ' + keys + b"}",
        b'{"kind": "x", "payload": {"a": "' + b"\\u0041" * 1_300_000 + b'"}}',
        b"[" + b"1," * 4_000_000 + b"1]",
        b"[" * 8_000_000,
        b'{"jobs": [' + b",".join([b'{"kind": "x", "payload": {"a": 1}, "unknown": 1}'] * 1_000) + b"]}",
        b"[" + (b"9" * 4_299 + b",") * 1_800 + b"1]",
    ]
    return [_sent(f"/api/v1/jobs{more}", body, token=token) for body in bodies for more in ("", "/batch")]


def latencies(host: str, port: int, seconds: float) -> list[float]:
    """Return the milliseconds of each request, sorted."""
    found: list[float] = []
    with socket.create_connection((host, port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        until = time.perf_counter() + seconds
        while (began := time.perf_counter()) < until:
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = b""
            while not answer.endswith(b"ok\n"):
                piece = connection.recv(65_536)
                if not piece:
                    raise RuntimeError("the server hung up: the figure would mean nothing")
                answer += piece
            found.append((time.perf_counter() - began) * 1e3)
            time.sleep(0.005)
    return sorted(found)


def p99(found: list[float]) -> float:
    return found[int(len(found) * 0.99)]


def beside(host: str, port: int, seconds: float, token: str = "", paths: Sequence[str] = ()) -> float:
    """Return the p99 of ``/livez`` in milliseconds, while the clients send, or read the paths."""
    command = [sys.executable, "-m", "bench.hostile", host, str(port), token, *paths]
    clients = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert clients.stdout is not None
        clients.stdout.readline()
        return p99(latencies(host, port, seconds))
    finally:
        clients.kill()
        clients.wait(30)


def _attack(host: str, port: int, requests: list[bytes], first: int, begun: threading.Semaphore) -> None:
    for request in itertools.islice(itertools.cycle(requests), first, None):
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=15) as connection:
            with contextlib.suppress(OSError):
                connection.sendall(request)
            begun.release()
            while connection.recv(65_536):
                pass


def reads(paths: Sequence[str], token: str) -> list[bytes]:
    credentials = f"Authorization: Bearer {token}\r\n" if token else ""
    head = f"HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAccept-Encoding: gzip\r\n{credentials}\r\n"
    return [f"GET {path} {head}".encode() for path in paths]


def main(host: str, port: str, token: str = "", *paths: str) -> None:
    requests = reads(paths, token) if paths else with_a_token(token) if token else without_credentials()
    begun = threading.Semaphore(0)
    for first in range(CLIENTS):
        threading.Thread(target=_attack, args=(host, int(port), requests, first, begun), daemon=True).start()
    for _ in range(CLIENTS):
        begun.acquire()
    print("begun", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])

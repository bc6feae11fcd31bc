"""The HTTP service: viewers with the worst reads on both stores; on PostgreSQL one client that enqueues over HTTP,
compared with enqueue in process, and five hundred idle streams.

``holdfast serve`` runs as a separate process. The client is one keep-alive connection with a minimal HTTP
implementation. It alternates with the library in this process on one connection.
"""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from bench import hostile
from bench.bars import Bar
from bench.console import note
from bench.peers.backends import Backends
from bench.waiting import Beside
from holdfast import App

PLACE = "PostgreSQL"
PAYLOAD = {"to": "ada@example.com", "invoice": 7}
LARGE = {"customer": 7, "rows": [{"n": 7, "texts": ["row"] * 100}] * 1_600}  # 1 MB
LARGE_JOBS = 220
SEARCHES = ("/api/v1/jobs?limit=200&q=payload.customer:nope", "/jobs?q=payload.rows.7.n:8", "/api/v1/jobs?limit=200")
MEMORY = 300.0


@dataclass(frozen=True)
class Sizes:
    enqueues: int = 2_000
    rounds: int = 5
    streams: int = 500
    idle: float = 20.0


QUICK = Sizes(enqueues=500, rounds=3, idle=5.0)


@contextmanager
def _served(url: str) -> Iterator[tuple[subprocess.Popen[str], str, int]]:
    command = [sys.executable, "-m", "holdfast", "serve", "--url", url, "--port", "0", "--json"]
    process = subprocess.Popen([*command, "--log-level", "error"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = process.stdout.readline()
            if not line:
                raise RuntimeError("holdfast serve did not start")
            text += line
        address = urlsplit(json.loads(text)["address"])
        yield process, str(address.hostname), int(address.port or 0)
    finally:
        process.terminate()
        process.wait(30)


def _over_http(host: str, port: int, token: str, count: int) -> float:
    """Return the enqueues per second, one after another. The client is minimal, so that the service is measured."""
    body = json.dumps({"kind": "noop", "payload": PAYLOAD})
    head = f"POST /api/v1/jobs HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    request = (head + body).encode()
    with socket.create_connection((host, port), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        began = time.perf_counter()
        for _ in range(count):
            connection.sendall(request)
            answer = b""
            while not answer.endswith(b"}"):  # the end of the JSON document
                answer += connection.recv(65_536)
            if b" 201 " not in answer[:20]:
                raise RuntimeError(f"{answer[:20]!r}: the figure would mean nothing")
        return count / (time.perf_counter() - began)


def _in_process(app: App, count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        app.enqueue("noop", PAYLOAD)
    return count / (time.perf_counter() - began)


def _memory(pid: int, peak: bool = False) -> float:
    """Return the resident memory of a process in MiB, now or at most."""
    name = "VmHWM" if peak else "VmRSS"
    line = next(each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith(name))
    return int(line.split()[1]) / 1024


def _streams(host: str, port: int, token: str, pid: int, sizes: Sizes) -> Beside:
    """Return the memory with this many idle streams, at first and after a while."""
    ask = f"GET /api/v1/events/stream HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    with ExitStack() as stack:
        before = _memory(pid)
        for _ in range(sizes.streams):
            listener = stack.enter_context(socket.create_connection((host, port), timeout=30))
            listener.sendall(ask)
            if b" 200 " not in listener.recv(4096):
                raise RuntimeError("a stream was refused: the figure would mean nothing")
        come = _memory(pid)
        time.sleep(sizes.idle)
        after = _memory(pid)
    note(f"{sizes.streams} streams: {before:.0f} MiB before, {come:.0f} when they had come, {after:.0f} after a while")
    return Beside(PLACE, f"{sizes.streams} idle streams", "MiB", come, after, after / come)


def _hostile(host: str, port: int, token: str, seconds: float) -> list[Beside]:
    alone = hostile.p99(hostile.latencies(host, port, seconds))
    who = {"hostile bodies": "", "hostile bodies, token": token}
    times = {what: hostile.beside(host, port, seconds, token) for what, token in who.items()}
    return [Beside(PLACE, f"livez, {what}", "ms p99", alone, found, found / alone) for what, found in times.items()]


def _check_read(host: str, port: int, token: str, path: str) -> None:
    with socket.create_connection((host, port), timeout=60) as connection:
        connection.sendall(hostile.reads([path], token)[0])
        if b" 200 " not in (answer := connection.recv(4096))[:20]:
            raise RuntimeError(f"{path}: {answer[:20]!r}: the figure would mean nothing")


def reads(backends: Backends, store: str, sizes: Sizes) -> list[Bar]:
    """Return the p99 of ``/livez``, and the memory of the service, beside eight viewers of jobs with 1 MB each."""
    print("\nBeside viewers")
    found: list[Bar] = []
    for backend in ("postgres", "sqlite"):
        if store not in ("both", backend):
            continue
        with backends.fresh(backend, "sqlite:///" if backend == "sqlite" else "") as place:
            with closing(App(place.url, name="bench")) as app:
                app.migrate()
                token = app.tokens.issue("bench", roles=["viewer"]).text
                for _ in range(0, LARGE_JOBS, 20):
                    app.enqueue_many([app.prepare("later", LARGE, delay=9_000) for _ in range(20)])
                job = app.jobs.list(limit=1)[0].id
            with _served(place.url) as (process, host, port):
                paths = [*SEARCHES, f"/api/v1/jobs/{job}", f"/jobs/{job}"]
                for path in paths:
                    _check_read(host, port, token, path)
                p99 = hostile.beside(host, port, sizes.idle, token, paths)
                memory = _memory(process.pid, peak=True)
        note(f"{backend}: /livez p99 {p99:.1f} ms, at most {memory:.0f} MiB")
        found += [
            Bar(f"{backend}, livez beside eight viewers, p99", p99, 100.0, False, "ms"),
            Bar(f"{backend}, memory beside eight viewers", memory, MEMORY, False, "MiB"),
        ]
    return found


def run(backends: Backends, store: str, sizes: Sizes) -> list[Beside]:
    if store == "sqlite":
        return []
    print("\nOver HTTP")
    local: list[float] = []
    remote: list[float] = []
    with backends.fresh("postgres", "") as place, closing(App(place.url, name="bench")) as app:
        app.migrate()
        token = app.tokens.issue("bench", roles=["admin"]).text
        with _served(place.url) as (process, host, port):
            _over_http(host, port, token, 50)
            _in_process(app, 50)
            for turn in range(sizes.rounds):
                for over in (True, False) if turn % 2 else (False, True):
                    place.settle_down()
                    if over:
                        remote.append(_over_http(host, port, token, sizes.enqueues))
                    else:
                        local.append(_in_process(app, sizes.enqueues))
                note(f"round {turn + 1} in process {local[-1]:,.0f}  over HTTP {remote[-1]:,.0f}")
            here, there = statistics.median(local), statistics.median(remote)
            rows = [Beside(PLACE, "single enqueue over HTTP", "jobs/s", here, there, here / there)]
            rows.append(_streams(host, port, token, process.pid, sizes))
            rows += _hostile(host, port, token, sizes.idle)
    for row in rows:
        print(row.line(), flush=True)
    return rows

"""Probes and metrics of a worker process over HTTP (``--metrics-port``), and ``holdfast probe``, which requests them.

``/livez`` tells whether the process is stuck, ``/readyz`` whether it can claim jobs; ``/metrics`` is for Prometheus.
``POST /wake`` wakes a worker that sleeps (``--idle-after``). Liveness concerns this process only: neither a backlog nor
an unreachable database is a reason to restart it. The server runs in a separate thread, so it responds while a handler
blocks the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Annotated, Any

import typer

from holdfast.cli import options
from holdfast.cli.output import emit, say, write
from holdfast.config import METRICS_PORT_VARIABLE
from holdfast.engine.declared import Help
from holdfast.errors import InvalidSetting, StoreUnavailable
from holdfast.worker.idle import SleepingWorker
from holdfast.worker.worker import Worker

REQUEST_TIMEOUT = 5.0
"""Seconds without a byte of a request after which its connection is closed."""
MOST_CONNECTIONS = 32
STUCK_AFTER = 60.0
"""Seconds without a response of the event loop after which the process is not live."""


class WorkerProbe:
    """Liveness and readiness of the worker in this process. Until ``attach`` it is not ready."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: Worker | SleepingWorker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pinged_at: float | None = None

    def attach(self, worker: Worker | SleepingWorker) -> None:
        """Must be called on the event loop of the worker."""
        self._worker, self._loop = worker, asyncio.get_running_loop()

    def live(self) -> tuple[bool, str]:
        """Ping the event loop. The process is stuck if a ping has not been answered for a minute."""
        with self._lock:
            waiting = 0.0 if self._pinged_at is None else time.monotonic() - self._pinged_at
            if self._loop is not None and self._pinged_at is None:
                self._pinged_at = time.monotonic()
                with contextlib.suppress(RuntimeError):  # the loop is closed: the process is ending
                    self._loop.call_soon_threadsafe(self._pong)
        if waiting > STUCK_AFTER:
            return False, f"the event loop has not responded for {waiting:.0f} s"
        return True, "live"

    def ready(self) -> tuple[bool, str]:
        worker = self._worker
        if worker is None:
            return False, "starting"
        return worker.ready()

    def wake(self) -> bool:
        """Wake the worker if it sleeps; False if it never does."""
        if not isinstance(self._worker, SleepingWorker):
            return False
        self._worker.wake()
        return True

    def _pong(self) -> None:
        self._pinged_at = None


def serve_status(host: str, port: int, probe: WorkerProbe) -> ThreadingHTTPServer:
    """Serve ``/livez``, ``/readyz``, ``/metrics`` and ``POST /wake`` in a thread. Shut the returned server down."""
    metrics = _metrics()

    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_TIMEOUT

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path in ("/livez", "/readyz"):
                good, text = probe.live() if path == "/livez" else probe.ready()
                self._send(200 if good else 503, "text/plain; charset=utf-8", f"{text}\n".encode())
            elif path == "/metrics" and metrics is not None:
                kind, body = metrics()
                self._send(200, kind, body)
            elif path == "/metrics":
                self._send(501, "text/plain; charset=utf-8", b"Install holdfast[prometheus] for metrics.\n")
            else:
                self._send(404, "text/plain; charset=utf-8", b"Not found. Available: /livez, /readyz, /metrics.\n")

        do_HEAD = do_GET

        def do_POST(self) -> None:
            woken = self.path.partition("?")[0] == "/wake" and probe.wake()
            text = b"Awake.\n" if woken else b"Not found. A worker with --idle-after has /wake.\n"
            self._send(200 if woken else 404, "text/plain; charset=utf-8", text)

        def _send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Do not log: probes come every few seconds."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        allow_reuse_address = True
        request_queue_size = 128

        def __init__(self, address: tuple[str, int]) -> None:
            super().__init__(address, Handler)
            self._open: dict[socket.socket, None] = {}  # oldest first
            self._guard = threading.Lock()

        def process_request(self, request: Any, client_address: Any) -> None:
            """Close the oldest connection if there are too many: a probe is answered, whatever other clients hold."""
            with self._guard:
                self._open[request] = None
                oldest = next(iter(self._open)) if len(self._open) > MOST_CONNECTIONS else None
                if oldest is not None:
                    del self._open[oldest]
                    with contextlib.suppress(OSError):
                        oldest.shutdown(socket.SHUT_RDWR)  # its thread closes it
            super().process_request(request, client_address)

        def shutdown_request(self, request: Any) -> None:
            with self._guard:
                self._open.pop(request, None)
            super().shutdown_request(request)

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Ignore clients that disconnect early."""

    try:
        server = Server((host, port))
    except OSError as error:
        raise StoreUnavailable(
            f"Cannot serve metrics on {host}, port {port}: {error.strerror or error}",
            code="address_unusable",
            fix="Choose another address with --metrics-host and --metrics-port; port 0 chooses a free one.",
        ) from error
    threading.Thread(target=server.serve_forever, name="holdfast-status", daemon=True).start()
    return server


def _metrics() -> Callable[[], tuple[str, bytes]] | None:
    try:
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

        from holdfast.telemetry.prometheus import process_metrics
    except ModuleNotFoundError:
        return None
    registry = process_metrics().registry
    return lambda: (CONTENT_TYPE_LATEST, generate_latest(registry))


class ProbeKind(StrEnum):
    LIVE = "live"
    READY = "ready"


def probe(
    question: Annotated[ProbeKind, typer.Argument(metavar="live|ready", help="The probe.")] = ProbeKind.READY,
    port: Annotated[
        int | None, Help(f"Its --metrics-port (or {METRICS_PORT_VARIABLE}).", "PORT", low=1, high=65535)
    ] = None,
    host: Annotated[str, Help("Its --metrics-host.", "ADDRESS")] = options.LOOPBACK,
    processes: Annotated[int, Help("Number of processes, on consecutive ports.", "N", low=1, high=256)] = 1,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="Timeout for each response.")
    ] = 2.0,
    as_json: Annotated[bool, Help("Print JSON.", option="--json")] = False,
) -> None:
    """Check whether a worker or a service on this machine is live, or ready to work.

    Exits with 0 if it is, and with 1 if it is not or does not respond. It reads no database, so it fits a liveness
    probe.
    """
    first = port or _port_of_environment()
    responses = [(number, *_request(host, number, question, timeout)) for number in range(first, first + processes)]
    if as_json:
        emit([{"port": number, question.value: good, "says": text} for number, good, text in responses])
    else:
        for number, good, text in responses:
            (write if good else say)(f"{host}:{number} {text}")
    if not all(good for _, good, _ in responses):
        raise typer.Exit(1)


def _port_of_environment() -> int:
    text = os.environ.get(METRICS_PORT_VARIABLE, "")
    if not text.isdecimal():
        raise InvalidSetting(
            "No port given.",
            code="unknown_option",
            fix=f"Give --port, the --metrics-port of the worker, or {METRICS_PORT_VARIABLE}.",
        )
    return int(text)


def _request(host: str, port: int, question: ProbeKind, timeout: float) -> tuple[bool, str]:
    path = "livez" if question is ProbeKind.LIVE else "readyz"
    url = f"http://{host}:{port}/{path}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout) as response:
            return True, response.read(1000).decode(errors="replace").strip()
    except urllib.error.HTTPError as error:
        return False, error.read(1000).decode(errors="replace").strip()
    except OSError as error:
        return False, f"no response: {getattr(error, 'reason', error)}"

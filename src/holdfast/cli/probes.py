"""What a worker process answers about itself over HTTP (``--metrics-port``), and ``holdfast probe``, which asks it.

``/livez`` says that the process is not stuck, ``/readyz`` that it can take jobs, ``/metrics`` what it did. Liveness is
about this process alone: neither a backlog nor a database that cannot be reached is a reason to restart it. The server
has a thread of its own, so it answers while a handler blocks the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
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
from holdfast.errors import InvalidSetting, StoreUnavailable
from holdfast.worker.worker import Worker

STUCK = 60.0
"""Seconds without an answer of the event loop after which the process is not alive any more."""


class WorkerProbe:
    """Liveness and readiness of the worker in this process. It is starting until ``attach``."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._worker: Worker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked: float | None = None

    def attach(self, worker: Worker) -> None:
        """To be called on the loop of the worker."""
        self._worker, self._loop = worker, asyncio.get_running_loop()

    def live(self) -> tuple[bool, str]:
        """Each call asks the event loop for an answer. It is stuck if it owes one for a minute."""
        with self._guard:
            waiting = 0.0 if self._asked is None else time.monotonic() - self._asked
            if self._loop is not None and self._asked is None:
                self._asked = time.monotonic()
                with contextlib.suppress(RuntimeError):  # it is closed: the process is ending
                    self._loop.call_soon_threadsafe(self._answer)
        if waiting > STUCK:
            return False, f"the event loop has not answered for {waiting:.0f} s"
        return True, "live"

    def ready(self) -> tuple[bool, str]:
        worker = self._worker
        if worker is None:
            return False, "starting"
        return worker.ready()

    def _answer(self) -> None:
        self._asked = None


def serve_status(host: str, port: int, probe: WorkerProbe) -> ThreadingHTTPServer:
    """Answer ``/livez``, ``/readyz`` and ``/metrics`` on a thread. Returns the server, to be shut."""
    metrics = _metrics()

    class Handler(BaseHTTPRequestHandler):
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
                self._send(404, "text/plain; charset=utf-8", b"There are /livez, /readyz and /metrics.\n")

        do_HEAD = do_GET

        def _send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Probes come every few seconds: they are not logged."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        allow_reuse_address = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A caller that hangs up early is none of our business."""

    try:
        server = Server((host, port), Handler)
    except OSError as error:
        raise StoreUnavailable(
            f"Cannot serve metrics on {host}, port {port}: {error.strerror or error}",
            code="address_unusable",
            fix="Name another with --metrics-host and --metrics-port; port 0 takes any that is free.",
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


class Question(StrEnum):
    LIVE = "live"
    READY = "ready"


def probe(
    question: Annotated[Question, typer.Argument(metavar="live|ready", help="What to ask.")] = Question.READY,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", metavar="PORT", min=1, max=65535, help=f"Its --metrics-port (or {METRICS_PORT_VARIABLE})."
        ),
    ] = None,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Its --metrics-host.")] = options.LOOPBACK,
    processes: Annotated[
        int, typer.Option("--processes", metavar="N", min=1, max=256, help="Ask so many processes, on the next ports.")
    ] = 1,
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="For each answer.")] = 2.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Ask a worker or a service on this machine whether it is live, or ready to work.

    Exits with 0 if it is, with 1 if it is not or does not answer. It reads no database, so it fits a liveness probe.
    """
    first = port or _port_of_environment()
    answers = [(number, *_ask(host, number, question, timeout)) for number in range(first, first + processes)]
    if as_json:
        emit([{"port": number, question.value: good, "says": text} for number, good, text in answers])
    else:
        for number, good, text in answers:
            (write if good else say)(f"{host}:{number} {text}")
    if not all(good for _, good, _ in answers):
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


def _ask(host: str, port: int, question: Question, timeout: float) -> tuple[bool, str]:
    path = "livez" if question is Question.LIVE else "readyz"
    url = f"http://{host}:{port}/{path}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout) as answer:
            return True, answer.read(1000).decode(errors="replace").strip()
    except urllib.error.HTTPError as error:
        return False, error.read(1000).decode(errors="replace").strip()
    except OSError as error:
        return False, f"no answer: {getattr(error, 'reason', error)}"

"""``GET /metrics`` for Prometheus (extra ``prometheus``, scope ``read``), and gauges for OpenTelemetry."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

from fastapi import Request
from starlette.responses import Response

from holdfast.app import App
from holdfast.errors import HoldfastError
from holdfast.features.health.statistics import QueuePulse
from holdfast.features.tokens.model import Scope
from holdfast.server.auth import identity_of
from holdfast.server.json_body import Router
from holdfast.server.parameters import TheApp, allowed

log = logging.getLogger("holdfast.telemetry")

CACHE_SECONDS = 5.0
API = "opentelemetry.metrics"


def observe_queues(app: App) -> None:
    if API not in sys.modules:
        return
    from holdfast.telemetry import otel

    if otel.measures():
        otel.observe_queues(_QueueReader(app))


class _QueueReader:
    """Called in the exporter's thread, once for each of two gauges: one read serves both."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._read_at = 0.0
        self._queues: tuple[QueuePulse, ...] = ()

    def __call__(self) -> Iterable[tuple[str, int, float | None]]:
        with self._lock:
            if not self._read_at or time.monotonic() - self._read_at > CACHE_SECONDS:
                try:
                    client = self._app._session
                    self._queues = client.run(client.store.health.workers(client.scope)).queues
                except HoldfastError as error:
                    log.warning("Queues could not be read: %s", error.code)
                    self._queues = ()
                self._read_at = time.monotonic()
            return [(queue.queue, queue.waiting, queue.oldest_age_s) for queue in self._queues]


CONTENT = "text/plain; version=0.0.4; charset=utf-8"

probes = Router(tags=["metrics"])


@probes.get(
    "/metrics",
    dependencies=[allowed(Scope.READ)],
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}, "description": "Metrics in the text format of Prometheus."}},
    summary="Metrics for Prometheus",
)
async def metrics(request: Request, app: TheApp) -> Response:
    from holdfast.telemetry.prometheus import process_metrics

    state: Any = request.app.state
    own = process_metrics()  # raises an error that names the extra if it is missing
    from holdfast.server.exposition import Sources, exposition

    if not hasattr(state, "sources"):
        # From the first scrape on: a service without scrapes does not pay for metrics.
        state.sources = Sources(app)
        state.measures.append(own.request)
    identity = identity_of(request)
    # The metrics of this process name kinds and queues of every tenant.
    text = await exposition(state.sources, identity.tenant, own.registry if identity.operates_all else None)
    return Response(text, headers={"Content-Type": CONTENT, "Cache-Control": "no-store"})

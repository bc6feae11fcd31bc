"""How the queues stand, as OpenTelemetry's gauges, where the program has set up a provider of meters."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterable

from holdfast.app import App
from holdfast.errors import HoldfastError
from holdfast.features.health.statistics import QueuePulse

log = logging.getLogger("holdfast.telemetry")

KEPT = 5.0
API = "opentelemetry.metrics"


def observe_queues(app: App) -> None:
    if API not in sys.modules:
        return
    from holdfast.telemetry import otel

    if otel.measures():
        otel.observe_queues(_Reading(app))


class _Reading:
    """Asked in the exporter's own thread, for two gauges in turn: one look serves both."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._read = 0.0
        self._queues: tuple[QueuePulse, ...] = ()

    def __call__(self) -> Iterable[tuple[str, int, float | None]]:
        with self._lock:
            if not self._read or time.monotonic() - self._read > KEPT:
                try:
                    client = self._app.client
                    self._queues = client.run(client.verbs.standing(client.scope)).queues
                except HoldfastError as error:
                    log.warning("the queues could not be looked at: %s", error.code)
                    self._queues = ()
                self._read = time.monotonic()
            return [(each.queue, each.waiting, each.oldest_age_s) for each in self._queues]

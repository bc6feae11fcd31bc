"""``GET /metrics`` for Prometheus (extra ``prometheus``, scope ``read``), and gauges for OpenTelemetry.

Metrics of the database are read at most every few seconds, at a bounded cost. A request gets the figures of its tenant;
a request for every tenant (``*``) gets all. ``prometheus_client`` is imported by the first scrape only: the extra may
not be installed.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fastapi import Request
from starlette.responses import Response

from holdfast.app import App
from holdfast.app.internals import session_of
from holdfast.errors import HoldfastError, StoreError
from holdfast.features.health.model import CODES, Health
from holdfast.features.health.statistics import QueueStatus, Statistics
from holdfast.features.tokens.model import Scope
from holdfast.server.auth import identity_of
from holdfast.server.json_body import Router
from holdfast.server.parameters import TheApp, allowed

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import GaugeMetricFamily, Metric

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
        self._queues: tuple[QueueStatus, ...] = ()

    def __call__(self) -> Iterable[tuple[str, int, float | None]]:
        with self._lock:
            if not self._read_at or time.monotonic() - self._read_at > CACHE_SECONDS:
                try:
                    client = session_of(self._app)
                    self._queues = client.run(client.store.health.workers(client.scope)).queues
                except HoldfastError as error:
                    log.warning("Queues could not be read: %s", error.code)
                    self._queues = ()
                self._read_at = time.monotonic()
            return [(queue.queue, queue.waiting, queue.oldest_age_s) for queue in self._queues]


STATISTICS_TTL = 5.0
HEALTH_TTL = 15.0
MAX_TENANTS = 100
VERDICTS = {"ok": 0, "warn": 1, "critical": 2}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cached(Generic[T]):
    value: T
    at: float
    took: float


class Cache(Generic[T]):
    """The last read of each tenant. It is repeated when it is older than ``seconds``, by one request at a time."""

    def __init__(self, read: Callable[[str], Awaitable[T]], seconds: float) -> None:
        self._read, self._seconds = read, seconds
        self._cached: dict[str, Cached[T]] = {}
        self._lock = asyncio.Lock()

    async def of(self, tenant: str) -> Cached[T]:
        async with self._lock:
            cached = self._cached.pop(tenant, None)
            if cached is None or time.monotonic() - cached.at >= self._seconds:
                began = time.monotonic()
                value = await self._read(tenant)
                cached = Cached(value, time.monotonic(), time.monotonic() - began)
            while len(self._cached) >= MAX_TENANTS:
                self._cached.pop(next(iter(self._cached)))
            self._cached[tenant] = cached
            return cached


Figures = tuple[Cached[Statistics], Cached[Health]]


class Sources:
    def __init__(self, app: App) -> None:
        client = session_of(app)
        self.statistics: Cache[Statistics] = Cache(
            lambda tenant: client.arun(client.store.health.statistics(tenant)), STATISTICS_TTL
        )
        self.health: Cache[Health] = Cache(lambda tenant: app.health.aget(tenant=tenant), HEALTH_TTL)


def _families(figures: Figures | None) -> Iterator[Metric]:
    """One read as metric families. None: the database was unreachable."""
    yield _gauge("holdfast_up", "1 if the database is reachable.", float(figures is not None))
    if figures is not None:
        statistics, health = figures
        yield from _queue_metrics(statistics.value)
        yield from _other_metrics(statistics.value)
        yield from _health_metrics(health.value)
        yield _gauge("holdfast_statistics_seconds", "Time to read these figures.", statistics.took + health.took)


def _queue_metrics(statistics: Statistics) -> Iterator[Metric]:
    from holdfast.telemetry.prometheus import Bounded

    name = Bounded()
    jobs = _labelled("holdfast_jobs", "Unfinished jobs, counted up to 10,000 per queue.", "state", "queue")
    oldest = _labelled("holdfast_queue_oldest_seconds", "Wait of the oldest job that may start.", "queue")
    counts: dict[tuple[str, str], int] = {}
    ages: dict[str, float] = {}
    for row in statistics.queues:
        queue = name(row.queue)
        states = ("queued", row.waiting), ("scheduled", row.scheduled)
        for state, count in (*states, ("retry_waiting", row.retrying), ("in_progress", row.running)):
            counts[state, queue] = counts.get((state, queue), 0) + count  # several queues may share the label ``other``
        ages[queue] = max(ages.get(queue, 0.0), row.oldest_age_s or 0.0)
    for labels, count in counts.items():
        jobs.add_metric(list(labels), count)
    for queue, age in ages.items():
        oldest.add_metric([queue], age)
    yield jobs
    yield oldest


def _other_metrics(statistics: Statistics) -> Iterator[Metric]:
    slots = sum(worker.slots or 0 for worker in statistics.workers)
    yield _gauge("holdfast_workers", "Workers with a live lease.", len(statistics.workers))
    yield _gauge("holdfast_worker_slots", "Total concurrency of all workers.", slots)
    yield _gauge("holdfast_approvals_open", "Open approvals.", statistics.approvals_open)
    yield _gauge(
        "holdfast_approval_oldest_seconds", "Wait of the oldest open approval.", statistics.oldest_approval_age_s or 0.0
    )
    yield _gauge("holdfast_dead_letters_open", "Open dead letters.", statistics.dead_letters)
    yield _gauge("holdfast_schedules_late", "Schedules that are past their time.", statistics.schedules_late)
    yield _gauge("holdfast_schedules_late_seconds", "Delay of the latest schedule.", statistics.schedules_late_s)
    yield _gauge("holdfast_counts_capped", "1 if a count reached its limit.", float(statistics.capped))


def _health_metrics(health: Health) -> Iterator[Metric]:
    present = {reason.code for reason in health.reasons}
    yield _gauge(
        "holdfast_jobs_long_running",
        "Jobs that run much longer than usual, counted up to three per kind.",
        len(health.long_running),
    )
    yield _gauge(
        "holdfast_longest_run_seconds",
        "Run time of the longest of them.",
        max((job.seconds for job in health.long_running), default=0.0),
    )
    yield _gauge("holdfast_health", "Health: 0 ok, 1 warn, 2 critical.", VERDICTS[health.verdict])
    reasons = _labelled(
        "holdfast_health_reason", "1 for each reason of the verdict; its runbook goes by the code.", "code"
    )
    for code in CODES:
        reasons.add_metric([code], float(code in present))
    yield reasons


def _gauge(name: str, help: str, value: float) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(name, help, value=max(0.0, float(value)))


def _labelled(name: str, help: str, *labels: str) -> GaugeMetricFamily:
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(name, help, labels=labels)


async def exposition(sources: Sources, tenant: str, own: CollectorRegistry | None) -> bytes:
    """The response text. ``own`` are the metrics of this process, for operators of all tenants."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.registry import Collector

    class DatabaseMetrics(Collector):
        def collect(self) -> Iterator[Metric]:
            return _families(figures)

    figures: Figures | None
    try:
        figures = await sources.statistics.of(tenant), await sources.health.of(tenant)
    except StoreError:  # reported as holdfast_up 0
        figures = None
    registry = CollectorRegistry()
    registry.register(DatabaseMetrics())
    text = generate_latest(registry)
    return text if own is None else text + generate_latest(own)


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
    if not hasattr(state, "sources"):
        # From the first scrape on: a service without scrapes does not pay for metrics.
        state.sources = Sources(app)
        state.measures.append(own.request)
    identity = identity_of(request)
    # The metrics of this process name kinds and queues of every tenant.
    text = await exposition(state.sources, identity.tenant, own.registry if identity.operates_all else None)
    return Response(text, headers={"Content-Type": CONTENT, "Cache-Control": "no-store"})

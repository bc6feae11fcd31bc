"""Metrics for Prometheus that come from the database. They are read at most every few seconds, at a bounded cost.

A request gets the figures of its tenant; a request for every tenant (``*``) gets all. Imported by the first scrape
only: the extra ``prometheus`` may not be installed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.app import App
from holdfast.errors import StoreError
from holdfast.features.health.model import CODES, Health
from holdfast.features.health.statistics import Pulse
from holdfast.telemetry.prometheus import Bounded

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


class Sources:
    def __init__(self, app: App) -> None:
        client = app._session
        self.pulse: Cache[Pulse] = Cache(
            lambda tenant: client.arun(client.store.health.statistics(tenant)), STATISTICS_TTL
        )
        self.health: Cache[Health] = Cache(lambda tenant: app.health.aget(tenant=tenant), HEALTH_TTL)


class DatabaseMetrics(Collector):
    """One read as metric families. None: the database was unreachable."""

    def __init__(self, figures: tuple[Cached[Pulse], Cached[Health]] | None) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        yield _gauge("holdfast_up", "1 if the database is reachable.", float(self._figures is not None))
        if self._figures is not None:
            pulse, health = self._figures
            yield from _queue_metrics(pulse.value)
            yield from _other_metrics(pulse.value)
            yield from _health_metrics(health.value)
            yield _gauge("holdfast_pulse_seconds", "Time to read these figures.", pulse.took + health.took)


def _queue_metrics(pulse: Pulse) -> Iterator[Metric]:
    name = Bounded()
    jobs = GaugeMetricFamily(
        "holdfast_jobs", "Unfinished jobs, counted up to 10,000 per queue.", labels=["state", "queue"]
    )
    oldest = GaugeMetricFamily(
        "holdfast_queue_oldest_seconds", "Wait of the oldest job that may start.", labels=["queue"]
    )
    counts: dict[tuple[str, str], int] = {}
    ages: dict[str, float] = {}
    for row in pulse.queues:
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


def _other_metrics(pulse: Pulse) -> Iterator[Metric]:
    slots = sum(worker.slots or 0 for worker in pulse.workers)
    yield _gauge("holdfast_workers", "Workers with a live lease.", len(pulse.workers))
    yield _gauge("holdfast_worker_slots", "Total concurrency of all workers.", slots)
    yield _gauge("holdfast_approvals_open", "Open approvals.", pulse.approvals_open)
    yield _gauge(
        "holdfast_approval_oldest_seconds", "Wait of the oldest open approval.", pulse.oldest_approval_age_s or 0.0
    )
    yield _gauge("holdfast_dead_letters_open", "Open dead letters.", pulse.dead_letters)
    yield _gauge("holdfast_schedules_late", "Schedules that are past their time.", pulse.schedules_late)
    yield _gauge("holdfast_schedules_late_seconds", "Delay of the latest schedule.", pulse.schedules_late_s)
    yield _gauge("holdfast_counts_capped", "1 if a count reached its limit.", float(pulse.capped))


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
    reasons = GaugeMetricFamily(
        "holdfast_health_reason", "1 for each reason of the verdict; its runbook goes by the code.", labels=["code"]
    )
    for code in CODES:
        reasons.add_metric([code], float(code in present))
    yield reasons


def _gauge(name: str, help: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, help, value=max(0.0, float(value)))


async def exposition(sources: Sources, tenant: str, own: CollectorRegistry | None) -> bytes:
    """The response text. ``own`` are the metrics of this process, for operators of all tenants."""
    figures: tuple[Cached[Pulse], Cached[Health]] | None
    try:
        figures = await sources.pulse.of(tenant), await sources.health.of(tenant)
    except StoreError:  # reported as holdfast_up 0
        figures = None
    registry = CollectorRegistry()
    registry.register(DatabaseMetrics(figures))
    text = generate_latest(registry)
    return text if own is None else text + generate_latest(own)

"""What the database says, as metrics for Prometheus: read at most every few seconds, at a bounded cost.

A request sees the figures of its own tenant; one for every tenant (``*``) sees all. Imported by the first scrape only:
the extra ``prometheus`` may not be installed.
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

PULSE_KEPT = 5.0
HEALTH_KEPT = 15.0
MOST_TENANTS = 100
VERDICTS = {"ok": 0, "warn": 1, "critical": 2}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    value: T
    at: float
    took: float


class Kept(Generic[T]):
    """The last look of each tenant; looked again when it is older than ``seconds``, by one asker at a time."""

    def __init__(self, look: Callable[[str], Awaitable[T]], seconds: float) -> None:
        self._look, self._seconds = look, seconds
        self._found: dict[str, Found[T]] = {}
        self._turn = asyncio.Lock()

    async def of(self, tenant: str) -> Found[T]:
        async with self._turn:
            known = self._found.pop(tenant, None)
            if known is None or time.monotonic() - known.at >= self._seconds:
                began = time.monotonic()
                value = await self._look(tenant)
                known = Found(value, time.monotonic(), time.monotonic() - began)
            while len(self._found) >= MOST_TENANTS:
                self._found.pop(next(iter(self._found)))
            self._found[tenant] = known
            return known


class Looks:
    def __init__(self, app: App) -> None:
        client = app._session
        self.pulse: Kept[Pulse] = Kept(lambda tenant: client.arun(client.store.health.statistics(tenant)), PULSE_KEPT)
        self.health: Kept[Health] = Kept(lambda tenant: app.health.aget(tenant=tenant), HEALTH_KEPT)


class Snapshot(Collector):
    """One look as metric families; without one, the database could not be asked."""

    def __init__(self, found: tuple[Found[Pulse], Found[Health]] | None) -> None:
        self._found = found

    def collect(self) -> Iterator[Metric]:
        yield _gauge("holdfast_up", "1 if the database is reachable.", float(self._found is not None))
        if self._found is not None:
            pulse, health = self._found
            yield from _of_queues(pulse.value)
            yield from _of_the_rest(pulse.value)
            yield from _of_health(health.value)
            yield _gauge("holdfast_pulse_seconds", "Time to read these figures.", pulse.took + health.took)


def _of_queues(pulse: Pulse) -> Iterator[Metric]:
    name = Bounded()
    jobs = GaugeMetricFamily(
        "holdfast_jobs", "Unfinished jobs, counted up to 10,000 per queue.", labels=["state", "queue"]
    )
    oldest = GaugeMetricFamily(
        "holdfast_queue_oldest_seconds", "Wait of the oldest job that may start.", labels=["queue"]
    )
    counts: dict[tuple[str, str], int] = {}
    ages: dict[str, float] = {}
    for each in pulse.queues:
        queue = name(each.queue)
        states = ("queued", each.waiting), ("scheduled", each.scheduled)
        for state, count in (*states, ("retry_waiting", each.retrying), ("in_progress", each.running)):
            counts[state, queue] = counts.get((state, queue), 0) + count  # several may be the ``other``
        ages[queue] = max(ages.get(queue, 0.0), each.oldest_age_s or 0.0)
    for labels, count in counts.items():
        jobs.add_metric(list(labels), count)
    for queue, age in ages.items():
        oldest.add_metric([queue], age)
    yield jobs
    yield oldest


def _of_the_rest(pulse: Pulse) -> Iterator[Metric]:
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


def _of_health(health: Health) -> Iterator[Metric]:
    said = {reason.code for reason in health.reasons}
    yield _gauge("holdfast_health", "Health: 0 ok, 1 warn, 2 critical.", VERDICTS[health.verdict])
    reasons = GaugeMetricFamily(
        "holdfast_health_reason", "1 for each reason of the verdict; its runbook goes by the code.", labels=["code"]
    )
    for code in CODES:
        reasons.add_metric([code], float(code in said))
    yield reasons


def _gauge(name: str, says: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, says, value=max(0.0, float(value)))


async def exposition(looks: Looks, tenant: str, own: CollectorRegistry | None) -> bytes:
    """The text. What this process did itself (``own``) is for those who look after everybody's."""
    found: tuple[Found[Pulse], Found[Health]] | None
    try:
        found = await looks.pulse.of(tenant), await looks.health.of(tenant)
    except StoreError:  # that the database is away is what somebody wants to be told
        found = None
    registry = CollectorRegistry()
    registry.register(Snapshot(found))
    text = generate_latest(registry)
    return text if own is None else text + generate_latest(own)

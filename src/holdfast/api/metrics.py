"""What the database says, as metrics for Prometheus: read at most every few seconds, at a bounded cost.

Everything is of the tenant of whoever asks; those of every tenant (``*``) read the whole.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.app import App
from holdfast.domain.errors import StoreError
from holdfast.domain.pulse import Pulse
from holdfast.telemetry.prometheus import Bounded

KEPT = 5.0
MOST_TENANTS = 100


class Pulses:
    """The last look of each tenant; looked again when it is older than ``KEPT`` seconds, by one asker at a time."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._found: dict[str, tuple[float, Pulse, float]] = {}
        self._looking: dict[str, asyncio.Lock] = {}

    async def of(self, tenant: str) -> tuple[Pulse, float]:
        """It, and how many seconds it took."""
        async with self._looking.setdefault(tenant, asyncio.Lock()):
            known = self._found.get(tenant)
            if known is not None and time.monotonic() - known[0] < KEPT:
                return known[1], known[2]
            began = time.monotonic()
            pulse = await self._app.client.arun(self._app.client.verbs.pulse(tenant))
            if len(self._found) >= MOST_TENANTS:
                self._found.pop(next(iter(self._found)))
            self._found[tenant] = time.monotonic(), pulse, time.monotonic() - began
            return pulse, self._found[tenant][2]


class Snapshot(Collector):
    """One look as metric families. ``pulse`` is None when the database could not be asked."""

    def __init__(self, pulse: Pulse | None, took: float) -> None:
        self._pulse, self._took = pulse, took

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("holdfast_up", "Whether the database could be asked.")
        up.add_metric([], 0.0 if self._pulse is None else 1.0)
        yield up
        if self._pulse is not None:
            yield from self._families(self._pulse)

    def _families(self, pulse: Pulse) -> Iterator[Metric]:
        name = Bounded()
        jobs = GaugeMetricFamily(
            "holdfast_jobs", "Jobs that are not over, counted up to 10,000 a queue.", labels=["state", "queue"]
        )
        oldest = GaugeMetricFamily(
            "holdfast_queue_oldest_seconds", "How long the oldest job that may be begun has waited.", labels=["queue"]
        )
        for each in pulse.queues:
            queue = name(each.queue)
            counts = {
                "queued": each.waiting,
                "scheduled": each.scheduled,
                "retry_waiting": each.retrying,
                "in_progress": each.running,
            }
            for state, count in counts.items():
                jobs.add_metric([state, queue], count)
            oldest.add_metric([queue], max(0.0, each.oldest_age_s or 0.0))
        yield jobs
        yield oldest
        numbers = (
            ("holdfast_workers", "Workers with a live lease.", len(pulse.workers)),
            ("holdfast_gates_open", "Questions that wait for people.", pulse.gates_open),
            ("holdfast_gate_oldest_seconds", "How long the oldest of them waits.", pulse.oldest_gate_age_s or 0.0),
            ("holdfast_dead_letters_open", "Jobs that failed for good and wait for a decision.", pulse.dead_letters),
            ("holdfast_schedules_late", "Schedules whose time is past and that were not fired.", pulse.schedules_late),
            ("holdfast_schedules_late_seconds", "How late the latest of them is.", pulse.schedules_late_s),
            (
                "holdfast_worker_slots",
                "Jobs that all workers can run at a time.",
                sum(w.slots or 0 for w in pulse.workers),
            ),
            ("holdfast_pulse_seconds", "How long it took to read all this.", self._took),
            ("holdfast_pulse_capped", "1 if there is more of something than was counted.", float(pulse.capped)),
        )
        for label, help_, value in numbers:
            gauge = GaugeMetricFamily(label, help_)
            gauge.add_metric([], float(value))
            yield gauge


async def exposition(pulses: Pulses, tenant: str, own: CollectorRegistry | None) -> bytes:
    """The text. What this process did itself (``own``) is for those who look after everybody's."""
    pulse: Pulse | None
    try:
        pulse, took = await pulses.of(tenant)
    except StoreError:  # that the database is away is what somebody wants to be told
        pulse, took = None, 0.0
    registry = CollectorRegistry()
    registry.register(Snapshot(pulse, took))
    text = generate_latest(registry)
    return text if own is None else text + generate_latest(own)

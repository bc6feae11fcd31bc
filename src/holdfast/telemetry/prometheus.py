"""Prometheus metrics of this process: jobs that it enqueued and ran, and HTTP requests that it served.

Values are in base units. The number of label values is bounded: the first hundred kinds and queues have their own
label, the rest are ``other``. Needs the extra ``prometheus``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from holdfast.engine.job import Claim, JobSpec
from holdfast.engine.outcome import Outcome, Settled, outcome_label
from holdfast.engine.redaction import one_line
from holdfast.engine.trace import Trace
from holdfast.errors import needs_extra
from holdfast.telemetry import observers

with needs_extra("metrics for Prometheus", "prometheus"):
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

RUN = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200)
WAIT = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400)
ANSWER = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

MOST = 100
OTHER = "other"


class Bounded:
    """Limits the number of values of a label: later values become ``other``."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._seen: set[str] = set()

    def __call__(self, value: str) -> str:
        if value in self._seen:
            return value
        shown = one_line(value, 100)
        if shown not in self._seen and len(self._seen) >= self._most:
            return OTHER
        self._seen.add(shown)
        return shown


class ProcessMetrics:
    """A watcher that counts the jobs that this process enqueues and runs, and the observation of each attempt."""

    trace: Trace | None = None

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry(auto_describe=True)
        self._kind, self._queue = Bounded(), Bounded()
        self._run = Histogram(
            "holdfast_job_run_seconds", "Run time of attempts.", ["kind"], buckets=RUN, registry=registry
        )
        self._wait = Histogram(
            "holdfast_job_wait_seconds",
            "Time from enqueue to the first start, including a requested delay.",
            ["queue"],
            buckets=WAIT,
            registry=registry,
        )
        self._finished = Counter(
            "holdfast_jobs_finished", "Attempts that ended in this process.", ["kind", "outcome"], registry=registry
        )
        self._enqueued = Counter(
            "holdfast_jobs_enqueued", "Jobs enqueued by this process.", ["kind"], registry=registry
        )
        self._running = Gauge("holdfast_jobs_running", "Running attempts in this process.", registry=registry)
        self._requests = Histogram(
            "holdfast_http_request_seconds",
            "Duration of requests.",
            ["method", "route", "status"],
            buckets=ANSWER,
            registry=registry,
        )
        self._route = Bounded(300)

    def send(self, specs: Sequence[JobSpec], tenant: str) -> Sent:
        return Sent(self, specs)

    def run(self, claim: Claim) -> ProcessMetrics:
        if claim.attempt == 1:
            waited = (datetime.now(UTC) - claim.created_at).total_seconds()
            self._wait.labels(self._queue(claim.queue)).observe(max(0.0, waited))
        self._running.inc()
        return self

    def count_sent(self, specs: Sequence[JobSpec]) -> None:
        for spec in specs:
            self._enqueued.labels(self._kind(spec.kind)).inc()

    def over(self, claim: Claim, outcome: Outcome | Settled | None, seconds: float) -> None:
        kind = self._kind(claim.kind)
        self._running.dec()
        self._run.labels(kind).observe(seconds)
        self._finished.labels(kind, outcome_label(outcome)).inc()

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, self._route(route), str(status)).observe(seconds)


class Sent:
    trace: Trace | None = None

    def __init__(self, metrics: ProcessMetrics, specs: Sequence[JobSpec]) -> None:
        self._metrics, self._specs = metrics, specs

    def over(self, error: BaseException | None) -> None:
        if error is None:
            self._metrics.count_sent(self._specs)


_process: ProcessMetrics | None = None


def process_metrics() -> ProcessMetrics:
    """The metrics of this process. Counting starts with the first call."""
    global _process
    if _process is None:
        _process = ProcessMetrics()
        observers.watchers.append(_process)
    return _process

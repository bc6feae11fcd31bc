"""OpenTelemetry spans and metrics of jobs that are enqueued and run, by the semantic conventions for messaging.

It uses the API only; the SDK is the user's choice. It is imported after the program has imported the API, and active
after the program has set up a provider. Errors are redacted before they come here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import metrics, trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from holdfast.engine.job import Claim, JobSpec
from holdfast.engine.outcome import Crashed, Failed, Outcome, Settled, outcome_label
from holdfast.engine.redaction import one_line
from holdfast.engine.trace import Trace
from holdfast.errors import HoldfastError
from holdfast.telemetry import observers

SYSTEM = "holdfast"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30, 60, 300, 1800)

_current: tuple[object, object, Otel] | None = None


def watcher() -> Otel | None:
    """The watcher for the current providers; None until the program has set up one, as the API's own discard all
    data."""
    global _current
    tracers, meters = trace.get_tracer_provider(), metrics.get_meter_provider()
    if _current is not None and _current[0] is tracers and _current[1] is meters:
        return _current[2]
    if not _is_real(tracers) and not _is_real(meters):
        return None
    _current = tracers, meters, Otel()
    return _current[2]


def measures() -> bool:
    """Whether the program has set up a provider for metrics."""
    return _is_real(metrics.get_meter_provider())


def _is_real(provider: object) -> bool:
    return not type(provider).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics"))


class Otel:
    def __init__(self) -> None:
        self.tracer = trace.get_tracer("holdfast")
        meter = metrics.get_meter("holdfast")
        bounds: dict[str, Any] = {"explicit_bucket_boundaries_advisory": SECONDS}
        self.operation = meter.create_histogram(
            "messaging.client.operation.duration", "s", "Duration of enqueue operations.", **bounds
        )
        self.process = meter.create_histogram("messaging.process.duration", "s", "Duration of attempts.", **bounds)
        self.sent = meter.create_counter("messaging.client.sent.messages", "{message}", "Jobs that were enqueued.")
        self.consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Attempts that were started."
        )

    def send(self, specs: Sequence[JobSpec], tenant: str) -> Send | None:
        return Send(self, specs, tenant) if specs else None

    def run(self, claim: Claim) -> Run:
        return Run(self, claim)


def _common(operation: str, queue: str, kind: str) -> dict[str, Any]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": queue,
        "holdfast.job.kind": kind,
    }


class Send:
    """A producer span around the storing of one batch; its context is stored with the jobs."""

    def __init__(self, otel: Otel, specs: Sequence[JobSpec], tenant: str) -> None:
        self._otel, self._count, first = otel, len(specs), specs[0]
        queues, kinds = {spec.queue for spec in specs}, {spec.kind for spec in specs}
        self._attributes = _common("send", _only(queues), _only(kinds))
        more: dict[str, Any] = {"holdfast.tenant": tenant}
        if self._count == 1:
            more["messaging.message.id"] = first.id
            if first.correlation_id is not None:
                more["messaging.message.conversation_id"] = first.correlation_id
        else:
            more["messaging.batch.message_count"] = self._count
        self._began = time.perf_counter()
        current = observers.current_trace()
        self._span = otel.tracer.start_span(
            f"send {_only(queues)}",
            context=None if current is None else _parent(current),
            kind=SpanKind.PRODUCER,
            attributes=self._attributes | more,
        )
        self.trace = observers.of_span(self._span)

    def over(self, error: BaseException | None) -> None:
        attributes = dict(self._attributes)
        if error is not None:
            attributes["error.type"] = _type(error)
            self._span.set_attribute("error.type", attributes["error.type"])
            self._span.set_status(Status(StatusCode.ERROR, attributes["error.type"]))
        else:
            self._otel.sent.add(self._count, attributes)
        self._otel.operation.record(time.perf_counter() - self._began, attributes)
        self._span.end()


class Run:
    """A consumer span around one attempt, a child of the span that enqueued the job; it is current while the handler
    runs."""

    def __init__(self, otel: Otel, claim: Claim) -> None:
        self._otel = otel
        self._attributes = _common("process", claim.queue, claim.kind)
        more: dict[str, Any] = {
            "messaging.message.id": claim.id,
            "holdfast.job.attempt": claim.attempt,
            "holdfast.tenant": claim.tenant,
        }
        if claim.correlation_id is not None:
            more["messaging.message.conversation_id"] = claim.correlation_id
        if claim.workflow_id is not None:
            more["holdfast.workflow.id"] = claim.workflow_id
        # Not the context of the worker, which has nothing to do with the job. A trace that is derived from the job's id
        # is not a parent: no span of it was ever recorded.
        parent = contexts.Context() if (producer := Trace.of_tags(claim.tags)) is None else _parent(producer)
        self._span = otel.tracer.start_span(
            f"process {claim.queue}", context=parent, kind=SpanKind.CONSUMER, attributes=self._attributes | more
        )
        otel.consumed.add(1, self._attributes)
        self._token = contexts.attach(trace.set_span_in_context(self._span, parent))
        self.trace = observers.of_span(self._span)

    def over(self, claim: Claim, outcome: Outcome | Settled | None, seconds: float) -> None:
        contexts.detach(self._token)
        word = outcome_label(outcome)
        self._span.set_attribute("holdfast.job.outcome", word)
        attributes = dict(self._attributes)
        if isinstance(outcome, Failed | Crashed):
            attributes["error.type"] = code = one_line(outcome.code, 100)
            self._span.set_attribute("error.type", code)
            self._span.set_status(Status(StatusCode.ERROR, one_line(outcome.message)))
            exception = {"exception.type": code, "exception.message": outcome.message}
            if isinstance(outcome, Failed) and outcome.traceback is not None:
                exception["exception.stacktrace"] = outcome.traceback
            self._span.add_event("exception", exception)
        self._otel.process.record(seconds, attributes)
        self._span.end()


def observe_queues(read: Callable[[], Iterable[tuple[str, int, float | None]]]) -> None:
    """Gauges of each queue: the number of waiting jobs and the age of the oldest. ``read`` is called when metrics are
    collected."""
    meter = metrics.get_meter("holdfast")

    def depths(_: Any) -> list[metrics.Observation]:
        return [metrics.Observation(waiting, _queue(queue)) for queue, waiting, _ in read()]

    def ages(_: Any) -> list[metrics.Observation]:
        return [metrics.Observation(age or 0.0, _queue(queue)) for queue, _, age in read()]

    meter.create_observable_gauge("holdfast.queue.depth", [depths], "{job}", "Jobs that are ready to run.")
    meter.create_observable_gauge("holdfast.queue.oldest.age", [ages], "s", "Waiting time of the oldest ready job.")


def _queue(name: str) -> dict[str, str]:
    return {"messaging.system": SYSTEM, "messaging.destination.name": name}


def _parent(remote: Trace) -> contexts.Context:
    state = TraceState.from_header([remote.state]) if remote.state else None
    span = SpanContext(
        int(remote.trace_id, 16),
        int(remote.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(remote.flags),
        trace_state=state,
    )
    return trace.set_span_in_context(NonRecordingSpan(span))


def _only(names: set[str]) -> str:
    """The one name of a batch, or ``several``."""
    return next(iter(names)) if len(names) == 1 else "several"


def _type(error: BaseException) -> str:
    return error.code if isinstance(error, HoldfastError) else type(error).__name__

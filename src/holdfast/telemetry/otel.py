"""OpenTelemetry spans and metrics of jobs that are enqueued and run, by the semantic conventions for messaging.

It uses the API only; the SDK is the user's choice. It is imported after the program has imported the API, and active
after the program has set up a provider. Errors are redacted before they come here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from opentelemetry import context as contexts
from opentelemetry import metrics, trace
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
)

from holdfast.engine.job import Claim, JobSpec
from holdfast.engine.outcome import Cancel, Crashed, Failed, Outcome, Reject, Settled, Snooze, outcome_label
from holdfast.engine.redaction import Redact, one_line
from holdfast.engine.steps import Step
from holdfast.engine.trace import Trace
from holdfast.errors import HoldfastError
from holdfast.telemetry import observers
from holdfast.telemetry.tracebacks import message_of, traceback_of, type_name

SYSTEM = "holdfast"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30, 60, 300, 1800)

_JOB: Final = contexts.create_key("holdfast-job")
"""What the spans of attempts and waits are children of."""
_WAITS: Final = {"sleep": "sleep", "event": "wait for", "approval": "approval"}

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
        self.requests = meter.create_histogram(
            "gen_ai.client.operation.duration", "s", "Duration of model requests.", **bounds
        )
        self.tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            "{token}",
            "Tokens of model requests.",
            explicit_bucket_boundaries_advisory=[4**power for power in range(14)],
        )

    def send(self, specs: Sequence[JobSpec], tenant: str) -> Send | None:
        return Send(self, specs, tenant) if specs else None

    def run(self, claim: Claim, earlier: Trace | None) -> Run:
        return Run(self, claim, earlier)

    def step(
        self, claim: Claim, n: int, name: str, tries: int, redact: Redact, call: observers.Call | None
    ) -> StepSpan:
        return StepSpan(self, _durable(claim, n, name, "step") | {"holdfast.step.try": tries}, redact, call)

    def answered(self, call: observers.Call, attributes: Mapping[str, Any]) -> None:
        trace.get_current_span().set_attributes(dict(attributes))
        for direction in ("input", "output"):
            if count := attributes.get(f"gen_ai.usage.{direction}_tokens"):
                self.tokens.record(count, _low(call) | {"gen_ai.token.type": direction})

    def waited(self, claim: Claim, step: Step) -> None:
        """A span for a wait that is over, by the database's clock, beside those of the attempts."""
        attributes = _durable(claim, step.n, step.name, step.kind)
        if step.kind == "event":
            attributes["holdfast.wait.timed_out"] = not step.over or step.error is not None
        elif step.kind == "approval" and isinstance(step.value, dict):
            attributes["holdfast.approval.id"] = step.value["approval_id"]
            attributes["holdfast.approval.state"] = step.value["state"]
        producer: Any = contexts.get_value(_JOB)
        span = self.tracer.start_span(
            f"{_WAITS[step.kind]} {one_line(step.name, 100)}",
            context=producer,
            attributes=attributes,
            start_time=_nanoseconds(step.started_at),
        )
        span.end(_nanoseconds(step.ended_at or step.wake_at or step.now))


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
        with trace.use_span(self._span, end_on_exit=True):
            self._otel.operation.record(time.perf_counter() - self._began, attributes)


class Run:
    """A consumer span around one attempt, a child of the span that enqueued the job; it is current while the handler
    runs."""

    def __init__(self, otel: Otel, claim: Claim, earlier: Trace | None) -> None:
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
            f"process {claim.queue}",
            context=parent,
            kind=SpanKind.CONSUMER,
            attributes=self._attributes | more,
            links=[] if earlier is None else [Link(_context(earlier), {"holdfast.link": "earlier attempt"})],
        )
        root = trace.set_span_in_context(self._span, parent)
        beside = parent if producer is not None else root  # of the first attempt without a producer
        self._token = contexts.attach(contexts.set_value(_JOB, beside, root))
        otel.consumed.add(1, self._attributes)
        self.trace = observers.of_span(self._span)

    def over(self, claim: Claim, outcome: Outcome | Settled | None, seconds: float) -> None:
        word = outcome_label(outcome)
        self._span.set_attribute("holdfast.job.outcome", word)
        attributes = dict(self._attributes)
        if isinstance(outcome, Failed | Crashed):
            attributes["error.type"] = code = one_line(outcome.code, 100)
            _fail(self._span, code, outcome.message, outcome.traceback if isinstance(outcome, Failed) else None)
        self._otel.process.record(seconds, attributes)  # before it is detached: the span becomes an exemplar
        contexts.detach(self._token)
        self._span.end()


class StepSpan:
    """A span around one try of a step, a child of that of the attempt; it is current in the function."""

    def __init__(self, otel: Otel, attributes: dict[str, Any], redact: Redact, call: observers.Call | None) -> None:
        self._otel, self._redact, self._call = otel, redact, call
        title, kind = f"step {attributes['holdfast.step.name']}", SpanKind.INTERNAL
        if call is not None:
            title, attributes = call.name, attributes | dict(call.attributes)
            kind = SpanKind.CLIENT if call.remote else kind
        self._began = time.perf_counter()
        self._span = otel.tracer.start_span(one_line(title, 200), kind=kind, attributes=attributes)
        self._token = contexts.attach(trace.set_span_in_context(self._span))

    def over(self, error: BaseException | None) -> None:
        failed = {}
        if isinstance(error, Exception) and not isinstance(error, Cancel | Snooze):
            failed["error.type"] = code = _type(error)
            if getattr(self._redact, "restricted", False):
                _fail(self._span, code, "withheld", None)
            else:
                message, stack = self._redact(message_of(error)), traceback_of(error, self._redact)
                _fail(self._span, code, message, stack)
        if self._call is not None and self._call.remote:
            self._otel.requests.record(time.perf_counter() - self._began, _low(self._call) | failed)
        contexts.detach(self._token)
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


def _durable(claim: Claim, n: int, name: str, kind: str) -> dict[str, Any]:
    return {
        "messaging.message.id": claim.id,
        "holdfast.job.kind": claim.kind,
        "holdfast.job.attempt": claim.attempt,
        "holdfast.tenant": claim.tenant,
        "holdfast.step.name": one_line(name, 200),
        "holdfast.step.number": n,
        "holdfast.step.kind": kind,
    }


def _low(call: observers.Call) -> dict[str, Any]:
    """The attributes of a call that its metrics have: those with few values."""
    names = ("operation.name", "provider.name", "request.model")
    return {f"gen_ai.{n}": v for n in names if (v := call.attributes.get(f"gen_ai.{n}")) is not None}


def _fail(span: trace.Span, code: str, message: str, traceback: str | None) -> None:
    span.set_attribute("error.type", code)
    span.set_status(Status(StatusCode.ERROR, one_line(message)))
    exception = {"exception.type": code, "exception.message": message}
    if traceback is not None:
        exception["exception.stacktrace"] = traceback
    span.add_event("exception", exception)


def _nanoseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000) * 1_000


def _parent(remote: Trace) -> contexts.Context:
    return trace.set_span_in_context(NonRecordingSpan(_context(remote)))


def _context(remote: Trace) -> SpanContext:
    state = TraceState.from_header([remote.state]) if remote.state else None
    return SpanContext(
        int(remote.trace_id, 16),
        int(remote.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(remote.flags),
        trace_state=state,
    )


def _only(names: set[str]) -> str:
    """The one name of a batch, or ``several``."""
    return next(iter(names)) if len(names) == 1 else "several"


def _type(error: BaseException) -> str:
    return error.code if isinstance(error, HoldfastError | Reject) else type_name(error)

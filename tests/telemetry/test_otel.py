"""OpenTelemetry (JF-15): spans and metrics follow the messaging conventions; without an SDK nothing is recorded."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from holdfast import App, Context, Reject, SyncContext, outgoing_headers, trace_from
from holdfast.app.internals import session_of
from holdfast.server.app import make_service
from holdfast.server.auth import at_this_machine
from holdfast.telemetry import observers, otel
from tests.app.conftest import NewApp
from tests.support.workers import work_off

pytestmark = pytest.mark.req("JF-15")

CANARY = "canary-given-7f3a"
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Recorded:
    def __init__(self) -> None:
        self.spans, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.spans))
        self.meters = MeterProvider([self.reader])

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans.get_finished_spans() if span.name == name]

    def points(self) -> dict[str, list[Any]]:
        data: Any = self.reader.get_metrics_data()
        points: dict[str, list[Any]] = {}
        for resource in data.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    points[metric.name] = list(metric.data.data_points)
        return points


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorded]:
    """As if the program had set up an SDK. The API accepts one per process, so it is patched here."""
    recorder = Recorded()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: recorder.tracers)
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: recorder.meters)
    monkeypatch.setattr(trace, "get_tracer", recorder.tracers.get_tracer)
    monkeypatch.setattr(metrics, "get_meter", recorder.meters.get_meter)
    yield recorder
    recorder.meters.shutdown()
    recorder.tracers.shutdown()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_spans_link_enqueue_attempt_and_child_and_metrics_count_them(
    app: App, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers: list[dict[str, str]] = []

    @app.job(queue="mail")
    async def parent(ctx: Context) -> None:
        headers.append(outgoing_headers())
        await ctx.spawn(child)
        await asyncio.to_thread(lambda: headers.append(outgoing_headers()))

    @app.job(queue="mail")
    def child(ctx: SyncContext) -> None:
        headers.append(outgoing_headers())

    @app.job(queue="mail")
    def fails(ctx: SyncContext, password: str) -> None:
        raise Reject("no_good", f"cannot log in with {password}")

    with recorded.tracers.get_tracer("web").start_as_current_span("GET /orders") as request:
        job = parent.enqueue()
    with trace_from(PARENT):  # a header without a span
        bad = fails.enqueue(password=CANARY)
    app.enqueue_many(child.prepare() for _ in range(3))
    work_off(app, queues=("mail",))

    sent, batch = recorded.named("send mail"), None
    mine = next(span for span in sent if attributes(span).get("messaging.message.id") == job.id)
    assert (mine.kind, mine.parent and mine.parent.span_id) == (SpanKind.PRODUCER, request.get_span_context().span_id)
    assert attributes(mine) == {
        "messaging.system": "holdfast",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "mail",
        "messaging.message.id": job.id,
        "holdfast.job.kind": "parent",
        "holdfast.tenant": "default",
    }
    batch = next(span for span in sent if "messaging.batch.message_count" in attributes(span))
    assert attributes(batch)["messaging.batch.message_count"] == 3
    ran = {attributes(span)["messaging.message.id"]: span for span in recorded.named("process mail")}
    run = ran[job.id]
    assert mine.context is not None
    assert run.context is not None
    assert (run.kind, run.parent and run.parent.span_id) == (SpanKind.CONSUMER, mine.context.span_id)
    assert run.context.trace_id == request.get_span_context().trace_id
    assert (attributes(run)["holdfast.job.attempt"], attributes(run)["holdfast.job.outcome"]) == (1, "succeeded")
    # The attempt's span is current in the handler and in everything it calls.
    inside = f"00-{run.context.trace_id:032x}-{run.context.span_id:016x}-01"
    assert [each for each in headers if each == {"traceparent": inside}] == [{"traceparent": inside}] * 2
    spawned = next(span for span in sent if span.parent is not None and span.parent.span_id == run.context.span_id)
    assert attributes(spawned)["holdfast.job.kind"] == "child"
    assert len([span for span in ran.values() if span.context and span.context.trace_id == run.context.trace_id]) == 2

    failed = ran[bad.id]
    assert failed.context is not None
    assert f"{failed.context.trace_id:032x}" == PARENT[3:35]
    assert failed.status.status_code is StatusCode.ERROR
    assert attributes(failed)["error.type"] == "no_good"
    (event,) = failed.events
    assert dict(event.attributes or {})["exception.message"] == "cannot log in with [redacted]"
    assert CANARY not in repr([span.to_json() for span in recorded.spans.get_finished_spans()])

    points = recorded.points()
    assert sum(point.value for point in points["messaging.client.sent.messages"]) == 6
    assert sum(point.value for point in points["messaging.client.consumed.messages"]) == 6
    assert sum(point.count for point in points["messaging.process.duration"]) == 6
    assert sum(point.count for point in points["messaging.client.operation.duration"]) == 4
    (error,) = [point for point in points["messaging.process.duration"] if "error.type" in point.attributes]
    assert error.attributes["error.type"] == "no_good"


async def test_service_observes_its_queues(new_app: NewApp, recorded: Recorded) -> None:
    app = new_app()
    session_of(app).make_ready()
    await app.aenqueue("unknown", queue="mail")
    service = make_service(app, authenticate=at_this_machine(app), dashboard=False)
    async with service.router.lifespan_context(service):
        transport = httpx2.ASGITransport(service)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:1") as http:
            assert (await http.get("/livez")).status_code == 200
        points = await asyncio.to_thread(recorded.points)
    await app.aclose()
    (depth,), (age,) = points["holdfast.queue.depth"], points["holdfast.queue.oldest.age"]
    assert (depth.value, depth.attributes["messaging.destination.name"]) == (1, "mail")
    assert age.value >= 0


def test_failing_watcher_does_not_fail_a_job(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def send(self, specs: object, tenant: str) -> None:
            raise RuntimeError("sending")

        def run(self, claim: object) -> None:
            raise RuntimeError("running")

    monkeypatch.setattr(observers, "watchers", [Broken()])
    monkeypatch.setattr(observers, "_logged", set())

    @app.job()
    def fine() -> int:
        return 7

    handle = fine.enqueue()
    work_off(app)
    assert handle.result(timeout=5) == 7
    assert [record.name for record in caplog.records].count("holdfast.telemetry") == 1


@pytest.mark.slow
def test_nothing_is_recorded_without_an_sdk() -> None:
    assert otel.watcher() is None
    assert not otel.measures()
    text = (
        "import sys; sys.modules['opentelemetry'] = None\n"  # not installed
        "import holdfast\n"
        "from holdfast.telemetry import observers\n"
        "assert observers.nothing_to_observe() and not observers.active()\n"
        "with holdfast.trace_from('00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'):\n"
        "    assert not observers.nothing_to_observe() and holdfast.outgoing_headers()\n"
        "print('quiet')"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, env=dict(os.environ), check=False
    )
    assert done.stdout == "quiet\n", done.stderr

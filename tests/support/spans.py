"""OpenTelemetry as a program sets it up, with spans and metrics kept in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


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

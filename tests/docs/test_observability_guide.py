"""The OpenTelemetry part of the guide: its program exports spans and metrics, its collector configuration fits."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.docs.guide_blocks import block_with, blocks

pytestmark = pytest.mark.req("HF-21")

JOB = """
import asyncio, holdfast
app = holdfast.App("sqlite:///jobs.db")

@app.job
async def order(ctx: holdfast.Context) -> None:
    await ctx.step("charge", lambda: 1)

order.enqueue()
app.run_worker(burst=True)
tracers.shutdown()
metrics.get_meter_provider().shutdown()
"""


@contextmanager
def collector() -> Iterator[tuple[int, dict[str, list[bytes]]]]:
    """A receiver of OTLP over HTTP."""
    received: dict[str, list[bytes]] = {}

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            packed = self.headers.get("Content-Encoding") == "gzip"
            received.setdefault(self.path, []).append(gzip.decompress(body) if packed else body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port, received
        server.shutdown()


@pytest.mark.slow
def test_program_of_the_guide_exports_to_a_collector(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(block_with("observability", "OTLPSpanExporter") + JOB)
    with collector() as (port, received):
        given = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_SERVICE_NAME": "shop"}
        done = subprocess.run(
            [sys.executable, "jobs.py"], cwd=tmp_path, env=os.environ | given, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr
    traces = [ExportTraceServiceRequest.FromString(body) for body in received["/v1/traces"]]
    spans = [s for t in traces for r in t.resource_spans for scope in r.scope_spans for s in scope.spans]
    assert {span.name for span in spans} == {"send default", "process default", "step charge"}
    assert len({span.trace_id for span in spans}) == 1
    figures = [ExportMetricsServiceRequest.FromString(body) for body in received["/v1/metrics"]]
    names = {m.name for f in figures for r in f.resource_metrics for scope in r.scope_metrics for m in scope.metrics}
    assert {"messaging.process.duration", "messaging.client.sent.messages"} <= names


def test_collector_configuration_is_complete() -> None:
    (block,) = blocks("observability", "yaml")
    config = yaml.safe_load(block)
    assert config["receivers"]["otlp"]["protocols"]["http"]["endpoint"].endswith(":4318")
    for pipeline in config["service"]["pipelines"].values():
        for part, names in pipeline.items():
            assert names
            assert set(names) <= set(config[part])

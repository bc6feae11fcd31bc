"""A span per step, wait and approval (HF-21): the trace of a job that slept for days reads as one."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client.openmetrics.exposition import generate_latest

from holdfast import App, Context, Retry, SyncContext
from holdfast.app.internals import session_of
from holdfast.telemetry import observers
from holdfast.telemetry.prometheus import ProcessMetrics
from tests.support.spans import Recorded, attributes, recorded
from tests.support.workers import work_off

pytestmark = pytest.mark.req("HF-21")
__all__ = ["recorded"]

CANARY = "canary-given-7f3a"


def later(app: App, days: float) -> None:
    session_of(app).run(session_of(app).store.clock.set(timedelta(days=days), None))


def ids(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


def run_through(app: App, recorded: Recorded, *, sync: bool, producer: bool) -> tuple[str, list[ReadableSpan]]:
    """A job with two steps, of which one fails once, a sleep of three days, an event and an approval."""
    tries: list[int] = []

    def charge(password: str) -> str:
        tries.append(1)
        if len(tries) == 1:
            raise OSError(f"refused {password}")
        return "charged"

    async def order(ctx: Context, password: str) -> str:
        await ctx.step("reserve", lambda: "reserved")
        await ctx.sleep("3d", name="cool down")
        await ctx.wait_for_event("paid")
        await ctx.approval("ship", summary="Ship it?")
        return await ctx.step("charge", charge, password)

    def sync_order(ctx: SyncContext, password: str) -> str:
        ctx.step("reserve", lambda: "reserved")
        ctx.sleep("3d", name="cool down")
        ctx.wait_for_event("paid")
        ctx.approval("ship", summary="Ship it?")
        return ctx.step("charge", charge, password)

    kind: Any = app.job("order", queue="mail", retry=Retry())(sync_order if sync else order)
    if producer:
        job = kind.enqueue(password=CANARY)
    else:
        with observers.muted():
            job = kind.enqueue(password=CANARY)
    work_off(app, queues=("mail",))
    later(app, 3.1)
    work_off(app, queues=("mail",))
    app.send_event("paid")
    work_off(app, queues=("mail",))
    (approval,) = app.approvals.list()
    app.approvals.approve(approval.id, by="ada")
    work_off(app, queues=("mail",))
    later(app, 4)
    work_off(app, queues=("mail",))
    assert app.jobs.get(job.id).state == "succeeded"
    return job.id, list(recorded.spans.get_finished_spans())


@pytest.mark.parametrize(
    ("sync", "producer"),
    [(False, True), pytest.param(True, True, marks=pytest.mark.slow), (False, False)],
)
def test_a_job_that_waits_is_one_trace(app: App, recorded: Recorded, sync: bool, producer: bool) -> None:
    job_id, spans = run_through(app, recorded, sync=sync, producer=producer)
    mine = [span for span in spans if attributes(span).get("messaging.message.id") == job_id]
    assert len({ids(span)[0] for span in mine}) == 1

    # Each step and wait once, although the handler ran five times.
    names = sorted(span.name for span in mine if not span.name.startswith(("send", "process")))
    assert names == ["approval ship", "sleep cool down", "step charge", "step charge", "step reserve", "wait for paid"]
    by_name = {span.name: span for span in mine}
    asleep = by_name["sleep cool down"]
    assert 3 * 86400 - 5 < seconds(asleep) < 3.2 * 86400
    assert attributes(asleep)["holdfast.step.number"] == 2
    assert attributes(by_name["wait for paid"])["holdfast.wait.timed_out"] is False
    assert attributes(by_name["approval ship"])["holdfast.approval.state"] == "approved"

    # Attempts and waits are side by side; each attempt names the one before it.
    attempts = sorted(
        (s for s in mine if s.name == "process mail"), key=lambda s: attributes(s)["holdfast.job.attempt"]
    )
    assert len(attempts) == 5
    first = by_name["send mail"] if producer else attempts[0]
    for span in (*attempts[1:], asleep, by_name["wait for paid"], by_name["approval ship"]):
        assert span.parent is not None
        assert span.parent.span_id == ids(first)[1]
    assert attempts[0].links == ()
    for before, after in pairwise(attempts):
        (link,) = after.links
        assert (link.context.trace_id, link.context.span_id) == ids(before)

    # Steps belong to their attempt, and a failure says why, without secrets.
    failed, done = sorted((s for s in mine if s.name == "step charge"), key=lambda s: s.start_time or 0)
    assert [s.parent and s.parent.span_id for s in (failed, done)] == [ids(a)[1] for a in attempts[3:]]
    assert (failed.status.status_code, done.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    assert attributes(failed)["error.type"] == "OSError"
    assert dict(failed.events[0].attributes or {})["exception.message"] == "refused [redacted]"
    assert CANARY not in repr([span.to_json() for span in spans])


def test_steps_that_run_at_once_have_their_own_spans(app: App, recorded: Recorded) -> None:
    tracer = recorded.tracers.get_tracer("http")

    async def call(name: str) -> str:
        await asyncio.sleep(0)
        with tracer.start_as_current_span(f"GET {name}"):
            return name

    @app.job(queue="mail")
    async def both(ctx: Context) -> None:
        await ctx.gather(ctx.step("a", call, "a"), ctx.step("b", call, "b"))

    both.enqueue()
    work_off(app, queues=("mail",))
    for name in "ab":
        (step,), (inner,) = recorded.named(f"step {name}"), recorded.named(f"GET {name}")
        assert (inner.parent and inner.parent.span_id, step.kind) == (ids(step)[1], SpanKind.INTERNAL)


def test_metrics_have_exemplars(app: App, recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    prometheus = ProcessMetrics()
    monkeypatch.setattr(observers, "watchers", [prometheus])

    @app.job(queue="mail")
    def plain() -> None: ...

    plain.enqueue()
    work_off(app, queues=("mail",))
    (run,), points = recorded.named("process mail"), recorded.points()
    (send,) = recorded.named("send mail")
    for metric, span in (("messaging.process.duration", run), ("messaging.client.operation.duration", send)):
        ((exemplar,),) = [point.exemplars for point in points[metric]]
        assert (exemplar.trace_id, exemplar.span_id) == ids(span)
    trace_id, span_id = ids(run)
    text = generate_latest(prometheus.registry).decode()  # type: ignore[no-untyped-call]
    assert f'span_id="{span_id:016x}"' in text
    assert f'trace_id="{trace_id:032x}"' in text

"""W3C trace context: from enqueue to the handler, its children, its retries and the services it calls (JF-13)."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any

import pytest

import holdfast
from holdfast import App, Backoff, Context, Retry, SyncContext, Trace, current_trace, outgoing_headers, trace_from
from holdfast.engine.trace import is_trace_tag
from tests.app.conftest import NewApp
from tests.support.waiting import until
from tests.support.workers import work_off, working

pytestmark = pytest.mark.req("JF-13")

ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{ID}-00f067aa0ba902b7-01"
STATE = "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"
OTHER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"


class RecordingHandler(logging.Handler):
    def __init__(self, lines: list[logging.LogRecord]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record)


def test_only_well_formed_trace_headers_are_parsed() -> None:
    trace = Trace.parse(PARENT, STATE)
    assert trace == Trace(ID, "00f067aa0ba902b7", 1, STATE)
    assert trace.traceparent == PARENT
    assert trace.sampled
    assert Trace.of_tags(("a", *trace.tags(), "b")) == trace
    assert Trace.of_tags(("a", "trace:nonsense")) is None
    later = Trace.parse(f"cc-{ID}-00f067aa0ba902b7-09-what-the-future-is-like")  # an unknown version
    assert later == Trace(ID, "00f067aa0ba902b7", 1)
    wrong = [
        *("", "00", PARENT.upper(), PARENT[:-1], PARENT + "-more", PARENT + "x", "ff" + PARENT[2:], "0" * 55),
        *(PARENT.replace(ID, "0" * 32), PARENT.replace("00f067aa0ba902b7", "0" * 16), PARENT.replace("-", "_")),
        *(PARENT + "\r\nSet-Cookie: a=b", "００-" + PARENT[3:], "0" * 10_000_000, None, 7, b"00"),
    ]
    assert [text for text in wrong if Trace.parse(text) is not None] == []
    for state in ("", "a\nb", "x" * 513, "é=1", None, 7):
        trace = Trace.parse(PARENT, state)
        assert trace is not None
        assert trace.state is None


def test_trace_flows_from_enqueue_to_every_descendant(app: App, new_app: NewApp) -> None:
    seen: dict[str, list[Any]] = {}
    lines: list[logging.LogRecord] = []

    def note(ctx: Context | SyncContext) -> None:
        headers = outgoing_headers()
        seen.setdefault(ctx.kind, []).append((ctx.trace.traceparent, headers, ctx.tags))
        ctx.log.warning("noted")

    @app.job(tags=["mine"])
    def parent(ctx: SyncContext) -> None:
        note(ctx)
        ctx.spawn(child)
        child.enqueue()
        child.using(trace=OTHER).enqueue()  # an explicit other trace
        child.using(trace="nonsense").enqueue()  # is ignored
        app.templates.set("made", "child", {})
        app.templates.enqueue("made")
        flow = app.workflow("flow")
        first = flow.add(node)
        flow.add(node, after=first)
        flow.start()

    @app.job()
    def child(ctx: SyncContext) -> None:
        note(ctx)

    @app.job()
    async def node(ctx: Context) -> None:
        note(ctx)

    @app.job(retry=Retry(max_attempts=2, backoff=Backoff(base=0.0, jitter=False)), retry_as="new_job")
    async def again(ctx: Context) -> None:
        note(ctx)
        if len(seen["again"]) == 1:
            raise ConnectionError("busy")

    @app.on("job.succeed", kind="again", payload={})
    @app.job()
    async def follows(ctx: Context) -> None:
        note(ctx)

    @app.job()
    def plain(ctx: SyncContext) -> None:
        note(ctx)

    handler = RecordingHandler(lines)
    logging.getLogger("holdfast.job").addHandler(handler)
    producer = new_app()
    with working(app):
        until(lambda: len(app.subscriptions.list()) == 1, "the subscription is stored")
        with trace_from(PARENT, STATE) as trace:
            assert current_trace() == trace
            job, retried = (
                producer.enqueue("parent", tags=["mine"]),
                producer.enqueue(
                    "again", retry=Retry(max_attempts=2, backoff=Backoff(base=0.0, jitter=False)), retry_as="new_job"
                ),
            )
        assert current_trace() is None
        untraced = producer.enqueue("plain")
        untraced.wait(20)
        job.wait(20)
        until(lambda: sum(map(len, seen.values())) == 12, "all jobs have run")
    logging.getLogger("holdfast.job").removeHandler(handler)

    own = (PARENT, {"traceparent": PARENT, "tracestate": STATE}, ())
    assert seen["parent"] == [(*own[:2], ("mine",))]  # tags are unchanged
    assert sorted(seen["child"], key=str) == sorted([own, own, own, own, (OTHER, {"traceparent": OTHER}, ())], key=str)
    assert seen["node"] == [own, own]
    assert seen["again"] == [own, own]
    assert seen["follows"] == [own]
    own_trace = Trace.of_job(untraced.id, ())
    assert seen["plain"] == [(own_trace.traceparent, own_trace.headers(), ())]
    assert {record.__dict__.get("trace_id") for record in lines} == {ID, OTHER[3:35], own_trace.trace_id}
    assert job.get().trace == trace
    # Trace tags are not indexed, because no one searches for them.
    (stored,) = [tag for tag in job.get().tags if is_trace_tag(tag) and tag.startswith("trace:")]
    assert app.jobs.list(tag=stored) == []
    assert [each.id for each in app.jobs.list(tag="mine")] == [job.id]
    assert retried.get().retry_as == "new_job"


def test_batches_keep_their_own_trace(app: App) -> None:
    @app.job()
    def one(number: int) -> None: ...

    with trace_from(PARENT):
        traced = app.enqueue_many(one.prepare(number) for number in range(3))
    with trace_from(OTHER):
        others = app.enqueue_many(one.prepare(number) for number in range(3))
    bare = one.enqueue(7)
    assert {handle.get().trace for handle in traced} == {Trace.parse(PARENT)}
    assert {handle.get().trace for handle in others} == {Trace.parse(OTHER)}
    assert Trace.of_tags(bare.get().tags) is None
    assert bare.get().tags == ()
    with trace_from("00-broken"):
        assert Trace.of_tags(one.enqueue(8).get().tags) is None
    work_off(app)


@pytest.mark.slow
def test_optional_libraries_are_not_imported_early() -> None:
    text = (
        "import sys, holdfast;"
        "heavy = {'opentelemetry', 'prometheus_client', 'fastapi', 'starlette', 'httpx2', 'jinja2'};"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & heavy))"
    )
    assert subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout == "[]\n"
    assert holdfast.Trace is Trace


@pytest.mark.req("JF-19")
def test_job_without_a_producer_trace_derives_one_from_its_id(app: App) -> None:
    """The trace id is the same for the job, its log lines, its children and the services its handler calls."""
    seen: dict[str, Any] = {}

    @app.job
    def parent(ctx: SyncContext) -> None:
        seen["context"], seen["headers"] = ctx.trace, outgoing_headers()
        child.enqueue()

    @app.job
    async def child(ctx: Context) -> None:
        seen["child"] = ctx.trace

    handle = parent.enqueue()
    work_off(app)
    trace = handle.get().trace
    assert trace.trace_id == handle.id.replace("-", "")
    assert Trace.parse(trace.traceparent) == trace, "a valid traceparent"
    assert seen["context"] == trace
    assert seen["headers"] == {"traceparent": trace.traceparent}
    assert seen["child"] == trace
    assert current_trace() is None, "the trace ends with the handler"

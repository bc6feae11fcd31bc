"""Planning, starting and following workflows (DP-14, SC-17, DP-10)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest

from holdfast import App, Context, Retry, SyncContext, WorkflowStatus
from holdfast.app.internals import session_of
from holdfast.engine.states import State
from holdfast.errors import Conflict, HoldfastError, InvalidArguments, InvalidSetting, JobFailed, NotFound, WaitTimeout
from holdfast.features.workflows.run import WorkflowRun
from tests.support.workers import work_off

ONCE = Retry(max_attempts=1)
pytestmark = pytest.mark.req("DP-14")


class Press:
    """A few kinds and a record of what they did."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.done: list[str] = []
        self.broken: set[str] = set()

        @app.job(retry=ONCE)
        def fetch(page: int) -> int:
            self.did(f"fetch {page}")
            return page * 10

        @app.job(retry=ONCE)
        async def render(ctx: Context, title: str = "") -> str:
            results = await ctx.results()
            self.did(f"render {title}")
            return f"{title}:{sum(results.of(fetch))}"

        @app.job(retry=ONCE)
        def publish(ctx: SyncContext) -> dict[str, Any]:
            self.did("publish")
            return dict(ctx.results().succeeded)

        self.fetch, self.render, self.publish = fetch, render, publish

    def did(self, what: str) -> None:
        self.done.append(what)
        if what in self.broken:
            raise ValueError(what)


@pytest.fixture
def press(app: App) -> Press:
    return Press(app)


def names(app: App, run: WorkflowRun) -> dict[str, str]:
    return {node.label: node.status for node in app.workflows.graph(run.id).nodes}


def test_results_flow_to_later_jobs_by_name_and_by_kind(app: App, press: Press) -> None:
    wf = app.workflow("publish", key="monday")
    pages = [wf.add(press.fetch, n) for n in (1, 2, 3)]
    book = wf.add(press.render.prepare("book"), after=pages, name="book")
    leaf = wf.add(press.render, "leaf", after=pages[0])
    wf.add(press.publish, after=[book, leaf])
    run = wf.start()
    with pytest.raises(WaitTimeout):
        run.wait(timeout=0.01)
    work_off(app)
    assert run.wait(timeout=5).status is WorkflowStatus.SUCCEEDED
    assert run[book].result(timeout=5) == "book:60"
    assert run[leaf].result(timeout=5) == "leaf:10"
    graph = app.workflows.graph(run.id)
    assert [node.label for node in graph.nodes] == ["fetch", "fetch-2", "fetch-3", "book", "render", "publish"]
    last = app.jobs.get(graph.nodes[-1].job_id)
    assert last.correlation_id == last.workflow_id == run.id
    again = app.workflow("publish", key="monday")
    for n in (1, 2, 3):
        again.add(press.fetch, n)
    with pytest.raises(Conflict) as other:
        again.start()
    assert other.value.code == "idempotency_conflict"
    assert app.workflows.list(kind="publish", over=True)[0].id == run.id


@pytest.mark.req("SC-17")
def test_groups_sequences_and_included_workflows_run_in_order(app: App, press: Press) -> None:
    inner = app.workflow("images")
    first = inner.add(press.fetch, 1)
    inner.add(press.render, "thumb", after=first)
    wf = app.workflow("issue")
    start = wf.add(press.fetch, 0, name="start")
    group = wf.group("pages", *(press.fetch.prepare(n) for n in (7, 8)), after=start)
    line = wf.sequence(press.render.prepare("a"), press.render.prepare("b"), name="line", after=group)
    sub = wf.include(inner, after=start)
    twice = wf.include(inner, name="more", after=sub)
    wf.add(press.publish, after=[line, twice], name="end")
    run = wf.start()
    work_off(app)
    order = press.done.index
    assert order("fetch 0") < order("fetch 7") < order("render a") < order("render b") < order("publish")
    assert press.done.count("render thumb") == 2
    graph = app.workflows.graph(run.id)
    assert graph.parts() == dict.fromkeys(("pages", "line", "images", "more"), WorkflowStatus.SUCCEEDED)
    assert {node.label for node in graph.nodes if node.part == "images"} == {"images.fetch", "images.render"}
    by_id = {node.job_id: node.label for node in graph.nodes}
    edges = {(by_id[edge.parent], by_id[edge.child]) for edge in graph.edges}
    assert edges == {
        *(("start", "pages.fetch"), ("start", "pages.fetch-2"), ("start", "images.fetch")),
        *(("pages.fetch", "line.render"), ("pages.fetch-2", "line.render"), ("line.render", "line.render-2")),
        *(("images.fetch", "images.render"), ("images.render", "more.fetch"), ("more.fetch", "more.render")),
        *(("line.render-2", "end"), ("more.render", "end")),
    }


@pytest.mark.slow
@pytest.mark.req("SC-17")
def test_failure_policy_applies_by_edge_group_or_workflow(app: App, press: Press) -> None:
    press.broken = {"fetch 1", "render a"}
    wf = app.workflow("mixed")
    bad = wf.add(press.fetch, 1, name="bad")
    wf.add(press.publish, after=bad, on_failure="continue", name="anyway")
    wf.add(press.publish, after=bad, name="never")
    line = wf.sequence(press.render.prepare("a"), press.render.prepare("b"), name="line", on_failure="continue")
    wf.add(press.publish, after=line, on_failure="skip", name="after")
    run = wf.start()
    work_off(app)
    assert names(app, run) == {
        "bad": "dead",
        "anyway": "succeeded",
        "never": "skipped",
        "line.render": "dead",
        "line.render-2": "succeeded",
        "after": "succeeded",
    }
    graph = app.workflows.graph(run.id)
    assert (graph.workflow.status, graph.parts()) == (
        WorkflowStatus.PARTIALLY_FAILED,
        {"line": WorkflowStatus.PARTIALLY_FAILED},
    )
    press.broken = set()
    assert app.workflows.resume(run.id).jobs == 2
    work_off(app)
    assert run.wait(timeout=5).status is WorkflowStatus.SUCCEEDED
    with pytest.raises(Conflict) as nothing:
        app.workflows.resume(run.id)
    assert nothing.value.code == "nothing_to_resume"
    press.broken = {"fetch 2"}
    stopped = app.workflow("stopped", on_failure="stop")
    stopped.add(press.fetch.using(priority=5), 2, name="bad")
    stopped.add(press.fetch, 3, name="other")
    run = stopped.start()
    app.run_worker(burst=True, concurrency=1)
    assert names(app, run) == {"bad": "dead", "other": "skipped"}
    assert run.status() is WorkflowStatus.FAILED
    assert app.workflows.cancel(run.id, reason="no more").jobs == 1
    assert run.status() is WorkflowStatus.CANCELLED


def test_jobs_can_be_added_to_a_running_workflow(app: App, press: Press) -> None:
    @app.job(retry=ONCE)
    def split(ctx: SyncContext, count: int) -> int:
        more = ctx.workflow()
        pages = [more.add(press.fetch, n, name=f"page {n}") for n in range(count)]
        more.add("render", {"title": "all"}, after=[*pages, "first"], name="joined")
        more.start()
        return count

    wf = app.workflow("dynamic", correlation_id="c-9")
    first = wf.add(press.fetch, 5, name="first")
    wf.add(split, 3, after=first, name="split")
    run = wf.start()
    more = app.workflows.extend(run.id)
    more.add(press.publish, after="split", name="outside")
    more.start()
    work_off(app)
    assert run.wait(timeout=5).total == 7
    joined = next(node for node in app.workflows.graph(run.id).nodes if node.label == "joined")
    job = app.jobs.get(joined.job_id)
    assert (job.correlation_id, job.workflow_id) == ("c-9", run.id)
    result = session_of(app).run(session_of(app).store.jobs.result(joined.job_id, "default"))
    assert result is not None
    assert result.value == "all:80"
    with pytest.raises(Conflict) as over:
        more.start()
    assert over.value.code == "workflow_over"
    with pytest.raises(NotFound):
        app.workflows.extend(joined.job_id)


@pytest.mark.req("DP-10")
def test_workflow_started_by_a_job_is_its_child(app: App, press: Press) -> None:
    runs: list[WorkflowRun] = []

    @app.job()
    async def begin() -> None:
        wf = app.workflow("inner")
        wf.add(press.fetch, 1)
        runs.append(await wf.astart())

    parent = app.enqueue("begin", correlation_id="c-1")
    work_off(app)
    (run,) = runs
    workflow = asyncio.run(_followed(app, run))
    assert workflow.parent_id == parent.id
    job = app.jobs.get(app.workflows.graph(run.id).nodes[0].job_id)
    assert (job.parent_id, job.correlation_id, job.workflow_id) == (parent.id, "c-1", run.id)


async def _followed(app: App, run: WorkflowRun) -> Any:
    try:
        return await run.await_end(timeout=5)
    finally:
        await session_of(app).store.leave_loop()


@pytest.mark.req("JF-10")
def test_workflow_can_start_in_the_callers_transaction(app: App, press: Press) -> None:
    app.migrate()
    started: list[WorkflowRun] = []

    def start_and_fail() -> None:
        with session_of(app).store.transaction() as connection:
            wf = app.workflow("tx", connection=connection)
            wf.add(press.fetch, 1)
            started.append(wf.start())
            raise RuntimeError("never mind")

    with pytest.raises(RuntimeError):
        start_and_fail()
    with pytest.raises(NotFound):
        app.workflows.get(started[0].id)
    with session_of(app).store.transaction() as connection:
        wf = app.workflow("tx", connection=connection)
        a = wf.add(press.fetch, 1)
        wf.add(press.publish, after=a)
        started.append(wf.start())
    work_off(app)
    assert started[1].wait(timeout=5).succeeded == 2


def test_invalid_plans_are_refused(app: App, press: Press) -> None:
    wf = app.workflow("odd")
    a = wf.add(press.fetch, 1, name="a")
    b = wf.add(press.fetch, 2, name="b", after=a)
    a.wait_for(b)
    with pytest.raises(InvalidSetting, match="a -> b -> a") as cycle:
        wf.start()
    assert cycle.value.code == "workflow_cycle"
    group = app.workflow("g")
    part = group.group("p")
    part.add(press.fetch, 1, after=part)
    refusals: list[tuple[str, Any]] = [
        ("workflow_cycle", group.start),
        ("empty_workflow", app.workflow("empty").start),
        ("invalid_on_failure", lambda: app.workflow("x", on_failure="explode")),  # type: ignore[call-overload]
        ("unknown_option", lambda: app.workflow("x", colour="red")),  # type: ignore[call-overload]
        ("conflicting_options", lambda: wf.add(press.fetch.using(key="k"), 1)),
        ("conflicting_options", lambda: wf.add(press.fetch.using(tenant="acme"), 1)),
        ("duplicate_name", lambda: wf.add(press.fetch, 1, name="a")),
        ("duplicate_name", lambda: [wf.group("same"), wf.group("same")]),
        ("invalid_name", lambda: wf.group("a.b")),
        ("invalid_after", lambda: wf.add(press.fetch, 1, after=7)),
        ("invalid_mode", lambda: wf.group("m", mode="sideways")),  # type: ignore[arg-type]
        ("unknown_parent", lambda: _with_parent(app, press, "unknown").start()),
        ("invalid_arguments", lambda: wf.add(press.fetch, "x", "y")),
        ("no_workflow", lambda: _outside(app)),
        ("workflow_not_found", lambda: app.workflows.graph("0198b9c6-0000-7000-8000-000000000000")),
    ]
    for code, call in refusals:
        with pytest.raises(HoldfastError) as refused:
            call()
        assert refused.value.code == code
    assert app.workflows.list() == []


@pytest.mark.req("DP-22")
def test_what_is_added_by_mistake_is_named(app: App, press: Press) -> None:
    wf, other = app.workflow("one"), app.workflow("two")
    mine, theirs = wf.add(press.fetch, 1), other.add(press.fetch, 1)
    mistakes: list[tuple[str, str, Any]] = [
        ("invalid_call", "got a handle", lambda: wf.add(press.fetch.enqueue(1))),  # type: ignore[call-overload]
        ("invalid_call", "got dict", lambda: wf.add({"page": 1})),  # type: ignore[call-overload]
        ("invalid_call", "got a part of a workflow", lambda: wf.add(mine)),  # type: ignore[call-overload]
        ("invalid_name", "not the name of a kind", lambda: wf.add("<p>1</p>")),
        ("unknown_parent", "'fetch' belongs to workflow 'two', not to 'one'", lambda: wf.add(press.fetch, theirs)),
        ("unknown_parent", "'fetch' belongs", lambda: wf.add(press.publish, after=theirs)),
        ("unknown_parent", "'fetch' belongs", lambda: mine.wait_for(theirs)),
        ("unknown_parent", "group 'two' belongs to workflow 'two'", lambda: wf.add(press.publish, after=other)),
        ("invalid_call", "map expects a kind, got str", lambda: wf.map("fetch", [1])),  # type: ignore[call-overload]
        ("invalid_call", "is a job", lambda: app.workflow(press.fetch)),
        ("empty_workflow", "workflow 'none' has no jobs", app.workflow("none").start),
    ]
    for code, text, call in mistakes:
        with pytest.raises(InvalidSetting) as refused:
            call()
        assert (refused.value.code, text in refused.value.message, bool(refused.value.fix)) == (code, True, True)


def _with_parent(app: App, press: Press, name: str) -> Any:
    wf = app.workflow("x")
    wf.add(press.fetch, 1, after=name)
    return wf


def _outside(app: App) -> None:
    raised: list[HoldfastError] = []

    @app.job("alone", retry=ONCE)
    def alone(ctx: SyncContext) -> None:
        try:
            ctx.workflow()
        except HoldfastError as error:
            raised.append(error)

    alone.enqueue()
    work_off(app)
    raise raised[0]


def test_result_of_a_failed_parent_raises(app: App, press: Press) -> None:
    seen: dict[str, Any] = {}

    @app.job()
    def look(ctx: SyncContext) -> None:
        results = ctx.results()
        seen["states"], seen["good"], seen["names"] = results.states, results.succeeded, list(results)
        seen["one"] = results["good"]
        with pytest.raises(JobFailed):
            results["bad"]

    press.broken = {"fetch 1"}
    wf = app.workflow("look")
    parents = [wf.add(press.fetch, 1, name="bad"), wf.add(press.fetch, 2, name="good")]
    wf.add(look, after=parents, on_failure="continue")
    run = wf.start()
    work_off(app)
    assert seen == {
        "states": {"bad": State.DEAD_LETTER, "good": State.SUCCEEDED},
        "good": {"good": 20},
        "names": ["bad", "good"],
        "one": 20,
    }
    assert run.status() is WorkflowStatus.PARTIALLY_FAILED


@pytest.mark.req("DP-22")
def test_second_start_of_a_workflow_names_the_first_run(app: App, press: Press) -> None:
    wf = app.workflow("book")
    wf.add(press.fetch, 1)
    run = wf.start()

    async def again() -> None:
        await wf.astart()

    for start in (wf.start, lambda: asyncio.run(again())):
        with pytest.raises(Conflict) as refused:
            start()
        assert refused.value.code == "already_exists"
        assert refused.value.message == f"workflow 'book' was started already, as {run.id}"
        assert "app.workflow(…, key=…)" in str(refused.value.fix)
    assert [workflow.id for workflow in app.workflows.list()] == [run.id]

    keyed = app.workflow("book", key="volume-1")
    keyed.add(press.fetch, 1)
    assert keyed.start().id == keyed.start().id


@pytest.mark.req("DP-22")
def test_prepared_job_that_is_added_twice_is_refused_in_words(app: App, press: Press) -> None:
    page = press.fetch.prepare(1)
    wf = app.workflow("book")
    wf.add(page)
    wf.add(page)
    with pytest.raises(Conflict) as refused:
        wf.start()
    assert refused.value.code == "already_exists"
    assert refused.value.message == "workflow 'book' has a prepared job that was used before"
    assert "Add each prepared job once" in str(refused.value.fix)


@pytest.mark.req("DP-22", "JF-10")
def test_second_start_in_the_callers_transaction_is_refused_in_words(app: App, press: Press) -> None:
    app.migrate()

    def start_twice() -> None:
        with session_of(app).store.transaction() as connection:
            wf = app.workflow("tx", connection=connection)
            wf.add(press.fetch, 1)
            wf.start()
            wf.start()

    with pytest.raises(Conflict, match="workflow 'tx' was started already, as"):
        start_twice()
    assert app.workflows.list() == []


def test_chord_of_chains_takes_a_list_of_planned_jobs(app: App) -> None:
    @app.job()
    def fetch(url: str) -> str:
        return url * 2

    @app.job()
    def parse(html: str) -> int:
        return len(html)

    @app.job()
    def total(counts: list[int], extra: list[list[int]] = []) -> int:  # noqa: B006
        return sum(counts) + sum(map(sum, extra))

    flow = app.workflow("chord")
    counts = [flow.add(parse, flow.add(fetch, url)) for url in ("a", "bb", "ccc")]
    whole = flow.add(total, counts, extra=[(counts[0],), counts[1:]], name="whole")
    outer = app.workflow("outer")
    outer.include(flow, name="inner")
    run, again = flow.start(), outer.start()
    work_off(app)
    assert run[whole].result() == 24
    assert again["inner.whole"].result() == 24
    for mixed in ([counts[0], 7], {"count": counts[0]}):
        other = app.workflow("mixed")
        with pytest.raises(InvalidSetting, match="mixes") as refused:
            other.add(total, mixed)
        assert refused.value.code == "invalid_call"


@dataclass
class Page:
    title: str


def test_result_that_cannot_fit_is_refused_when_planning(app: App) -> None:
    @app.job()
    def text() -> str: ...  # type: ignore[empty-body]

    @app.job()
    def page() -> Page: ...  # type: ignore[empty-body]

    @app.job()
    def maybe() -> int | None: ...

    @app.job()
    def price() -> Decimal: ...  # type: ignore[empty-body]

    @app.job()
    def prices() -> list[Decimal]: ...  # type: ignore[empty-body]

    @app.job()
    def anything(): ...  # type: ignore[no-untyped-def]

    @app.job()
    def number(value: int) -> int: ...  # type: ignore[empty-body]

    @app.job()
    def ratio(value: float) -> float: ...  # type: ignore[empty-body]

    @app.job()
    def numbers(values: list[int]) -> None: ...

    @app.job()
    def when(at: datetime, row: dict[str, Any] | None = None) -> None: ...

    def plan(kind: Any, source: Any, **more: Any) -> None:
        flow: Any = app.workflow("types")
        made = [flow.add(each) for each in source] if isinstance(source, list) else flow.add(source)
        flow.add(kind, made, **{name: flow.add(each) for name, each in more.items()})

    for kind, source in ((number, maybe), (ratio, maybe), (number, anything), (numbers, anything), (when, text)):
        plan(kind, source)
    plan(when, text, row=page)
    plan(ratio, price)  # stored as text, and still a number
    plan(numbers, prices)
    plan(numbers, [price])
    plan(numbers, [maybe, anything])
    wrong: list[tuple[Any, Any, str]] = [
        (number, text, "value expects number, and the result of text is string"),
        (numbers, price, "values expects array, and the result of price is number or string"),
        (number, page, "value expects number, and the result of page is object"),
        (numbers, text, "values expects array, and the result of text is string"),
        (numbers, [maybe, text], "values expects array of number, and the result of maybe, text is array of string"),
        (number, [maybe], "value expects number, and the result of maybe is array"),
    ]
    for kind, source, words in wrong:
        with pytest.raises(InvalidArguments, match=words) as refused:
            plan(kind, source)
        assert refused.value.code == "result_mismatch"

"""Workflows that create jobs at run time, and callbacks when a workflow or one of its jobs has ended."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import pytest

from holdfast import App, Retry, WorkflowFailure
from holdfast.app.internals import session_of
from holdfast.errors import HoldfastError, InvalidSetting, NotFound
from holdfast.stores.vault import new_key
from tests.app.conftest import NewApp
from tests.support.direct_sql import open_by_hand
from tests.support.workers import work_off

pytestmark = pytest.mark.req("DP-14", "SC-17")


def test_map_creates_one_job_per_item_of_a_result(app: App) -> None:
    runs: list[int] = []

    @app.job()
    def pages(count: int) -> list[int]:
        return list(range(count))

    @app.job(queue="heavy", retry=Retry(max_attempts=2))
    def render(page: int) -> str:
        runs.append(page)
        return f"page {page}"

    @app.job()
    def bind(rendered: list[str], title: str = "") -> str:
        return f"{title}{rendered}"

    @app.job()
    def shout(text: str) -> str:
        return text.upper()

    def plan(count: int, key: str | None = None) -> tuple[Any, ...]:
        flow = app.workflow("book", key=key) if key else app.workflow("book")
        rendered = flow.map(render.using(priority=3), flow.add(pages, count), name="rendered")
        shouted = flow.map(shout, rendered)
        return flow, rendered, shouted, flow.add(bind, rendered, title="b: ", name="bound"), flow.add(bind, shouted)

    flow, rendered, _, bound, last = plan(3, "one")
    run = flow.start()
    work_off(app)
    assert run.wait(timeout=20).status == "succeeded"
    assert run[bound].result() == "b: ['page 0', 'page 1', 'page 2']"
    assert run[last].result() == "['PAGE 0', 'PAGE 1', 'PAGE 2']"
    assert sorted(runs) == [0, 1, 2], "each item is one job"
    assert [handle.result() for handle in run.members(rendered)] == ["page 0", "page 1", "page 2"]
    assert run[rendered].result() == 3
    graph = app.workflows.graph(run.id)
    (first,) = [node for node in graph.nodes if node.name == "rendered.1"]
    job = app.jobs.get(first.job_id)
    assert (job.queue, job.priority, job.max_attempts) == ("heavy", 3, 2), "mapped jobs have the options of the plan"
    assert graph.parts()["rendered"] == "succeeded"
    assert not plan(3, "one")[0].start().created, "the same plan under the same key is the same workflow"

    flow, _, _, bound, _ = plan(0)
    empty = flow.start()
    work_off(app)
    assert empty[bound].result() == "b: []"

    outer = app.workflow("outer")
    outer.include(plan(2)[0], name="inner")
    included = outer.start()
    work_off(app)
    assert included["inner.bound"].result() == "b: ['page 0', 'page 1']"


def test_invalid_map_items_are_refused(app: App) -> None:
    @app.job()
    def give(value: Any) -> Any:
        return value

    @app.job()
    def use(value: Any) -> Any:
        return value

    flow = app.workflow("w")
    for items in ("text", {"a": 1}, 7):
        with pytest.raises(InvalidSetting, match="map expects a list") as refused:
            flow.map(use, items)  # type: ignore[arg-type]
        assert refused.value.code == "invalid_items"
    with pytest.raises(InvalidSetting, match="max_items"):
        flow.map(use, flow.add(give, [1]), max_items=0)
    flow = app.workflow("w")
    none = flow.map(use, flow.add(give, "text"))
    many = flow.map(use, flow.add(give, [1, 2, 3]), max_items=2)
    last = flow.add(use, many)
    run = flow.start()
    work_off(app)
    assert run.wait(timeout=20).status == "partially_failed"
    assert app.jobs.get(run[none].id).error_code == "invalid_items"
    assert app.jobs.get(run[many].id).error_code == "too_many_items"
    assert run[last].state() == "queued", "held back behind the failure"


def test_failed_map_member_can_be_resumed(app: App) -> None:
    broken = {2}

    @app.job()
    def give() -> list[int]:
        return [1, 2, 3]

    @app.job(retry=Retry(max_attempts=1))
    def double(number: int) -> int:
        if number in broken:
            raise ValueError("not yet")
        return 2 * number

    @app.job()
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    flow = app.workflow("sum")
    last = flow.add(total, flow.map(double, flow.add(give)))
    run = flow.start()
    work_off(app)
    assert run.wait(timeout=20).status == "partially_failed"
    broken.clear()
    app.workflows.resume(run.id)
    work_off(app)
    assert run.wait(timeout=20).status == "succeeded"
    assert run[last].result() == 12


def test_callbacks_fire_once_on_success_or_failure(app: App) -> None:
    calls_seen: list[Any] = []
    healthy: list[bool] = []

    @app.job(retry=Retry(max_attempts=1))
    def fetch(number: int) -> int:
        if number < 0 and not healthy:
            raise ValueError("no such page")
        return abs(number)

    @app.job()
    def tell(what: Any, channel: str) -> None:
        calls_seen.append((channel, what))

    @app.job()
    def alert(failure: WorkflowFailure, channel: str = "ops") -> None:
        calls_seen.append((channel, failure))

    @app.job()
    def ping() -> None:
        calls_seen.append("ping")

    def plan(number: int) -> Any:
        flow = app.workflow("publish")
        step = flow.add(fetch, number, name="fetch")
        flow.add(fetch, 7, after=step, name="last")
        flow.add(fetch, 8, name="other")
        step.on_success(tell, channel="step")
        step.on_failure(alert, "step failed")
        flow.on_success(tell, "flow")
        flow.on_success(ping)
        flow.on_failure(alert)
        return flow

    def work() -> None:
        calls_seen.clear()
        work_off(app)
        work_off(app)

    run = plan(5).start()
    work()
    assert run.status() == "succeeded"
    assert sorted(calls_seen, key=str) == [("flow", {"last": 7, "other": 8}), ("step", 5), "ping"]
    work()
    assert calls_seen == []

    run = plan(-5).start()
    work()
    failure = WorkflowFailure(run.id, "publish", "fetch", run["fetch"].id, "ValueError", "no such page", ("fetch",))
    assert sorted(calls_seen, key=str) == [("ops", failure), ("step failed", failure)]
    records = app.workflows.graph(run.id).callbacks
    assert [(each.fires, each.step_id is None, each.fired_at is not None) for each in records] == [
        *(("success", False, False), ("failure", False, True)),
        *(("success", True, False), ("success", True, False), ("failure", True, True)),
    ]
    healthy.append(True)
    app.workflows.resume(run.id)
    work()
    assert run.status() == "succeeded"
    assert sorted(calls_seen, key=str) == [("flow", {"last": 7, "other": 8}), ("step", 5), "ping"], "each fires once"

    cancelled = plan(5)
    calls = cancelled.callbacks
    run = cancelled.start()
    app.workflows.cancel(run.id)
    work()
    assert calls_seen == []
    with pytest.raises(NotFound):
        app.jobs.get(run[calls[0]].id)


def test_invalid_callbacks_and_lookups_are_refused(app: App) -> None:
    @app.job()
    def fetch(number: int) -> int:
        return number

    flow = app.workflow("w")
    step = flow.add(fetch, 1)
    with pytest.raises(InvalidSetting, match="expects a kind"):
        flow.on_failure(print)  # type: ignore[arg-type]
    with pytest.raises(HoldfastError, match="too many"):
        flow.on_success(fetch, 2)
    step.on_success(fetch)
    flow.on_success(fetch)
    with pytest.raises(InvalidSetting, match="cannot be included"):
        app.workflow("outer").include(flow)
    group = flow.sequence(fetch.prepare(1), fetch.prepare(2), name="both")
    run = flow.start()
    assert [each.id for each in run["both"]] == [each.id for each in run[group]]  # type: ignore[attr-defined]
    with pytest.raises(NotFound, match="Did you mean 'fetch'"):
        run["fetsch"]
    with pytest.raises(InvalidSetting, match="not by int"):
        run[3]  # type: ignore[call-overload]


def test_job_after_a_sequence_gets_all_results(app: App) -> None:
    @app.job()
    def give(number: int) -> int:
        return number

    @app.job()
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    flow = app.workflow("w")
    steps = flow.sequence(give.prepare(1), give.prepare(2), give.prepare(3))
    last = flow.add(total, steps)
    run = flow.start()
    work_off(app)
    assert run[last].result() == 6


@pytest.mark.req("DP-4")
def test_encrypted_values_reach_mapped_jobs_and_callbacks(new_app: NewApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_KEYS", f"current:{new_key()}")
    app = new_app()
    secret = "diagnosis-4711"
    received: list[Any] = []

    @app.job()
    def read(prefix: str) -> list[str]:
        return [f"{prefix}-{number}" for number in range(2)]

    @app.job()
    def upper(text: str) -> str:
        return text.upper()

    @app.job()
    def report(values: Any, channel: str) -> None:
        received.append((channel, values))

    flow = app.workflow("patients")
    mapped = flow.map(upper, flow.add(read, secret))
    flow.add(report, mapped, channel=secret, name="collected")
    flow.on_success(report, secret)
    run = flow.start()
    work_off(app)
    work_off(app)
    assert run.status() == "succeeded"
    values = [f"{secret}-0".upper(), f"{secret}-1".upper()]
    assert received == [(secret, values), (secret, {"collected": None})]
    with closing(open_by_hand(session_of(app).store.url)) as by_hand:
        stored = by_hand.execute("select payload from job") + by_hand.execute("select value from result")
        stored += by_hand.execute("select meta from event")
    assert secret not in json.dumps(stored, default=str).lower(), "nothing is stored in plain text"


def test_failure_callback_names_every_failed_branch(app: App) -> None:
    seen: list[WorkflowFailure] = []

    @app.job(retry=Retry(max_attempts=1))
    def fetch(page: str) -> str:
        raise ValueError(f"no page {page}")

    @app.job()
    def alert(failure: WorkflowFailure) -> None:
        seen.append(failure)

    flow = app.workflow("publish")
    for page in ("left", "right"):
        flow.add(fetch, page, name=page)
    flow.on_failure(alert)
    run = flow.start()
    work_off(app)
    work_off(app)
    (failure,) = seen
    assert (failure.step, failure.job_id) == (failure.failed[0], run[failure.failed[0]].id)
    assert sorted(failure.failed) == ["left", "right"]

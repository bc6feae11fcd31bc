"""A schedule starts a workflow: once per fire time, and with `overlap` not before the last one has ended."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from holdfast import App, Context, Retry, SyncContext, WorkflowPlan
from holdfast.errors import InvalidArguments, InvalidSetting
from holdfast.testing import Kit
from tests.support.schedules import MONDAY, at, attend, made, set_time
from tests.support.workers import work_off

pytestmark = pytest.mark.req("SC-9", "DP-14")

HOUR = timedelta(hours=1)


def test_schedule_starts_a_workflow_once_per_fire(app: App) -> None:
    seen: list[tuple[str, datetime | None]] = []
    broken = [True]

    @app.job()
    def extract(ctx: SyncContext, table: str) -> int:
        seen.append((table, ctx.scheduled_at()))
        return len(table)

    @app.job(retry=Retry(max_attempts=1))
    async def report(ctx: Context, sizes: list[int]) -> int:
        seen.append(("report", await ctx.scheduled_at()))
        return sum(sizes)

    @app.schedule("0 * * * *", overlap="skip", payload={"tables": ["orders", "people"]})
    @app.workflow(on_failure="stop")
    def hourly(wf: WorkflowPlan, tables: list[str]) -> None:
        sizes = wf.map(extract, tables)
        wf.add(report, sizes, name="report")
        seen.append(("planned", wf.scheduled_at))
        if broken:
            broken.clear()
            wf.start()
            raise RuntimeError("the worker was lost after the workflow was started")

    set_time(app, MONDAY - HOUR / 2)
    attend(app)
    assert at(app, MONDAY) == 1
    assert attend(app) == 0
    (job,) = made(app, "hourly")
    work_off(app)  # this attempt starts the workflow and then fails
    set_time(app, MONDAY + HOUR / 2)
    work_off(app)
    (workflow,) = app.workflows.list(kind="hourly")
    assert (workflow.status, workflow.parent_id, workflow.on_failure) == ("succeeded", job.id, "stop")
    assert app.jobs.get(job.id).state == "succeeded"
    assert sorted(set(seen)) == [(name, MONDAY) for name in ("orders", "people", "planned", "report")]
    assert [name for name, _ in seen].count("report") == 1


def test_overlap_skip_waits_for_the_workflow_to_end(app: App) -> None:
    @app.job(queue="later")
    def work() -> None: ...

    @app.workflow(name="hour.ly", queue="plans")
    async def hourly(wf: WorkflowPlan) -> None:
        wf.add(work)

    set_time(app, MONDAY - HOUR / 2)
    app.schedules.add("hourly", "0 * * * *", kind=hourly, overlap="skip")
    at(app, MONDAY)
    work_off(app, queues=("plans",))
    assert [each.state for each in made(app, "hour.ly")] == ["succeeded"]
    at(app, MONDAY + HOUR)
    assert [run.status for run in app.schedules.history("hourly")] == ["skipped", "fired"], "its workflow still runs"
    work_off(app)
    at(app, MONDAY + 2 * HOUR)
    assert [run.status for run in app.schedules.history("hourly")] == ["fired", "skipped", "fired"]


def test_workflow_definitions_are_kinds(app: App) -> None:
    @app.job()
    def fetch(number: int) -> int:
        return number

    @app.workflow
    def book(wf: WorkflowPlan, pages: int = 2) -> None:
        wf.map(fetch, range(pages))

    handle = book.enqueue(pages=3)
    work_off(app)
    assert app.workflows.get(handle.result()).total == 3
    assert book.parameters == ("pages",)
    with pytest.raises(InvalidArguments):
        book.enqueue(chapters=3)  # type: ignore[call-arg]
    with pytest.raises(InvalidSetting, match="first parameter"):
        app.workflow(lambda: None)  # type: ignore[arg-type, misc]
    with pytest.raises(InvalidSetting, match="unknown_option"):
        app.workflow(colour="red")(lambda wf: None)


@pytest.mark.req("HF-7")
def test_kit_drains_maps_and_callbacks(app: App) -> None:
    results_seen: list[object] = []

    @app.job()
    def give() -> list[int]:
        return [1, 2]

    @app.job()
    def double(number: int) -> int:
        return 2 * number

    @app.job()
    def tell(results: dict[str, object]) -> None:
        results_seen.append(results)

    @app.workflow
    def doubled(wf: WorkflowPlan) -> None:
        wf.map(double, wf.add(give), name="pages")
        wf.on_success(tell)

    with Kit(app) as kit:
        doubled.enqueue()
        kit.drain()
    assert results_seen == [{"pages": [2, 4]}]

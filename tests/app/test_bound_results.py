"""Workflow jobs take results of other jobs as arguments; handlers can read their scheduled time."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import App, Context
from holdfast.errors import NotFound
from tests.support.workers import work_off

pytestmark = pytest.mark.req("DP-14", "SC-17")


def test_results_are_passed_as_arguments(app: App) -> None:
    @app.job()
    def fetch(number: int) -> list[int]:
        return [number, number + 1]

    @app.job()
    def double(page: list[int], factor: int = 2) -> int:
        return sum(page) * factor

    @app.job()
    async def total(parts: list[int], first: list[int]) -> str:
        return f"{parts} after {first}"

    assert double([1, 2]) == 6, "the decorated function stays callable"

    def plan() -> tuple[Any, ...]:
        flow = app.workflow("publish")
        fetched = flow.add(fetch, 7, name="first")
        single = flow.add(double, fetched, factor=10)
        pages = flow.map(fetch, [1, 2, 3], after=fetched)
        assert [page.name for page in pages.members] == ["map-fetch.1", "map-fetch.2", "map-fetch.3"]
        doubled = flow.group("doubled")
        for page in pages.members:
            doubled.add(double, page)
        last = flow.add(total, parts=doubled, first=fetched, name="last")
        return flow, single, pages, doubled, last

    flow, single, pages, doubled, last = plan()
    run = flow.start()
    work_off(app)
    assert run.wait(timeout=20).status == "succeeded"
    assert run[single].result() == 150
    assert [handle.result() for handle in run[pages]] == [[1, 2], [2, 3], [3, 4]]
    assert [handle.result() for handle in run[doubled]] == [6, 10, 14]
    assert run[last].result() == run["last"].result() == "[6, 10, 14] after [7, 8]"
    with pytest.raises(NotFound, match="There are first"):
        run["unknown"]

    outer = app.workflow("outer")
    inner, *_ = plan()
    outer.include(inner, name="inner")
    included = outer.start()
    work_off(app)
    assert included.wait(timeout=20).status == "succeeded"
    assert included["inner.last"].result() == "[6, 10, 14] after [7, 8]"


def test_job_without_a_schedule_has_no_scheduled_time(app: App) -> None:
    @app.job()
    async def when(ctx: Context) -> bool:
        return await ctx.scheduled_at() is None

    handle = when.enqueue()
    work_off(app)
    assert handle.result() is True

"""Weighted limits from a program: ``units=`` of a job, and ``ctx.use_units``."""

from __future__ import annotations

import pytest

from holdfast import App, Context, State, SyncContext
from holdfast.errors import InvalidSetting, Refused
from tests.support.workers import work_off

pytestmark = pytest.mark.req("HF-12")


def test_units_of_jobs_are_taken_and_settled(app: App) -> None:
    app.limits.set(key="llm", rate="1000/h", burst=1000)

    @app.job(limit_key="llm", units=400)
    async def ask(ctx: Context, tokens: int) -> int:
        await ctx.use_units(tokens - 400)
        return tokens

    @app.job(limit_key="llm")
    def check(ctx: SyncContext) -> None:
        ctx.use_units(1)

    first = [ask.enqueue(100) for _ in range(3)]  # 300, after 1200 were estimated
    work_off(app, concurrency=1)
    assert [handle.state() for handle in first] == [State.SUCCEEDED] * 3
    large, small = ask.using(units=700).enqueue(900), check.enqueue()
    work_off(app, concurrency=1)
    assert (large.state(), small.state()) == (State.SUCCEEDED, State.QUEUED)
    assert any("key llm" in reason.says for reason in small.why().reasons)
    assert large.get().uses == ("key:llm", "units:700")


def test_units_are_checked(app: App) -> None:
    @app.job()
    def ask() -> None: ...

    for options in ({"units": 5}, {"units": -1, "limit_key": "llm"}, {"units": 1.5, "limit_key": "llm"}):
        with pytest.raises(InvalidSetting):
            ask.using(**options).enqueue()


def test_budget_holds_or_refuses(app: App) -> None:
    app.limits.set(key="acme", rate="1000/d", burst=1000, refuse=True)

    @app.job()
    def ask() -> None: ...

    budgeted = ask.using(limit_key="acme", units=1000)
    first, second = budgeted.enqueue(), budgeted.enqueue()
    work_off(app)
    assert (first.state(), second.state()) == (State.SUCCEEDED, State.QUEUED)
    with pytest.raises(Refused) as refused:
        budgeted.enqueue()
    assert refused.value.code == "budget_used_up"
    assert "key acme" in refused.value.message
    ask.enqueue()
    with pytest.raises(InvalidSetting):
        app.limits.set(key="acme", concurrency=1, refuse=True)

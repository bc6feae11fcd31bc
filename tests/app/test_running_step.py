"""A running step is visible with its start time."""

from __future__ import annotations

import asyncio
import threading

import pytest

from holdfast import App, Context, SyncContext
from holdfast.app.internals import session_of
from holdfast.engine.steps import RUNNING
from holdfast.features.jobs.store import view
from holdfast.steps import driver
from tests.support.waiting import until
from tests.support.workers import working


@pytest.mark.req("HF-6", "HF-2", "SC-20")
@pytest.mark.parametrize("form", ["async", "sync"])
def test_running_step_is_visible_until_it_ends(app: App, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setattr(driver, "SEEN_AFTER", 0.05)
    release = threading.Event()

    async def slow() -> str:
        await asyncio.to_thread(release.wait, 20)
        return "charged"

    def quick() -> int:
        return 1

    if form == "async":

        @app.job("pay")
        async def pay(ctx: Context) -> str:
            await ctx.step("look up", quick)
            return await ctx.step("charge", slow)
    else:

        @app.job("pay")
        def pay_here(ctx: SyncContext) -> str:
            ctx.step("look up", quick)
            return ctx.step("charge", slow)

    handle = app.enqueue("pay")

    def running() -> list[str]:
        return [step.name for step in app.jobs.steps(handle.id) if step.running]

    with working(app):
        try:
            until(lambda: running() == ["charge"], "the step is visible")
            (_, step) = app.jobs.steps(handle.id)
            assert (step.n, step.tries, step.ended_at) == (2, 1, None)
            assert abs((step.started_at - handle.get().started_at).total_seconds()) < 10  # type: ignore[operator]
            (reason,) = app.jobs.why(handle.id).reasons
            assert "in step charge since" in reason.says
            seen = session_of(app).run(view(session_of(app).store, handle.id, "default", 5))
            assert seen is not None
            assert [step.name for step in seen.story.steps] == ["look up", "charge"]
            assert RUNNING not in seen.story.checkpoints
            assert app.jobs.checkpoints(handle.id) == {}
        finally:
            release.set()
        assert handle.result(timeout=20) == "charged"
    assert running() == []
    assert [step.over for step in app.jobs.steps(handle.id)] == [True, True]

"""Fault 66: a handler never returns, or blocks the event loop. Its worker lives and renews its lease, so nothing takes
the job over; health lists it within a minute. By a setting, a worker with a blocked loop gives up its lease."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from holdfast import App, Context, Retry
from holdfast.app.internals import session_of
from holdfast.errors import InvalidSetting
from tests.support.stores import forward
from tests.support.waiting import until
from tests.support.workers import work_off, working

pytestmark = pytest.mark.req("DP-19")


def test_hung_handler_is_visible_within_a_minute(app: App) -> None:
    hang = threading.Event()
    begun = threading.Event()

    @app.job()
    def export(hangs: bool = False) -> None:
        if hangs:
            begun.set()
            hang.wait(60)

    for _ in range(3):
        export.enqueue()
    work_off(app)
    with working(app, lease_ttl=3600.0):
        hung = export.enqueue(hangs=True)
        assert begun.wait(20)
        try:
            assert app.health.get().long_running == ()
            forward(session_of(app).store, 60.0)
            health = app.health.get()
            assert [(each.id, each.kind) for each in health.long_running] == [(hung.id, export.name)]
            assert "long_running" in {reason.code for reason in health.reasons}
        finally:
            hang.set()
        until(lambda: app.jobs.get(hung.id).state.finished, "the job ends")
    assert app.health.get().long_running == ()


def test_blocked_event_loop_is_visible_in_health_until_it_turns_again(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    hang, begun = threading.Event(), threading.Event()

    @app.job()
    async def blocks() -> None:
        begun.set()
        hang.wait(60)

    with caplog.at_level(logging.ERROR, "holdfast.worker"), working(app, blocked_after=0.5) as running:
        job = blocks.enqueue()
        try:
            assert begun.wait(20)
            until(lambda: app.health.get().blocked_workers, "health lists the worker")
            (blocked,) = app.health.get().blocked_workers
            assert running.worker is not None
            assert blocked.worker == running.worker.name
            assert blocked.seconds >= 0.5
            assert "test_66_hung_handler.py" in str(blocked.location)
            assert "in blocks" in str(blocked.location)
            assert "loop_blocked" in {reason.code for reason in app.health.get().reasons}
            assert "has not turned" in caplog.text
            assert "hang.wait(60)" in caplog.text, "the stack of the handler"
            assert app.jobs.get(job.id).state == "in_progress", "nobody takes it over"
        finally:
            hang.set()
        until(lambda: not app.health.get().blocked_workers, "health no longer lists it")
        assert job.result(timeout=20) is None


def test_worker_with_a_blocked_event_loop_gives_up_its_lease_by_setting(app: App) -> None:
    hang, begun = threading.Event(), threading.Event()

    @app.job()
    async def blocks(ctx: Context) -> int:
        if ctx.attempt == 1:
            begun.set()
            hang.wait(60)
        return ctx.attempt

    with working(app, blocked_after=0.5, release_blocked=True):
        job = blocks.enqueue()
        try:
            assert begun.wait(20)
            with working(app, blocked_after=60.0):
                assert job.result(timeout=20) == 2
        finally:
            hang.set()
        until(lambda: not app.health.get().blocked_workers, "the first worker has another lease")
        assert blocks.enqueue().result(timeout=20) == 1 or hang.is_set()
    assert app.jobs.get(job.id).crashes == 1


def test_default_timeout_ends_handlers_that_set_none_of_their_own(app: App, url: str) -> None:
    limited = App(url, default_timeout="300ms")

    @limited.job(retry=Retry(max_attempts=1))
    async def hangs(ctx: Context) -> None:
        await ctx.step("hang", threading.Event().wait, 20)

    @limited.job(timeout=None)
    async def slow(ctx: Context) -> str:
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            await ctx.progress(0.5)
        return "done"

    with working(limited):
        hung, done = hangs.enqueue(), slow.enqueue()
        until(lambda: limited.jobs.get(hung.id).state.finished, "the hung one ends")
        assert limited.jobs.get(hung.id).error_code == "timeout"
        assert done.result(timeout=20) == "done"
    with pytest.raises(InvalidSetting, match="default_timeout"):
        App(url, default_timeout=-1)
    limited.close()

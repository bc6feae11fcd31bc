"""Stopping handlers: a thread polls its context, async code is interrupted, and a thread that ignores it takes no
slot."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import App, Retry, State, Stopped, SyncContext
from holdfast.engine.outcome import Failed
from holdfast.errors import StaleLease
from holdfast.worker.executor import Handler, execute
from holdfast.worker.shutdown import Stop
from tests.app.conftest import NewApp
from tests.support.waiting import until
from tests.support.workers import work_off, working
from tests.unit.test_settlement import CLAIM

ONCE = Retry(max_attempts=1)


@pytest.mark.req("CX-11")
def test_thread_is_notified_of_its_timeout(app: App) -> None:
    seen: list[Any] = []
    done = threading.Event()

    @app.job(retry=ONCE, timeout=0.1)
    def loops(ctx: SyncContext) -> None:
        try:
            while True:
                try:
                    ctx.raise_if_cancelled()
                except Exception:  # a loop that carries on after errors
                    continue
                ctx._run.stop.wait(10)
        except Stopped as stopped:
            seen.append((ctx.cancelled, ctx.stop_reason, stopped.reason))
            done.set()

    handle = loops.enqueue()
    work_off(app)
    assert done.wait(20)
    assert handle.get().error_code == "timeout"
    assert seen == [(True, "timeout", "timeout")]


@pytest.mark.req("CX-11")
def test_thread_is_notified_that_its_job_was_cancelled(app: App, new_app: NewApp) -> None:
    worker_app, started = new_app(), threading.Event()
    seen: list[Any] = []

    @worker_app.job()
    def loops(ctx: SyncContext) -> None:
        seen.append((ctx.cancelled, ctx.stop_reason))
        started.set()
        ctx._run.stop.wait(60)
        seen.append((ctx.cancelled, ctx.stop_reason))
        with pytest.raises(StaleLease):
            ctx.checkpoint.save("too late")
        seen.append("refused")

    with working(worker_app):
        handle = app.enqueue("loops")
        assert started.wait(20)
        handle.cancel("changed my mind")
        until(lambda: len(seen) == 3, "the thread has seen it")
    assert seen == [(False, None), (True, "cancelled"), "refused"]
    assert handle.state() is State.CANCELLED


@pytest.mark.req("CX-11", "DP-9")
def test_thread_is_notified_that_its_worker_stops(app: App, new_app: NewApp) -> None:
    worker_app, started, seen = new_app(), threading.Event(), []

    @worker_app.job()
    def loops(ctx: SyncContext) -> None:
        started.set()
        ctx._run.stop.wait(60)
        seen.append(ctx.stop_reason)

    with working(worker_app) as background:
        handle = app.enqueue("loops")
        assert started.wait(20)
        background.ask_to_stop(now=True)
    until(lambda: seen, "the thread has seen it")
    assert seen == ["worker_stopped"]
    assert next(event.meta for event in handle.history() if event.type == "snooze")["reason"] == "worker_stopped"


@pytest.mark.req("CX-11")
async def test_stop_reason_is_passed_to_the_handler() -> None:
    seen: list[Any] = []
    started = asyncio.Event()

    async def call(claim: Any, stop: Stop) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            seen.append(stop)

    stop = Stop()
    task = asyncio.create_task(execute(Handler("k", call), CLAIM, stop))
    await started.wait()
    stop.set("cancelled")
    task.cancel("cancelled")
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (seen[0].is_set, seen[0].reason) == (True, "cancelled")


@pytest.mark.req("CX-11")
async def test_async_handler_can_read_why_it_is_interrupted() -> None:
    seen: list[Any] = []

    async def call(claim: Any, stop: Stop) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append((stop.is_set, stop.reason))
            raise

    outcome = await execute(Handler("k", call, timeout=0.01), CLAIM)
    assert isinstance(outcome, Failed)
    assert (outcome.code, seen) == ("timeout", [(True, "timeout")])


@pytest.mark.req("CX-11", "JF-7")
def test_stuck_thread_takes_no_slot(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """In a pool of one thread, the first of these jobs would have been the last one ever run."""
    release = threading.Event()

    @app.job(retry=ONCE, timeout=0.05)
    def stuck() -> None:
        release.wait(60)

    @app.job()
    def fine() -> int:
        return 3

    blocked = [stuck.enqueue() for _ in range(3)]
    later = [fine.enqueue() for _ in range(3)]
    began = time.monotonic()
    work_off(app, concurrency=1)
    assert time.monotonic() - began < 20
    release.set()
    assert [handle.get().error_code for handle in blocked] == ["timeout"] * 3
    assert [handle.result(timeout=5) for handle in later] == [3, 3, 3]


@pytest.mark.req("CX-11")
def test_stuck_thread_is_named_in_the_log(
    app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "holdfast.worker.threads.Threads.__init__.__kwdefaults__", {"idle_for": 1.0, "warn_after": 0.01}
    )
    release, logged = threading.Event(), threading.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "kind stuck" in record.getMessage():
                logged.set()

    @app.job(retry=ONCE, timeout=0.05)
    def stuck() -> None:
        release.wait(60)

    @app.job()
    async def waits() -> None:
        await asyncio.to_thread(logged.wait, 20)

    listener = Listener()
    logging.getLogger("holdfast.worker").addHandler(listener)
    try:
        stuck.enqueue()
        waits.enqueue()
        work_off(app)
    finally:
        release.set()
        logging.getLogger("holdfast.worker").removeHandler(listener)
    assert logged.is_set()


@pytest.mark.req("CX-15", "DP-9")
@pytest.mark.parametrize(
    ("timeout", "deadline", "least", "most"),
    [(None, None, None, None), (60, None, 50, 60), (None, 600, 500, 600), (60, 600, 50, 60), (600, 30, 20, 30)],
)
def test_handler_knows_its_remaining_time(
    app: App, timeout: float | None, deadline: float | None, least: float | None, most: float
) -> None:
    seen: list[float | None] = []

    @app.job(timeout=timeout)
    def looks(ctx: SyncContext) -> None:
        seen.append(ctx.time_left())

    options: Any = {} if deadline is None else {"deadline": datetime.now(UTC) + timedelta(seconds=deadline)}
    handle = looks.using(**options).enqueue()
    work_off(app)
    assert handle.get().state is State.SUCCEEDED
    (left,) = seen
    if least is None:
        assert left is None
    else:
        assert left is not None
        assert least <= left <= most

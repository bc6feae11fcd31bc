"""A handler that is stopped while its steps run: completed steps are kept, no further step starts, and nothing hangs
(HF-6, CX-11)."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from holdfast import App, Backoff, Context, Retry, State, Stopped, SyncContext
from holdfast.app.internals import session_of
from holdfast.errors import StaleLease
from holdfast.stores.flow import Flow
from tests.app.conftest import NewApp
from tests.app.outages import Outage
from tests.app.test_steps import AGAIN, step_rows
from tests.support.operations import name_of
from tests.support.waiting import until
from tests.support.workers import work_off, working

pytestmark = pytest.mark.req("HF-6", "CX-11")


class Held:
    """Delays a worker's step writes until the test releases them."""

    def __init__(self, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
        self._arun = session_of(app).store.arun
        self.reached, self.release = threading.Event(), threading.Event()
        monkeypatch.setattr(session_of(app).store, "arun", self.arun)

    async def arun(self, flow: Flow[Any]) -> Any:
        if name_of(flow)[0] == "steps.save":
            self.reached.set()
            await asyncio.to_thread(self.release.wait, 20)
        return await self._arun(flow)


def declare_cleanup(app: App, started: threading.Event, **options: Any) -> None:
    """Declare a kind whose first attempt hangs in its first step and has another step in a `finally`."""

    async def lingers(seconds: float) -> None:
        started.set()
        await asyncio.sleep(seconds)

    @app.job("cleans_up", **options)
    async def handler(ctx: Context) -> str:
        try:
            await ctx.step("slow", lingers, 60 if ctx.attempt == 1 else 0)
            await ctx.step("work", lambda: 1)
        finally:
            await ctx.step("clean up", lambda: 2)
        return "done"


def test_step_in_a_finally_is_not_recorded_when_the_worker_stops(app: App, new_app: NewApp) -> None:
    """It would take the position of a step of the next attempt, which then would not match its recorded steps."""
    worker_app, started = new_app(), threading.Event()
    declare_cleanup(worker_app, started)
    with working(worker_app, grace=0.0) as background:
        handle = app.enqueue("cleans_up")
        assert started.wait(20)
        background.ask_to_stop()
    assert step_rows(app, handle.id) == []
    work_off(worker_app)
    with working(worker_app):
        assert handle.result(timeout=20) == "done"
    assert [name for _, _, name, _ in step_rows(app, handle.id)] == ["slow", "work", "clean up"]


def test_step_in_a_finally_is_not_recorded_after_a_timeout(app: App) -> None:
    started = threading.Event()
    declare_cleanup(app, started, retry=AGAIN, timeout=1)
    handle = app.enqueue("cleans_up")
    with working(app):
        assert handle.result(timeout=20) == "done"
    assert handle.get().retries == 1


def test_completed_step_is_written_before_its_job_is_handed_back(
    app: App, new_app: NewApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker_app = new_app()
    calls: list[str] = []

    @worker_app.job("pays")
    async def pays(ctx: Context) -> str:
        await ctx.step("charge", calls.append, "charged")
        return "paid"

    held = Held(worker_app, monkeypatch)
    with working(worker_app, grace=0.0) as background:
        handle = app.enqueue("pays")
        assert held.reached.wait(20)
        background.ask_to_stop()
        until(lambda: background.worker is not None and background.worker._stopping, "the worker stops")
        held.release.set()
    assert [name for _, _, name, _ in step_rows(app, handle.id)] == ["charge"]
    with working(worker_app):
        assert handle.result(timeout=20) == "paid"
    assert calls == ["charged"]


def test_timeout_during_a_step_write_ends_the_attempt(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is unreachable for longer than the timeout: the handler does not wait for ever."""

    @app.job(timeout=0.2, retry=Retry(max_attempts=1))
    async def pays(ctx: Context) -> None:
        await ctx.step("charge", lambda: 1)

    outage = Outage(app, monkeypatch)
    outage.failing["steps.save"] = 1_000_000
    handle = pays.enqueue()
    with working(app):
        until(lambda: handle.state() is State.DEAD_LETTER, "the job has ended")
        assert handle.get().error_code == "timeout"
        outage.failing["steps.save"] = 0


@pytest.mark.parametrize("why", ["timeout", "cancelled"])
def test_unstoppable_thread_starts_no_further_step(app: App, new_app: NewApp, why: str) -> None:
    worker_app = new_app()
    seen: list[Any] = []
    contexts: list[SyncContext] = []
    resume, ended = threading.Event(), threading.Event()

    def work(number: int) -> None:
        if number:
            seen.append(number)
        else:
            resume.wait(20)

    @worker_app.job("loops", timeout=1 if why == "timeout" else None)
    def loops(ctx: SyncContext) -> None:
        contexts.append(ctx)
        try:
            for number in range(3):
                try:
                    ctx.step(f"step {number}", work, number)
                except Exception as error:  # a loop that carries on after errors
                    seen.append(type(error))
        except Stopped as stopped:
            seen.append(stopped.reason)
        finally:
            ended.set()

    with working(worker_app):
        handle = app.enqueue("loops", retry=Retry(max_attempts=1))
        until(lambda: contexts, "the handler has started")
        if why == "cancelled":
            handle.cancel()
        until(lambda: handle.state() in (State.DEAD_LETTER, State.CANCELLED), "its job has ended")
        until(lambda: contexts[0].cancelled, "the handler is notified")
        resume.set()
        assert ended.wait(20)
    assert seen == [StaleLease, why]
    assert step_rows(app, handle.id) == []


def test_unstoppable_thread_does_not_retry_a_step(app: App) -> None:
    late: list[bool] = []  # at each try: whether it had to stop by then
    ended = threading.Event()
    contexts: list[SyncContext] = []
    slow = Retry(max_attempts=10, backoff=Backoff(base=0.9, factor=1.0, jitter=False))

    def flaky() -> None:
        late.append(contexts[0].cancelled)
        raise ConnectionError("not yet")

    @app.job(timeout=0.3, retry=Retry(max_attempts=1))
    def runs(ctx: SyncContext) -> None:
        contexts.append(ctx)
        try:
            ctx.step_options(retry=slow).step("flaky", flaky)
        except Stopped:
            ended.set()

    handle = runs.enqueue()
    with working(app):
        assert ended.wait(20)
        until(lambda: handle.state() is State.DEAD_LETTER, "its job has ended")
    assert not any(late)


def test_thread_ends_after_its_worker_is_gone(app: App, new_app: NewApp) -> None:
    """No event loop is left to serve its call."""
    worker_app = new_app()
    seen: list[BaseException] = []
    started, resume, ended = threading.Event(), threading.Event(), threading.Event()

    def slow() -> None:
        started.set()
        resume.wait(20)

    @worker_app.job("lingers")
    def lingers(ctx: SyncContext) -> None:
        try:
            ctx.step("slow", slow)
        except BaseException as error:
            seen.append(error)
        finally:
            ended.set()

    with working(worker_app, grace=0.0) as background:
        handle = app.enqueue("lingers")
        assert started.wait(20)
        background.ask_to_stop()
    resume.set()
    assert ended.wait(20)
    assert [type(error) for error in seen] == [Stopped]
    assert handle.state() in (State.RETRY_WAITING, State.QUEUED), "handed back, perhaps due already"


def test_thread_waiting_for_an_unreachable_store_ends_with_its_worker(
    app: App, new_app: NewApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker_app, ended = new_app(), threading.Event()
    seen: list[BaseException] = []

    @worker_app.job("lingers")
    def lingers(ctx: SyncContext) -> None:
        try:
            ctx.step("quick", lambda: 1)
        except BaseException as error:
            seen.append(error)
        finally:
            ended.set()

    outage = Outage(worker_app, monkeypatch)
    outage.failing["steps.save"] = 1_000_000
    with working(worker_app, grace=0.0) as background:
        app.enqueue("lingers")
        until(lambda: outage.hits["steps.save"] > 0, "the step write has failed")
        background.ask_to_stop()
    assert ended.wait(20)
    assert [type(error) for error in seen] == [Stopped]


@pytest.mark.parametrize("url", ["postgres"], indirect=True)  # SQLite has no pool per event loop
def test_thread_that_outlives_its_worker_does_not_keep_the_loop_open(
    app: App, new_app: NewApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its step was about to be written when the worker stopped. A request to a pool that was just closed opens it
    again, and nothing closes it then: the process would never end."""
    worker_app = new_app()

    @worker_app.job("lingers")
    def lingers(ctx: SyncContext) -> None:
        ctx.step("quick", lambda: 1)

    held = Held(worker_app, monkeypatch)
    leave = session_of(worker_app).store.leave_loop

    async def leave_loop() -> None:
        await leave()
        held.release.set()
        loops = session_of(worker_app).store._pools._loop_pools  # type: ignore[union-attr]
        for _ in range(30):  # long enough for a busy machine, or until another pool exists
            await asyncio.sleep(0.01 if not loops else 0)

    monkeypatch.setattr(session_of(worker_app).store, "leave_loop", leave_loop)
    with working(worker_app, grace=0.0) as background:
        app.enqueue("lingers")
        assert held.reached.wait(20)
        background.ask_to_stop()


# -- cancellation ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["asleep", "waiting", "approval"])
def test_waiting_job_can_be_cancelled(app: App, where: str) -> None:
    seen: list[str] = []

    @app.job()
    async def waits(ctx: Context) -> None:
        await ctx.step("first", seen.append, "first")
        if where == "asleep":
            await ctx.sleep("1h")
        elif where == "waiting":
            await ctx.wait_for_event("go")
        else:
            await ctx.approval("go", summary="Continue")
        seen.append("continued")

    handle = waits.enqueue()
    work_off(app)
    handle.cancel("changed my mind")
    app.send_event("go")
    assert app.approvals.list() == []
    session_of(app).store.run(session_of(app).store.clock.set(timedelta(hours=2), None))
    work_off(app)
    assert (handle.state(), seen) == (State.CANCELLED, ["first"])
    assert [event.type for event in handle.history()][-1] == "cancel"


def test_job_cancelled_inside_a_step_runs_no_further_step(app: App, new_app: NewApp) -> None:
    worker_app, started = new_app(), threading.Event()
    seen: list[str] = []

    async def lingers() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            seen.append("interrupted")

    @worker_app.job("pays")
    async def pays(ctx: Context) -> None:
        try:
            await ctx.step("charge", lingers)
        except BaseException:
            await ctx.step("instead", seen.append, "instead")

    with working(worker_app):
        handle = app.enqueue("pays")
        assert started.wait(20)
        handle.cancel()
        until(lambda: seen, "the step is interrupted")
    assert (handle.state(), seen, step_rows(app, handle.id)) == (State.CANCELLED, ["interrupted"], [])

"""A handler that is stopped in the middle of its steps: what was done stays done, nothing more is begun, and nobody
hangs (HF-6, CX-11)."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from holdfast import App, Backoff, Context, Retry, State, Stopped, SyncContext
from holdfast.errors import StaleLease
from holdfast.stores.flow import Flow
from tests.app.away import Away
from tests.app.conftest import NewApp
from tests.app.test_steps import AGAIN, told
from tests.support.operations import name_of
from tests.support.waiting import until
from tests.support.workers import work_off, working

pytestmark = pytest.mark.req("HF-6", "CX-11")


class Held:
    """Keeps a worker's writes of steps from the store until it is told to let them go."""

    def __init__(self, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
        self._arun = app._store.arun
        self.asked, self.go = threading.Event(), threading.Event()
        monkeypatch.setattr(app._store, "arun", self.arun)

    async def arun(self, flow: Flow[Any]) -> Any:
        if name_of(flow)[0] == "steps.save":
            self.asked.set()
            await asyncio.to_thread(self.go.wait, 20)
        return await self._arun(flow)


def cleans_up(app: App, begun: threading.Event, **options: Any) -> None:
    """A kind whose first attempt never gets past its first step, and has another in a `finally`."""

    async def lingers(seconds: float) -> None:
        begun.set()
        await asyncio.sleep(seconds)

    @app.job("cleans_up", **options)
    async def handler(ctx: Context) -> str:
        try:
            await ctx.step("slow", lingers, 60 if ctx.attempt == 1 else 0)
            await ctx.step("work", lambda: 1)
        finally:
            await ctx.step("clean up", lambda: 2)
        return "done"


def test_a_worker_that_leaves_has_no_cleaning_up_remembered(app: App, new_app: NewApp) -> None:
    """It would stand in the place of what the next attempt does there, which then would not know its own steps."""
    elsewhere, begun = new_app(), threading.Event()
    cleans_up(elsewhere, begun)
    with working(elsewhere, grace=0.0) as beside:
        handle = app.enqueue("cleans_up")
        assert begun.wait(20)
        beside.ask_to_stop()
    assert told(app, handle.id) == []
    work_off(elsewhere)
    with working(elsewhere):
        assert handle.result(timeout=20) == "done"
    assert [name for _, _, name, _ in told(app, handle.id)] == ["slow", "work", "clean up"]


def test_nor_has_a_handler_whose_time_is_up(app: App) -> None:
    begun = threading.Event()
    cleans_up(app, begun, retry=AGAIN, timeout=1)
    handle = app.enqueue("cleans_up")
    with working(app):
        assert handle.result(timeout=20) == "done"
    assert handle.get().retries == 1


def test_a_step_that_is_done_is_written_before_its_job_is_handed_back(
    app: App, new_app: NewApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = new_app()
    calls: list[str] = []

    @elsewhere.job("pays")
    async def pays(ctx: Context) -> str:
        await ctx.step("charge", calls.append, "charged")
        return "paid"

    held = Held(elsewhere, monkeypatch)
    with working(elsewhere, grace=0.0) as beside:
        handle = app.enqueue("pays")
        assert held.asked.wait(20)
        beside.ask_to_stop()
        until(lambda: beside.worker is not None and beside.worker._stopping, "it leaves")
        held.go.set()
    assert [name for _, _, name, _ in told(app, handle.id)] == ["charge"]
    with working(elsewhere):
        assert handle.result(timeout=20) == "paid"
    assert calls == ["charged"]


def test_a_time_limit_that_ends_while_a_step_is_written_ends_the_attempt(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is away for longer than the handler has: it does not wait for it for ever."""

    @app.job(timeout=0.2, retry=Retry(max_attempts=1))
    async def pays(ctx: Context) -> None:
        await ctx.step("charge", lambda: 1)

    away = Away(app, monkeypatch)
    away.left["steps.save"] = 1_000_000
    handle = pays.enqueue()
    with working(app):
        until(lambda: handle.state() is State.DEAD_LETTER, "it is over")
        assert handle.get().error_code == "timeout"
        away.left["steps.save"] = 0


@pytest.mark.parametrize("why", ["timeout", "cancelled"])
def test_a_thread_that_cannot_be_stopped_begins_no_further_step(app: App, new_app: NewApp, why: str) -> None:
    elsewhere = new_app()
    seen: list[Any] = []
    contexts: list[SyncContext] = []
    go_on, ended = threading.Event(), threading.Event()

    def work(number: int) -> None:
        if number:
            seen.append(number)
        else:
            go_on.wait(20)

    @elsewhere.job("loops", timeout=1 if why == "timeout" else None)
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

    with working(elsewhere):
        handle = app.enqueue("loops", retry=Retry(max_attempts=1))
        until(lambda: contexts, "it has begun")
        if why == "cancelled":
            handle.cancel()
        until(lambda: handle.state() in (State.DEAD_LETTER, State.CANCELLED), "its job is over")
        until(lambda: contexts[0].cancelled, "it is told")
        go_on.set()
        assert ended.wait(20)
    assert seen == [StaleLease, why]
    assert told(app, handle.id) == []


def test_nor_does_it_try_one_again(app: App) -> None:
    late: list[bool] = []  # at each try, whether it was to stop by then
    ended = threading.Event()
    contexts: list[SyncContext] = []
    slow = Retry(max_attempts=10, backoff=Backoff(base=0.9, factor=1.0, jitter=False))

    def flaky() -> None:
        late.append(contexts[0].cancelled)
        raise ConnectionError("not yet")

    @app.job(timeout=0.3, retry=Retry(max_attempts=1))
    def asks(ctx: SyncContext) -> None:
        contexts.append(ctx)
        try:
            ctx.step_options(retry=slow).step("flaky", flaky)
        except Stopped:
            ended.set()

    handle = asks.enqueue()
    with working(app):
        assert ended.wait(20)
        until(lambda: handle.state() is State.DEAD_LETTER, "its job is over")
    assert not any(late)


def test_a_thread_whose_worker_is_gone_ends(app: App, new_app: NewApp) -> None:
    """There is no loop any more that could answer it."""
    elsewhere = new_app()
    seen: list[BaseException] = []
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        go_on.wait(20)

    @elsewhere.job("lingers")
    def lingers(ctx: SyncContext) -> None:
        try:
            ctx.step("slow", slow)
        except BaseException as error:
            seen.append(error)
        finally:
            ended.set()

    with working(elsewhere, grace=0.0) as beside:
        handle = app.enqueue("lingers")
        assert begun.wait(20)
        beside.ask_to_stop()
    go_on.set()
    assert ended.wait(20)
    assert [type(error) for error in seen] == [Stopped]
    assert handle.state() in (State.RETRY_WAITING, State.QUEUED), "handed back, and perhaps due already"


def test_nor_does_one_that_waits_for_a_store_that_is_away(
    app: App, new_app: NewApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere, ended = new_app(), threading.Event()
    seen: list[BaseException] = []

    @elsewhere.job("lingers")
    def lingers(ctx: SyncContext) -> None:
        try:
            ctx.step("quick", lambda: 1)
        except BaseException as error:
            seen.append(error)
        finally:
            ended.set()

    away = Away(elsewhere, monkeypatch)
    away.left["steps.save"] = 1_000_000
    with working(elsewhere, grace=0.0) as beside:
        app.enqueue("lingers")
        until(lambda: away.met["steps.save"] > 0, "it waits")
        beside.ask_to_stop()
    assert ended.wait(20)
    assert [type(error) for error in seen] == [Stopped]


@pytest.mark.parametrize("url", ["postgres"], indirect=True)  # the other has no pool that belongs to a loop
def test_a_thread_that_outlives_its_worker_does_not_keep_the_loop(
    app: App, new_app: NewApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its step was to be written when the worker left. What asks a pool of connections that has just been closed opens
    it again, and nobody closes it then: the process would never end."""
    elsewhere = new_app()

    @elsewhere.job("lingers")
    def lingers(ctx: SyncContext) -> None:
        ctx.step("quick", lambda: 1)

    held = Held(elsewhere, monkeypatch)
    leave = elsewhere._store.leave_loop

    async def leave_loop() -> None:
        await leave()
        held.go.set()
        loops = elsewhere._store._pools._loop_pools  # type: ignore[attr-defined]
        for _ in range(30):  # as long as a busy machine may take over it, or until there is another pool
            await asyncio.sleep(0.01 if not loops else 0)

    monkeypatch.setattr(elsewhere._store, "leave_loop", leave_loop)
    with working(elsewhere, grace=0.0) as beside:
        app.enqueue("lingers")
        assert held.asked.wait(20)
        beside.ask_to_stop()


# -- cancelled -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["asleep", "waiting", "asking"])
def test_a_job_that_waits_can_be_cancelled(app: App, where: str) -> None:
    seen: list[str] = []

    @app.job()
    async def waits(ctx: Context) -> None:
        await ctx.step("first", seen.append, "first")
        if where == "asleep":
            await ctx.sleep("1h")
        elif where == "waiting":
            await ctx.wait_for_event("go")
        else:
            await ctx.approval("go", summary="Go on")
        seen.append("went on")

    handle = waits.enqueue()
    work_off(app)
    handle.cancel("changed my mind")
    app.send_event("go")
    assert app.approvals.list() == []
    app._store.run(app._store.clock.set(timedelta(hours=2), None))
    work_off(app)
    assert (handle.state(), seen) == (State.CANCELLED, ["first"])
    assert [event.type for event in handle.history()][-1] == "cancel"


def test_a_job_cancelled_inside_a_step_comes_no_further(app: App, new_app: NewApp) -> None:
    elsewhere, begun = new_app(), threading.Event()
    seen: list[str] = []

    async def lingers() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            seen.append("interrupted")

    @elsewhere.job("pays")
    async def pays(ctx: Context) -> None:
        try:
            await ctx.step("charge", lingers)
        except BaseException:
            await ctx.step("instead", seen.append, "instead")

    with working(elsewhere):
        handle = app.enqueue("pays")
        assert begun.wait(20)
        handle.cancel()
        until(lambda: seen, "it is interrupted")
    assert (handle.state(), seen, told(app, handle.id)) == (State.CANCELLED, ["interrupted"], [])

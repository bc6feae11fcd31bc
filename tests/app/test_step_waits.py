"""Waiting for events: no event is missed, whatever else wakes the job (HF-6)."""

from __future__ import annotations

import asyncio
import threading

import pytest

from holdfast import App, Context, State
from holdfast.app.declarations import declare
from holdfast.errors import InvalidSetting
from holdfast.kind import Options
from tests.app.conftest import NewApp
from tests.app.test_steps import steps_of
from tests.support.waiting import until
from tests.support.workers import work_off, working

pytestmark = pytest.mark.req("HF-6")


def test_event_sent_while_its_job_resumes_is_received(app: App, new_app: NewApp) -> None:
    """An operator requeued the job, and the attempt has read its steps, where the wait is still open. The event arrives
    then and finds no sleeping job to wake."""
    worker_app, started, release = new_app(), threading.Event(), threading.Event()

    @worker_app.job("waits")
    async def waits(ctx: Context) -> int:
        await ctx.step("first", lambda: 1)
        if ctx.attempt == 2:
            started.set()
            await asyncio.to_thread(release.wait, 20)
        number: int = (await ctx.wait_for_event("number")).data["n"]
        return number

    with working(worker_app):
        handle = app.enqueue("waits")
        until(lambda: handle.state() is State.RETRY_WAITING, "the job waits")
        app.jobs.reschedule(handle.id)
        assert started.wait(20)
        assert app.send_event("number", {"n": 7}).woke == 0
        release.set()
        assert handle.result(timeout=20) == 7


def test_job_woken_without_an_event_keeps_waiting(app: App) -> None:
    @app.job()
    async def waits(ctx: Context) -> int:
        number: int = (await ctx.wait_for_event("number", timeout="1h")).data["n"]
        return number

    handle = waits.enqueue()
    work_off(app)
    (before,) = steps_of(app, handle.id)
    app.jobs.reschedule(handle.id)
    work_off(app)
    (after,) = steps_of(app, handle.id)
    assert (handle.state(), after.wake_at) == (State.RETRY_WAITING, before.wake_at)
    assert app.send_event("number", {"n": 7}).woke == 1
    work_off(app)
    assert handle.result(timeout=5) == 7


def test_wait_uses_the_criteria_of_the_current_code(app: App, new_app: NewApp) -> None:
    """The wait keeps its position, but its criteria may change between attempts."""
    newer = new_app()
    for each, number in ((app, 1), (newer, 2)):

        @each.job("waits")
        async def waits(ctx: Context, number: int = number) -> int:
            return int((await ctx.wait_for_event("number", match={"n": number})).data["n"])

    handle = app.enqueue("waits")
    work_off(app)
    app.jobs.reschedule(handle.id)
    work_off(newer)
    assert app.send_event("number", {"n": 1}).woke == 0
    assert app.send_event("number", {"n": 2}).woke == 1
    work_off(newer)
    assert handle.result(timeout=5) == 2


@pytest.mark.slow
def test_repeated_waits_receive_each_event_once(app: App) -> None:
    """Each wait takes the next event, and no event is taken twice."""

    @app.job()
    async def adds(ctx: Context) -> list[int]:
        return [int((await ctx.wait_for_event("number")).data["n"]) for _ in range(50)]

    handle = adds.enqueue()
    for n in range(50):
        app.send_event("number", {"n": n})
    with working(app):
        assert handle.result(timeout=60) == list(range(50))


@pytest.mark.req("CX-5")
def test_denied_job_is_not_run(app: App) -> None:
    """An approval before the handler has no handler that could continue after a denial."""
    with pytest.raises(InvalidSetting) as refused:
        app.job("pays", requires_approval={"on_deny": "resume"})
    assert refused.value.code == "invalid_approval"

    ran: list[int] = []

    def pays() -> None:
        ran.append(1)

    # As an older release, which accepted the option, declared it.
    declare(app, pays, "pays", Options(), None, approval={"on_deny": "resume"})
    handle = app.enqueue("pays")
    work_off(app)
    app.approvals.deny(app.approvals.list()[0].id, by="bob")
    work_off(app)
    job = handle.get()
    assert (job.state, job.error_code, job.error_message) == (State.DEAD_LETTER, "denied", "it was denied by bob")
    assert ran == []

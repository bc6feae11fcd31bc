"""Handles: read, wait, fetch the result, cancel; in sync and async form."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from holdfast import App, Handle, Retry, State, SyncContext
from holdfast.app.internals import session_of
from holdfast.errors import Conflict, InvalidInput, InvalidSetting, JobFailed, NotFound, WaitTimeout
from holdfast.kind import Kind
from tests.app.conftest import NewApp
from tests.support.stores import forward
from tests.support.waiting import until
from tests.support.workers import QUICK, work_off, working

pytestmark = pytest.mark.req("HF-5", "JF-6")


def declare(app: App) -> Kind[[int], int]:
    @app.job(retry=Retry(max_attempts=1))
    def double(n: int) -> int:
        if n < 0:
            raise ValueError(f"{n} is negative")
        return 2 * n

    return double


def test_result_is_the_return_value_of_the_handler(app: App) -> None:
    handle = declare(app).enqueue(4)
    work_off(app)
    assert (handle.result(), handle.state(), handle.wait().state) == (8, State.SUCCEEDED, State.SUCCEEDED)
    assert [event.name for event in handle.history()] == ["job.enqueue", "job.take", "job.succeed"]


def test_handler_without_a_return_value_has_no_result(app: App) -> None:
    @app.job()
    def nothing() -> None: ...

    handle = nothing.enqueue()
    work_off(app)
    handle.wait(timeout=5)
    assert session_of(app).run(session_of(app).store.jobs.result(handle.id, "default")) is None
    handle.result()


def test_result_waits_for_a_worker_in_another_process(app: App, new_app: NewApp) -> None:
    worker_app = new_app()
    declare(worker_app)
    double = declare(app)
    with working(worker_app):
        assert [handle.result(timeout=20) for handle in app.enqueue_many(map(double.prepare, range(5)))] == [
            0,
            2,
            4,
            6,
            8,
        ]


async def test_async_result_waits_for_a_worker_in_another_process(app: App, new_app: NewApp) -> None:
    worker_app = new_app()
    declare(worker_app)
    double = declare(app)
    with working(worker_app):
        assert await (await double.aenqueue(4)).aresult(timeout=20) == 8
        assert await double.enqueue(5) == 10
        assert (await (await double.aenqueue(6)).await_end("20s")).state is State.SUCCEEDED
        with pytest.raises(JobFailed, match=r"dead_letter: -1 is negative \(ValueError\)"):
            await (await double.aenqueue(-1))
    await app.aclose()


def test_wait_timeout_raises_and_leaves_the_job(app: App) -> None:
    handle = declare(app).enqueue(4)
    for timeout in (0, 0.05, "50ms"):
        with pytest.raises(WaitTimeout) as caught:
            handle.wait(timeout=timeout)
        assert caught.value.code == "wait_timeout"
    with pytest.raises(WaitTimeout):
        handle.result(timeout=0)
    assert handle.state() is State.QUEUED


async def test_async_wait_timeout_and_cancel(app: App) -> None:
    handle = await declare(app).aenqueue(4)
    with pytest.raises(WaitTimeout):
        await handle.aresult(timeout=0.05)
    assert (await handle.acancel("never mind")).state is State.CANCELLED
    with pytest.raises(JobFailed, match="is cancelled"):
        await handle
    with pytest.raises(Conflict):
        await handle.acancel()
    await app.aclose()


def test_result_of_a_failed_job_raises(app: App) -> None:
    handle = declare(app).enqueue(-1)
    work_off(app)
    with pytest.raises(JobFailed) as caught:
        handle.result(timeout=5)
    assert caught.value.code == "job_failed"
    assert "-1 is negative" in str(caught.value)
    assert handle.wait().state is State.DEAD_LETTER


def test_cancel_returns_the_state_or_raises_a_conflict(app: App) -> None:
    handle = declare(app).enqueue(4)
    assert handle.cancel("wrong month").state is State.CANCELLED
    assert handle.history()[-1].meta == {"reason": "wrong month"}
    with pytest.raises(Conflict) as caught:
        handle.cancel()
    assert caught.value.code == "already_finished"
    work_off(app)
    assert handle.get().attempt == 0


def test_handle_of_another_tenant_finds_nothing(app: App) -> None:
    handle = declare(app).enqueue(4)
    stranger: Handle[int] = Handle(handle.id, "acme", True, None, session_of(app), int)
    for call in (stranger.get, stranger.state, stranger.cancel, lambda: stranger.wait(0)):
        with pytest.raises(NotFound):
            call()
    assert stranger.history() == []
    with pytest.raises(NotFound):
        app.jobs.get(handle.id, tenant="acme")


def test_cancelled_running_job_stays_cancelled(app: App, new_app: NewApp) -> None:
    started, release = threading.Event(), threading.Event()
    worker_app = new_app()

    @worker_app.job()
    def slow() -> str:
        started.set()
        assert release.wait(20)
        return "done"

    with working(worker_app, **QUICK) as background:
        handle = app.enqueue("slow")
        assert started.wait(20)
        handle.cancel("changed my mind")
        release.set()
        until(lambda: background.worker and not background.worker._slots.running, "the handler has ended")
    assert [event.type for event in handle.history()] == ["enqueue", "take", "cancel"]
    with pytest.raises(JobFailed):
        handle.result(timeout=5)


def test_operator_calls_answer_for_each_job(app: App) -> None:
    double = declare(app)
    dead, waiting = double.enqueue(-1), double.using(queue="other").enqueue(1)
    work_off(app)
    verdicts = app.jobs.redrive(dead.id, waiting.id, reason="again")
    assert [(v.refused, v.reason) for v in verdicts] == [(False, None), (True, "not_dead")]
    work_off(app)
    assert [v.reason for v in app.jobs.discard(dead.id, reason=" ")] == ["reason_required"]
    assert [v.state for v in app.jobs.discard(dead.id, reason="gone")] == [State.CANCELLED]
    assert [v.refused for v in app.jobs.cancel(waiting.id)] == [False]
    assert app.health.get().verdict == "ok"


@pytest.mark.req("JF-5")
def test_handle_reschedules_its_job(app: App) -> None:
    handle = declare(app).enqueue(-1)
    now = forward(session_of(app).store)
    assert handle.reschedule(delay="1h").state is State.QUEUED
    assert handle.get().due_at == now + timedelta(hours=1)
    work_off(app)
    assert handle.get().attempt == 0
    handle.reschedule(now + timedelta(minutes=5), max_attempts=1, reason="sooner")
    assert (handle.get().due_at, handle.get().max_attempts) == (now + timedelta(minutes=5), 1)
    handle.reschedule()
    work_off(app)
    assert handle.state() is State.DEAD_LETTER
    for refused in (handle.reschedule, lambda: asyncio.run(areschedule(app, handle))):
        with pytest.raises(Conflict) as caught:
            refused()
        assert caught.value.code == "not_waiting"
    assert [v.reason for v in app.jobs.reschedule(handle.id, delay=5)] == ["not_waiting"]
    assert [v.state for v in app.jobs.redrive(handle.id, max_attempts=3)] == [State.QUEUED]
    assert handle.get().max_attempts == 3


async def areschedule(app: App, handle: Handle[int]) -> None:
    try:
        await handle.areschedule(delay=5)
    finally:
        await session_of(app).store.leave_loop()


@pytest.mark.req("JF-5")
def test_invalid_times_are_refused(app: App) -> None:
    handle = declare(app).enqueue(1)
    bad: list[tuple[dict[str, Any], str]] = [
        ({"at": datetime(2030, 1, 1), "delay": 3}, "conflicting_options"),
        ({"at": datetime(2030, 1, 1)}, "invalid_time"),
        ({"delay": "soon"}, "invalid_duration"),
        ({"max_attempts": 0}, "invalid_retry"),
    ]
    for options, code in bad:
        with pytest.raises(InvalidSetting) as caught:
            handle.reschedule(**options)
        assert caught.value.code == code


@pytest.mark.req("JF-6")
def test_handle_can_be_created_from_a_stored_id(app: App) -> None:
    @app.job()
    def born(name: str) -> datetime:
        return datetime(1815, 12, 10, tzinfo=UTC)

    id = born.enqueue("Ada").id
    other_tenant = born.using(tenant="acme").enqueue("Bo").id
    work_off(app)
    assert born.handle(id).result(timeout=5) == datetime(1815, 12, 10, tzinfo=UTC)
    assert app.jobs.handle(id.upper()).result(timeout=5) == "1815-12-10T00:00:00Z"
    assert app.jobs.handle(other_tenant, tenant="acme").state() == State.SUCCEEDED
    for handle in (app.jobs.handle(other_tenant), app.jobs.handle(str(UUID(int=7)))):
        with pytest.raises(NotFound):
            handle.result(timeout=5)
    with pytest.raises(InvalidInput, match="not a job id"):
        app.jobs.handle("7")


def works(app: App) -> Kind[[], None]:
    @app.job(retry=Retry(max_attempts=1))
    def works(ctx: SyncContext) -> None:
        ctx.checkpoint.save({"row": 7}, "position")
        ctx.progress(0.5)
        ctx.artifact("report.csv", "s3://bucket/report.csv", {"rows": 7})
        assert ctx.step("count", lambda: 7) == 7
        raise ValueError("enough")

    return works


def read(handle: Handle[None]) -> dict[str, Any]:
    return {
        "attempts": [(each.attempt, each.error_code) for each in handle.attempts()],
        "artifacts": [(each.name, each.ref, each.meta) for each in handle.artifacts()],
        "references": handle.references().source_ref,
        "steps": [(each.n, each.name, each.value) for each in handle.steps()],
        "checkpoints": handle.checkpoints(),
        "why": [reason.code for reason in handle.why().reasons],
    }


async def aread(handle: Handle[None]) -> dict[str, Any]:
    return {
        "attempts": [(each.attempt, each.error_code) for each in await handle.aattempts()],
        "artifacts": [(each.name, each.ref, each.meta) for each in await handle.aartifacts()],
        "references": (await handle.areferences()).source_ref,
        "steps": [(each.n, each.name, each.value) for each in await handle.asteps()],
        "checkpoints": await handle.acheckpoints(),
        "why": [reason.code for reason in (await handle.awhy()).reasons],
    }


def test_job_details_are_read_through_its_handle(app: App) -> None:
    handle = works(app).using(source_ref="s3://bucket/in.csv").enqueue()
    work_off(app)
    details = read(handle)
    assert details.pop("why") == ["dead_letter"]
    assert details == {
        "attempts": [(1, "ValueError")],
        "artifacts": [("report.csv", "s3://bucket/report.csv", {"rows": 7})],
        "references": "s3://bucket/in.csv",
        "steps": [(1, "count", 7)],
        "checkpoints": {"position": {"row": 7}},
    }

    async def both() -> tuple[dict[str, Any], dict[str, Any]]:
        try:
            return await aread(handle), read(handle)
        finally:
            await app.aclose()

    one, other = asyncio.run(both())
    assert one == other


def test_every_read_of_an_unknown_job_raises_not_found(app: App) -> None:
    stranger: Handle[int] = Handle(declare(app).enqueue(4).id, "acme", True, None, session_of(app), int)
    reads = (stranger.attempts, stranger.artifacts, stranger.references, stranger.steps, stranger.checkpoints)
    for call in (*reads, stranger.why, stranger.redrive):
        with pytest.raises(NotFound):
            call()


def test_dead_letter_is_redriven_through_its_handle(app: App) -> None:
    handle = works(app).enqueue()
    with pytest.raises(Conflict):
        handle.redrive()
    work_off(app)
    assert handle.redrive("mended", max_attempts=1).state is State.QUEUED
    assert handle.history()[-1].meta["reason"] == "mended"
    work_off(app)
    with pytest.raises(Conflict) as caught:
        handle.redrive(from_step="unknown")
    assert caught.value.code == "no_such_step"
    assert handle.redrive(from_step="count").state is State.QUEUED
    assert handle.steps() == []
    work_off(app)

    async def again() -> State | None:
        try:
            return (await handle.aredrive(from_step=1)).state
        finally:
            await app.aclose()

    assert asyncio.run(again()) is State.QUEUED
    assert len(handle.attempts()) == 3

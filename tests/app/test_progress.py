"""`ctx.progress`: shown to people, written about once a second, and the last report is always kept."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from holdfast import App, Context, Handle, Progress, Retry, State, SyncContext
from holdfast.engine.job import Claim
from holdfast.engine.steps import RESERVED
from holdfast.errors import StoreUnavailable
from holdfast.worker.writers import ProgressWriter
from tests.app.conftest import NewApp
from tests.support.waiting import until
from tests.support.workers import work_off, working
from tests.unit.test_settlement import CLAIM

pytestmark = pytest.mark.req("CX-8", "CX-15")


def test_progress_is_visible_while_the_job_runs(app: App, new_app: NewApp) -> None:
    worker_app, release = new_app(), threading.Event()

    @worker_app.job()
    def reads(ctx: SyncContext) -> None:
        ctx.progress(0.25, "page 1")
        release.wait(30)

    with working(worker_app):
        handle = app.enqueue("reads")
        try:
            until(lambda: handle.progress() == Progress(0.25, "page 1", 1), "the progress is there")
            assert handle.state() is State.IN_PROGRESS
        finally:
            release.set()
        handle.wait(timeout=20)
    assert handle.progress() == Progress(0.25, "page 1", 1)


@pytest.mark.parametrize("form", ["sync", "async"])
@pytest.mark.parametrize("end", ["returns", "raises"])
def test_last_report_is_kept_however_the_job_ends(app: App, form: str, end: str) -> None:
    def sync_handler(ctx: SyncContext) -> None:
        for number in range(500):
            ctx.progress(number / 500)
        ctx.progress(1, "all read")
        if end == "raises":
            raise ValueError("after all")

    async def async_handler(ctx: Context) -> None:
        for number in range(500):
            await ctx.progress(number / 500)
        await ctx.progress(1, "all read")
        if end == "raises":
            raise ValueError("after all")

    app.job("reads", retry=Retry(max_attempts=1))(sync_handler if form == "sync" else async_handler)
    handle = app.enqueue("reads")
    work_off(app)
    assert handle.get().state.finished
    assert handle.progress() == Progress(1.0, "all read", 1)


def test_progress_writes_no_ledger_event(app: App) -> None:
    @app.job()
    def reads(ctx: SyncContext) -> None:
        ctx.progress(0.5)

    handle = reads.enqueue()
    work_off(app)
    assert [event.type for event in handle.history()] == ["enqueue", "take", "succeed"]


async def test_writer_writes_one_report_at_a_time_and_keeps_the_latest() -> None:
    written: list[str] = []

    async def write(claim: Claim, report: str) -> bool:
        written.append(report)
        return True

    reporter = ProgressWriter(CLAIM, write, every=0.05)
    for number in range(1000):
        reporter(str(number))
        if number % 100 == 0:
            await asyncio.sleep(0.01)
    await reporter.close()
    assert written[-1] == "999"
    assert len(written) < 12


async def test_pending_report_is_written_before_the_job_ends() -> None:
    written: list[str] = []
    written_event = asyncio.Event()

    async def write(claim: Claim, report: str) -> bool:
        written.append(report)
        if report == "second":
            written_event.set()
        return True

    reporter = ProgressWriter(CLAIM, write, every=0.02)
    reporter("first")
    reporter("second")  # within the same interval: it has to wait
    await asyncio.wait_for(written_event.wait(), 10)
    assert written[-1] == "second"


async def test_report_is_written_after_an_outage() -> None:
    written: list[str] = []
    written_event = asyncio.Event()
    errors = [StoreUnavailable("unreachable"), StoreUnavailable("unreachable")]

    async def write(claim: Claim, report: str) -> bool:
        if errors:
            raise errors.pop()
        written.append(report)
        written_event.set()
        return True

    reporter = ProgressWriter(CLAIM, write, every=0.01)
    reporter("report")
    await asyncio.wait_for(written_event.wait(), 10)
    await reporter.close()
    assert written == ["report"]


async def test_hanging_store_does_not_delay_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.worker.writers.CLOSE_TIMEOUT", 0.05)

    async def write(claim: Claim, report: str) -> bool:
        await asyncio.sleep(60)
        return True

    reporter = ProgressWriter(CLAIM, write)
    reporter("report")
    await asyncio.wait_for(reporter.close(), 10)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), "half", True])
def test_invalid_fractions_are_refused(app: App, fraction: Any) -> None:
    @app.job()
    def reads(ctx: SyncContext) -> None:
        ctx.progress(fraction)

    handle = reads.enqueue()
    work_off(app)
    assert handle.get().error_code == "invalid_progress"


def test_hostile_messages_are_stored_as_far_as_possible(app: App) -> None:
    @app.job()
    def reads(ctx: SyncContext) -> None:
        ctx.progress(message="a\x00b\ud800c" + "x" * 10_000)

    handle = reads.enqueue()
    work_off(app)
    progress = handle.progress()
    assert progress is not None
    assert progress.message is not None
    assert len(progress.message) <= 500
    assert progress.message[0] == "a"


def test_progress_checkpoint_name_is_reserved(app: App) -> None:
    @app.job(retry=Retry(max_attempts=1))
    def saves(ctx: SyncContext) -> None:
        ctx.checkpoint.save(1, RESERVED)

    @app.job(retry=Retry(max_attempts=1))
    def confuses(ctx: SyncContext) -> None:
        ctx.checkpoint.save("where", {"row": 1})  # type: ignore[arg-type]

    handle: Handle[None] = saves.enqueue()
    other = confuses.enqueue()
    assert handle.progress() is None
    work_off(app)
    assert (handle.get().error_code, other.get().error_code) == ("reserved_name", "invalid_name")

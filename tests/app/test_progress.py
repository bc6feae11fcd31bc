"""How far a job says it is: for people to see, about once a second, the last word always."""

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


def test_progress_is_seen_while_the_job_runs(app: App, new_app: NewApp) -> None:
    elsewhere, go_on = new_app(), threading.Event()

    @elsewhere.job()
    def reads(ctx: SyncContext) -> None:
        ctx.progress(0.25, "page 1")
        go_on.wait(30)

    with working(elsewhere):
        handle = app.enqueue("reads")
        try:
            until(lambda: handle.progress() == Progress(0.25, "page 1", 1), "the progress is there")
            assert handle.state() is State.IN_PROGRESS
        finally:
            go_on.set()
        handle.wait(timeout=20)
    assert handle.progress() == Progress(0.25, "page 1", 1)


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("end", ["returns", "raises"])
def test_the_last_word_is_kept_however_it_ends(app: App, colour: str, end: str) -> None:
    def sync(ctx: SyncContext) -> None:
        for number in range(500):
            ctx.progress(number / 500)
        ctx.progress(1, "all read")
        if end == "raises":
            raise ValueError("after all")

    async def coloured(ctx: Context) -> None:
        for number in range(500):
            await ctx.progress(number / 500)
        await ctx.progress(1, "all read")
        if end == "raises":
            raise ValueError("after all")

    app.job("reads", retry=Retry(max_attempts=1))(sync if colour == "sync" else coloured)
    handle = app.enqueue("reads")
    work_off(app)
    assert handle.get().state.finished
    assert handle.progress() == Progress(1.0, "all read", 1)


def test_it_costs_the_hot_row_nothing_and_the_ledger_neither(app: App) -> None:
    @app.job()
    def reads(ctx: SyncContext) -> None:
        ctx.progress(0.5)

    handle = reads.enqueue()
    work_off(app)
    assert [event.type for event in handle.history()] == ["enqueue", "take", "succeed"]


async def test_at_most_one_is_written_at_a_time_and_the_latest_wins() -> None:
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


async def test_what_is_said_long_before_the_end_is_written_without_waiting_for_it() -> None:
    written: list[str] = []
    there = asyncio.Event()

    async def write(claim: Claim, report: str) -> bool:
        written.append(report)
        if report == "second":
            there.set()
        return True

    reporter = ProgressWriter(CLAIM, write, every=0.02)
    reporter("first")
    reporter("second")  # the same second: it has to wait
    await asyncio.wait_for(there.wait(), 10)
    assert written[-1] == "second"


async def test_an_outage_loses_nothing_but_time() -> None:
    written: list[str] = []
    there = asyncio.Event()
    away = [StoreUnavailable("away"), StoreUnavailable("away")]

    async def write(claim: Claim, report: str) -> bool:
        if away:
            raise away.pop()
        written.append(report)
        there.set()
        return True

    reporter = ProgressWriter(CLAIM, write, every=0.01)
    reporter("word")
    await asyncio.wait_for(there.wait(), 10)
    await reporter.close()
    assert written == ["word"]


async def test_a_store_that_hangs_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.worker.writers.CLOSE_TIMEOUT", 0.05)

    async def write(claim: Claim, report: str) -> bool:
        await asyncio.sleep(60)
        return True

    reporter = ProgressWriter(CLAIM, write)
    reporter("word")
    await asyncio.wait_for(reporter.close(), 10)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), "half", True])
def test_a_fraction_that_is_none_is_refused(app: App, fraction: Any) -> None:
    @app.job()
    def reads(ctx: SyncContext) -> None:
        ctx.progress(fraction)

    handle = reads.enqueue()
    work_off(app)
    assert handle.get().error_code == "invalid_progress"


def test_hostile_words_are_kept_as_far_as_they_can_be(app: App) -> None:
    @app.job()
    def reads(ctx: SyncContext) -> None:
        ctx.progress(message="a\x00b\ud800c" + "x" * 10_000)

    handle = reads.enqueue()
    work_off(app)
    found = handle.progress()
    assert found is not None
    assert found.message is not None
    assert len(found.message) <= 500
    assert found.message[0] == "a"


def test_its_name_is_reserved(app: App) -> None:
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

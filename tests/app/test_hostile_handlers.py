"""Handlers that could harm other jobs: results the store refuses, exits in their own tasks, open transactions."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

from holdfast import App, Backoff, Context, HoldfastError, Retry, State, SyncContext
from holdfast.app.internals import session_of
from holdfast.engine.job import Claim
from holdfast.engine.outcome import Outcome, Settled
from holdfast.worker import executor, slots
from holdfast.worker.slots import Slots
from tests.support.waiting import until
from tests.support.workers import QUICK, work_off, working

NO_RETRY = Retry(max_attempts=1)
PATIENT = Retry(max_attempts=3, backoff=Backoff(base=0.01))


def refuse(url: str, value: str) -> None:
    """Make the database refuse a result, as a user's constraint would."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
            file.execute(
                f"CREATE TRIGGER no_such_result BEFORE INSERT ON holdfast_result WHEN NEW.value = '\"{value}\"'"
                " BEGIN SELECT RAISE(ABORT, 'not this one'); END"
            )
    else:
        with psycopg.connect(url) as server:
            server.execute(
                f"alter table holdfast.result add constraint no_such_result check (value::text <> '\"{value}\"')"
            )


class Broken(logging.Handler):
    """Fails from the first log line about a job on."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("Job"):
            raise OSError("the disk of the log is full")


@pytest.mark.req("CX-15")
def test_failing_log_handler_does_not_change_job_outcomes(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.job(retry=NO_RETRY)
    async def halve(number: int) -> float:
        return 1 / number

    handles = [halve.enqueue(number) for number in (2, 0, 4)]
    broken, loggers = Broken(), [logging.getLogger(name) for name in ("holdfast.jobs", "holdfast.worker")]
    caplog.set_level(logging.INFO, "holdfast.jobs")
    for each in loggers:
        each.addHandler(broken)
    try:
        work_off(app)
    finally:
        for each in loggers:
            each.removeHandler(broken)
    assert [handle.get().state for handle in handles] == [State.SUCCEEDED, State.DEAD_LETTER, State.SUCCEEDED]
    assert handles[1].get().error_code == "ZeroDivisionError"


@pytest.mark.req("CX-15")
def test_internal_error_dead_letters_only_its_job(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job()
    async def echo(word: str) -> str:
        return word

    handles = [echo.enqueue(word) for word in ("one", "two")]
    usual = executor.execute

    async def broken(*args: Any) -> Outcome | Settled:
        outcome = await usual(*args)
        if "one" in args[1].payload:
            raise KeyError("internal error")
        return outcome

    monkeypatch.setattr(slots, "execute", broken)
    work_off(app)
    assert [handle.get().state for handle in handles] == [State.DEAD_LETTER, State.SUCCEEDED]
    assert handles[0].get().error_code == "outcome_refused"
    assert "internal error" in caplog.text


@pytest.mark.req("CX-15", "SC-19")
@pytest.mark.parametrize("by_tick", [False, True], ids=["worker", "tick"])
def test_refused_outcome_does_not_affect_other_jobs(app: App, url: str, by_tick: bool) -> None:
    @app.job()
    async def echo(word: str) -> str:
        return word

    handles = [echo.enqueue(word) for word in ("one", "poison", "three")]
    refuse(url, "poison")
    if by_tick:
        app.tick()
    else:
        work_off(app)
    assert [handle.get().state for handle in handles] == [State.SUCCEEDED, State.DEAD_LETTER, State.SUCCEEDED]
    dead_letter = handles[1].get()
    assert dead_letter.error_code == "outcome_refused"
    assert "succeeded" in (dead_letter.error_message or "")
    assert dead_letter.attempt == 1


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


@pytest.mark.req("CX-15", "DP-21")
def test_unusable_outcome_is_a_failure(app: App) -> None:
    @app.job(retry=Retry(max_attempts=1))
    async def ends(ctx: Context, how: str) -> None:
        match how:
            case "path":
                ctx.result_ref = cast(str, Path("report.csv"))
            case "nul":
                ctx.result_ref = "a\0b"
            case "number":
                raise HoldfastError("no", code=cast(str, 5))
            case _:
                raise Unspeakable

    ways = {"path": "invalid_name", "nul": "invalid_name", "number": "5", "exit": "Unspeakable"}
    handles = {way: ends.enqueue(way) for way in ways}
    work_off(app)
    for way, code in ways.items():
        job = handles[way].get()
        assert job.state is State.DEAD_LETTER, way
        assert (job.error_code or "").endswith(code)


@pytest.mark.req("DP-21", "HF-3")
def test_result_reference_is_stored_with_a_transaction(app: App) -> None:
    @app.job()
    async def makes(ctx: Context) -> None:
        async with ctx.transaction(result={"rows": 3}):
            ctx.result_ref = "s3://reports/1.csv"

    handle = makes.enqueue()
    work_off(app)
    result = session_of(app).run(session_of(app).store.jobs.result(handle.id, handle.tenant))
    assert result is not None
    assert (result.value, result.ref) == ({"rows": 3}, "s3://reports/1.csv")


@pytest.mark.req("CX-15", "SC-19")
@pytest.mark.parametrize("by_tick", [False, True], ids=["worker", "tick"])
def test_exit_in_a_task_of_the_handler_does_not_end_the_worker(app: App, by_tick: bool) -> None:
    async def leave() -> None:
        sys.exit(3)

    @app.job(retry=Retry(max_attempts=1))
    async def exits() -> None:
        await asyncio.gather(leave(), asyncio.sleep(60))

    @app.job()
    async def stays() -> str:
        await asyncio.sleep(0.1)
        return "here"

    exiting, staying = exits.enqueue(), stays.enqueue()
    if by_tick:
        app.tick()
    else:
        app.run_worker(**(QUICK | {"burst": True}))
    assert (exiting.get().state, exiting.get().error_code) == (State.DEAD_LETTER, "SystemExit")
    assert staying.result(timeout=5) == "here"


@pytest.mark.req("JF-5", "SC-19")
def test_handler_that_cancels_its_own_task_fails(app: App) -> None:
    """The worker did not stop it: handed back, it would start again for ever at no cost."""

    @app.job(retry=Retry(max_attempts=1))
    async def gives_up() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(60)

    handle = gives_up.enqueue()
    work_off(app)
    job = handle.get()
    assert (job.state, job.attempt) == (State.DEAD_LETTER, 1)
    assert (job.error_code or "").endswith("CancelledError")


@pytest.mark.req("SC-13", "CX-15")
async def test_cancelled_worker_hands_back_running_jobs(app: App) -> None:
    """As a web server cancels its tasks when it ends, and asyncio on Ctrl-C."""
    stop_reasons: list[Any] = []
    started = asyncio.Event()

    @app.job(retry=PATIENT)
    async def slow(ctx: Context) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            stop_reasons.append(ctx.stop_reason)

    handle = await slow.aenqueue()
    running = asyncio.create_task(app.worker(**QUICK).run())
    await asyncio.wait_for(started.wait(), 20)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 20)
    assert stop_reasons == ["worker_stopped"]
    events = await handle.ahistory()
    assert "worker_stopped" in [event.meta.get("reason") for event in events]
    job = await handle.aget()
    assert (job.crashes, job.retries) == (0, 0)
    await asyncio.to_thread(until, lambda: app.health.get().lease_active == 0, "its lease is closed")
    await app.aclose()


@pytest.mark.req("HF-3", "CX-15")
def test_transaction_left_open_does_not_block_the_worker(app: App, url: str) -> None:
    """The job is completed in it but not committed: settling that job would wait for its row."""
    connections: list[Any] = []

    @app.job(retry=Retry(max_attempts=1))
    def leaves(ctx: SyncContext) -> None:
        if url.startswith("sqlite"):
            mine: Any = sqlite3.connect(url.removeprefix("sqlite:///"), check_same_thread=False)
            mine.execute("BEGIN IMMEDIATE")
        else:
            mine = psycopg.connect(url)
        connections.append(mine)  # as a pool or a global would keep it
        ctx.complete(connection=mine)

    handle = leaves.enqueue()
    work_off(app)
    assert (handle.get().state, handle.get().error_code) == (State.DEAD_LETTER, "not_committed")
    connections[0].close()


@pytest.mark.req("SC-14", "CX-15")
def test_log_directory_may_have_any_name(app: App, tmp_path: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe"))
    odd.mkdir()
    handle = app.command("true", ["true"], log_dir=odd).enqueue()
    work_off(app)
    assert handle.get().state is State.SUCCEEDED


@pytest.mark.req("CX-15", "SC-19")
def test_exchange_that_fails_half_way_loses_no_job(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claimed jobs that were not started are under a live lease: no other worker would ever take them."""
    usual, failures = Slots.start, [MemoryError(), MemoryError()]

    def start(slots: Slots, claims: Iterable[Claim]) -> None:
        first, *others = claims
        usual(slots, [first])
        if others and failures:
            raise failures.pop()
        usual(slots, others)

    monkeypatch.setattr(Slots, "start", start)

    @app.job()
    async def add(a: int) -> int:
        return a + 1

    handles = [add.enqueue(number) for number in range(5)]
    with working(app):
        assert [handle.result(timeout=20) for handle in handles] == [1, 2, 3, 4, 5]
    assert not failures


@pytest.mark.req("JF-6", "CX-15")
def test_async_handler_cannot_block_the_loop_waiting_for_a_job(app: App) -> None:
    """The same loop would have to run the child."""

    @app.job()
    async def child() -> str:
        return "done"

    @app.job(retry=Retry(max_attempts=1))
    async def parent(blocking: bool) -> str:
        if blocking:
            later = await child.using(delay="1h").aenqueue()
            return later.result(timeout=30)
        return await child.enqueue().aresult(timeout=30)

    blocks, waits = parent.enqueue(True), parent.enqueue(False)
    work_off(app)
    assert (blocks.get().state, blocks.get().error_code) == (State.DEAD_LETTER, "running_loop")
    assert waits.result(timeout=1) == "done"


@pytest.mark.req("JF-5")
def test_error_of_the_program_is_not_retried(app: App) -> None:
    def two(first: int, second: int) -> int:
        return len(first)  # type: ignore[arg-type]

    @app.job(name="call")
    def call(ctx: SyncContext) -> None:
        ctx.step("two", two, 1)  # type: ignore[call-overload]  # a missing argument

    @app.job(name="body")
    def body(ctx: SyncContext) -> None:
        ctx.step("two", two, 1, 2)

    @app.job(name="unnamed")
    async def unnamed() -> None:
        undefined_name()  # type: ignore[name-defined]  # noqa: F821

    @app.job(name="wrapped", retry=Retry(retry_on=(NameError,)))
    async def wrapped() -> None:
        undefined_name()  # type: ignore[name-defined]  # noqa: F821

    handles = {kind.name: kind.enqueue() for kind in (call, body, unnamed, wrapped)}
    work_off(app)
    ended = {name: (handle.get().state, handle.get().error_code) for name, handle in handles.items()}
    assert ended == {
        "call": (State.DEAD_LETTER, "TypeError"),
        "body": (State.RETRY_WAITING, "TypeError"),
        "unnamed": (State.DEAD_LETTER, "NameError"),
        "wrapped": (State.RETRY_WAITING, "NameError"),
    }

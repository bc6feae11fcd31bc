"""Threads for handlers: reused when idle, never waited for when stuck, and every error reaches the caller."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from typing import Any

import pytest

from holdfast.worker.threads import Threads
from tests.support.waiting import until

pytestmark = pytest.mark.req("JF-7", "CX-11")

WORD: contextvars.ContextVar[str] = contextvars.ContextVar("word", default="none")


def name() -> str:
    return threading.current_thread().name


async def test_idle_thread_is_reused() -> None:
    threads = Threads()
    first = await threads.run("k", name)
    names = {await threads.run("k", name) for _ in range(20)}
    assert names == {first}
    assert threading.current_thread().name != first


async def test_all_calls_run_at_once() -> None:
    threads, meeting = Threads(), threading.Barrier(8)
    await asyncio.gather(*(threads.run("k", lambda: meeting.wait(20)) for _ in range(8)))
    assert threads.stuck == 0


async def test_thread_gets_copy_of_callers_context() -> None:
    WORD.set("here")

    def read_context() -> str:
        seen = WORD.get()
        WORD.set("changed")
        return seen

    assert await Threads().run("k", read_context) == "here"
    assert WORD.get() == "here"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, asyncio.CancelledError])
async def test_error_reaches_caller_and_thread_survives(error: type[BaseException]) -> None:
    threads, first = Threads(), []

    def fails() -> None:
        first.append(name())
        raise error

    with pytest.raises(error):
        await threads.run("k", fails)
    assert await threads.run("k", name) == first[0]


@pytest.mark.parametrize("error", [StopIteration, GeneratorExit])
async def test_error_that_a_coroutine_cannot_raise_does_not_hang_caller(error: type[BaseException]) -> None:
    def stops() -> None:
        raise error

    with pytest.raises(RuntimeError, match=error.__name__):
        await asyncio.wait_for(Threads().run("k", stops), 10)


async def test_stuck_thread_blocks_no_other_call_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    threads, proceed = Threads(warn_after=0.01), threading.Event()
    with caplog.at_level(logging.WARNING, "holdfast.worker"):
        for _ in range(5):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await threads.run("sleeper", lambda: proceed.wait(60))
        assert threads.stuck == 5
        assert await asyncio.wait_for(threads.run("k", lambda: 3), 10) == 3
        await asyncio.sleep(0.05)
    assert "kind sleeper" in caplog.text
    proceed.set()
    until(lambda: threads.stuck == 0, "the stuck threads have returned")
    assert await threads.run("k", lambda: 4) == 4


async def test_thread_that_stops_in_time_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    threads, proceed = Threads(warn_after=0.05), threading.Event()
    with caplog.at_level(logging.WARNING, "holdfast.worker"):
        task = asyncio.create_task(threads.run("polite", lambda: proceed.wait(60)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        proceed.set()
        until(lambda: threads.stuck == 0, "the thread has returned")
        await asyncio.sleep(0.1)
    assert "polite" not in caplog.text


async def test_idle_thread_ends_after_a_while() -> None:
    threads = Threads(idle_for=0.05)
    found: list[threading.Thread] = []
    await threads.run("k", lambda: found.append(threading.current_thread()))
    until(lambda: not found[0].is_alive(), "the thread has ended")
    assert await threads.run("k", lambda: 5) == 5


def test_stuck_thread_does_not_block_process_exit() -> None:
    found: list[Any] = []

    async def run_one() -> None:
        await Threads().run("k", lambda: found.append(threading.current_thread().daemon))

    asyncio.run(run_one())
    assert found == [True]


def test_thread_that_outlives_its_loop_ends_without_error() -> None:
    threads, proceed = Threads(), threading.Event()

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await threads.run("k", lambda: proceed.wait(60))

    asyncio.run(give_up())
    proceed.set()
    until(lambda: threads.stuck == 0, "the thread has returned")


@pytest.mark.req("CX-15")
async def test_call_without_a_thread_is_not_made_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its job has failed by then and may be retried: the call would run twice."""
    threads, made = Threads(), []

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            await threads.run("k", lambda: made.append("first"))
    await threads.run("k", lambda: made.append("second"))
    await threads.run("k", lambda: made.append("third"))
    assert made == ["second", "third"]


async def test_blocked_calls_have_a_thread_each_and_hold_up_nobody() -> None:
    threads, release = Threads(), threading.Event()
    blocked = [asyncio.create_task(threads.run("k", lambda: release.wait(60))) for _ in range(100)]
    try:
        async with asyncio.timeout(20):
            assert await asyncio.gather(*(threads.run("k", lambda: 1) for _ in range(100))) == [1] * 100
        assert not any(task.done() for task in blocked)
    finally:
        release.set()
    assert await asyncio.gather(*blocked) == [True] * 100


def test_next_loop_gets_its_results_after_one_was_closed_with_calls_under_way() -> None:
    threads, release = Threads(), threading.Event()

    async def abandon() -> None:
        calls = [asyncio.create_task(threads.run("k", lambda: release.wait(60))) for _ in range(3)]
        await asyncio.sleep(0)
        assert not any(call.done() for call in calls)

    asyncio.run(abandon())
    release.set()

    async def use() -> list[str]:
        async with asyncio.timeout(20):
            return await asyncio.gather(*(threads.run("k", name) for _ in range(20)))

    assert len(asyncio.run(use())) == 20

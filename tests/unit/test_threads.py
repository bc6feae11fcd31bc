"""Threads for handlers: used again when idle, never waited for when stuck, and no error gets lost in one."""

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


async def test_an_idle_thread_is_used_again() -> None:
    threads = Threads()
    first = await threads.run("k", name)
    names = {await threads.run("k", name) for _ in range(20)}
    assert names == {first}
    assert threading.current_thread().name != first


async def test_as_many_run_at_once_as_are_asked_for() -> None:
    threads, meeting = Threads(), threading.Barrier(8)
    await asyncio.gather(*(threads.run("k", lambda: meeting.wait(20)) for _ in range(8)))
    assert threads.stuck == 0


async def test_the_callers_context_is_there() -> None:
    WORD.set("here")

    def look() -> str:
        seen = WORD.get()
        WORD.set("changed")
        return seen

    assert await Threads().run("k", look) == "here"
    assert WORD.get() == "here"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, asyncio.CancelledError])
async def test_an_error_reaches_the_caller_and_the_thread_lives_on(error: type[BaseException]) -> None:
    threads, first = Threads(), []

    def fails() -> None:
        first.append(name())
        raise error

    with pytest.raises(error):
        await threads.run("k", fails)
    assert await threads.run("k", name) == first[0]


@pytest.mark.parametrize("error", [StopIteration, GeneratorExit])
async def test_what_no_coroutine_can_be_told_does_not_hang_it(error: type[BaseException]) -> None:
    def stops() -> None:
        raise error

    with pytest.raises(RuntimeError, match=error.__name__):
        await asyncio.wait_for(Threads().run("k", stops), 10)


async def test_a_stuck_thread_takes_nobodys_place(caplog: pytest.LogCaptureFixture) -> None:
    threads, go_on = Threads(patience=0.01), threading.Event()
    with caplog.at_level(logging.WARNING, "holdfast.worker"):
        for _ in range(5):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await threads.run("sleeper", lambda: go_on.wait(60))
        assert threads.stuck == 5
        assert await asyncio.wait_for(threads.run("k", lambda: 3), 10) == 3
        await asyncio.sleep(0.05)
    assert "kind sleeper" in caplog.text
    go_on.set()
    until(lambda: threads.stuck == 0, "the stuck ones have come back")
    assert await threads.run("k", lambda: 4) == 4


async def test_one_that_stops_in_time_is_not_complained_of(caplog: pytest.LogCaptureFixture) -> None:
    threads, go_on = Threads(patience=0.05), threading.Event()
    with caplog.at_level(logging.WARNING, "holdfast.worker"):
        task = asyncio.create_task(threads.run("polite", lambda: go_on.wait(60)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        go_on.set()
        until(lambda: threads.stuck == 0, "it has come back")
        await asyncio.sleep(0.1)
    assert "polite" not in caplog.text


async def test_an_idle_thread_ends_after_a_while() -> None:
    threads = Threads(idle_for=0.05)
    found: list[threading.Thread] = []
    await threads.run("k", lambda: found.append(threading.current_thread()))
    until(lambda: not found[0].is_alive(), "the thread has ended")
    assert await threads.run("k", lambda: 5) == 5


def test_a_stuck_thread_does_not_hold_up_the_end_of_the_process() -> None:
    found: list[Any] = []

    async def look() -> None:
        await Threads().run("k", lambda: found.append(threading.current_thread().daemon))

    asyncio.run(look())
    assert found == [True]


def test_a_thread_that_outlives_its_loop_ends_quietly() -> None:
    threads, go_on = Threads(), threading.Event()

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await threads.run("k", lambda: go_on.wait(60))

    asyncio.run(give_up())
    go_on.set()
    until(lambda: threads.stuck == 0, "it has come back")


@pytest.mark.req("CX-15")
async def test_a_call_that_no_thread_could_be_started_for_is_not_made_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its job has failed by then, and may be begun again: it would be done twice."""
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

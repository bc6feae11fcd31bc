"""Concurrent steps, started in any way: running steps end and are recorded before the attempt ends, and many of
them cost no more than each one alone (HF-6)."""

from __future__ import annotations

import asyncio
import operator
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast import App, Backoff, Context, Retry, State, SyncContext
from holdfast.worker.shutdown import Suspended
from tests.app.test_steps import AGAIN, AT_ONCE, step_rows
from tests.support.waiting import until
from tests.support.workers import work_off, working

pytestmark = pytest.mark.req("HF-6", "CX-8")


class Slow:
    """A slow step in a thread that counts its starts and its concurrent runs."""

    def __init__(self, takes: float = 0.2) -> None:
        self._takes = takes
        self._lock = threading.Lock()
        self._now = 0
        self.begun = 0
        self.most = 0

    def __call__(self) -> str:
        with self._lock:
            self.begun += 1
            self._now += 1
            self.most = max(self.most, self._now)
        time.sleep(self._takes)
        with self._lock:
            self._now -= 1
        return "done"


async def in_ctx_gather(ctx: Context, *calls: Awaitable[Any]) -> None:
    await ctx.gather(*calls)


async def in_gather(_: Context, *calls: Awaitable[Any]) -> None:
    await asyncio.gather(*calls)


async def in_a_group(_: Context, *calls: Awaitable[Any]) -> None:
    async with asyncio.TaskGroup() as group:
        for call in calls:
            group.create_task(call)  # type: ignore[arg-type]


WAYS = pytest.mark.parametrize("way", [in_ctx_gather, in_gather, in_a_group])
Way = Callable[..., Awaitable[None]]


@WAYS
@pytest.mark.parametrize("order", ["wait first", "step first"])
def test_step_beside_a_wait_runs_once(app: App, way: Way, order: str) -> None:
    slow = Slow()

    @app.job()
    async def both(ctx: Context) -> int:
        if order == "wait first":
            await way(ctx, ctx.sleep("10ms"), ctx.step("slow", slow))
        else:
            await way(ctx, ctx.step("slow", slow), ctx.sleep("10ms"))
        return ctx.attempt

    handle = both.enqueue()
    with working(app):
        assert handle.result(timeout=20) == 2
    assert slow.begun == 1
    assert {(name, value) for _, _, name, value in step_rows(app, handle.id)} == {("slow", "done"), ("sleep", None)}


@WAYS
def test_steps_started_after_a_wait_run_before_the_handler_suspends(app: App, way: Way) -> None:
    done: list[int] = []

    @app.job()
    async def both(ctx: Context) -> list[int]:
        async def in_sequence() -> None:
            for number in range(3):
                await ctx.step(f"number {number}", done.append, number)
            done.append(-ctx.attempt)

        await way(ctx, ctx.sleep("10ms"), in_sequence())
        return done

    handle = both.enqueue()
    with working(app):
        # The first attempt runs all three steps; the second runs only the code between them.
        assert handle.result(timeout=20) == [0, 1, 2, -1, -2]


def test_step_that_was_not_awaited_is_recorded_when_the_handler_returns(app: App) -> None:
    slow, tasks = Slow(), []

    @app.job()
    async def leaves(ctx: Context) -> str:
        tasks.append(asyncio.create_task(ctx.step("slow", slow)))
        await asyncio.sleep(0)
        return "gone"

    handle = leaves.enqueue()
    work_off(app)
    assert handle.result(timeout=5) == "gone"
    assert [(name, value) for _, _, name, value in step_rows(app, handle.id)] == [("slow", "done")]


@pytest.mark.parametrize("ends", ["waits", "returns"])
def test_step_started_after_the_handler_ended_does_not_run(app: App, ends: str) -> None:
    done: list[int] = []
    tasks: list[asyncio.Task[None]] = []

    async def late(ctx: Context, call: Awaitable[None]) -> None:
        while ctx.stop_reason is None and ctx._run.plan.durable.suspended is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await call

    @app.job()
    async def leaves(ctx: Context) -> int:
        call = ctx.step("late", done.append, ctx.attempt)
        if ctx.attempt > 1:
            await call
            return ctx.attempt
        tasks.append(asyncio.create_task(late(ctx, call)))
        if ends == "waits":
            await ctx.sleep("10ms")
        return ctx.attempt

    handle = leaves.enqueue()
    with working(app):
        assert handle.result(timeout=20) == (2 if ends == "waits" else 1)
        until(lambda: tasks[0].done(), "the task has ended")
    assert tasks[0].cancelled() or isinstance(tasks[0].exception(), Suspended)
    assert done == ([2] if ends == "waits" else [])


def test_running_step_is_not_repeated_when_the_handler_fails(app: App) -> None:
    slow = Slow()

    async def fails() -> None:
        raise ConnectionError("immediately")

    @app.job(retry=AGAIN)
    async def both(ctx: Context) -> int:
        if ctx.attempt == 1:
            await asyncio.gather(ctx.step("slow", slow), fails())
        await ctx.step("slow", slow)
        return ctx.attempt

    handle = both.enqueue()
    with working(app):
        assert handle.result(timeout=20) == 2
    assert (slow.begun, slow.most) == (1, 1)


@pytest.mark.slow
def test_step_waiting_for_its_retry_does_not_block_other_steps(app: App) -> None:
    slow = Slow()
    tries: list[int] = []
    later = Retry(max_attempts=2, backoff=Backoff(base=1.1, factor=1.0, jitter=False))

    def flaky() -> int:
        tries.append(len(tries) + 1)
        if len(tries) < 2:
            raise ConnectionError("not yet")
        return len(tries)

    @app.job()
    def both(ctx: SyncContext) -> list[Any]:
        return ctx.gather(ctx.step_options(retry=later).submit("flaky", flaky), ctx.submit("slow", slow))

    handle = both.enqueue()
    with working(app):
        assert handle.result(timeout=20) == [2, "done"]
    assert (slow.begun, handle.get().retries) == (1, 0)


def test_handler_that_catches_the_group_of_its_waits_still_waits(app: App) -> None:
    @app.job()
    async def naps(ctx: Context) -> str:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(ctx.sleep("10ms"))
                group.create_task(ctx.sleep("10ms"))
        except BaseExceptionGroup:
            return "wide awake"
        return "rested"

    handle = naps.enqueue()
    with working(app):
        assert handle.result(timeout=20) == "rested"


def test_failure_beside_a_wait_can_be_caught(app: App) -> None:
    async def fails() -> None:
        raise ConnectionError("immediately")

    @app.job()
    async def both(ctx: Context) -> str:
        try:
            await ctx.gather(ctx.sleep("1h"), ctx.step("fails", fails))
        except ConnectionError:
            return await ctx.step("instead", lambda: "something else")
        return "slept"

    handle = both.enqueue()
    work_off(app)
    assert handle.result(timeout=5) == "something else"


@pytest.mark.slow
@pytest.mark.parametrize("way", ["in sequence", "gathered", "in threads"])
def test_thousand_steps_run_once_each(app: App, way: str) -> None:
    """Each step is written once and read once: the second thousand must not cost more than the first."""
    calls: list[int] = []

    def note(number: int) -> int:
        calls.append(number)
        return number

    if way == "in threads":

        @app.job("many", retry=AGAIN)
        def many(ctx: SyncContext) -> int:
            total = sum(ctx.gather(*(ctx.submit(f"step {n}", note, n) for n in range(200))))
            if ctx.attempt == 1:
                raise ConnectionError("at the end")
            return total
    else:

        @app.job("many", retry=AGAIN)
        async def many(ctx: Context) -> int:
            steps = (ctx.step(f"step {n}", note, n) for n in range(1000))
            total = sum(await ctx.gather(*steps) if way == "gathered" else [await step for step in steps])
            if ctx.attempt == 1:
                raise ConnectionError("at the end")
            return total

    handle = app.enqueue("many")
    with working(app):
        expected = sum(range(200 if way == "in threads" else 1000))
        assert handle.result(timeout=100) == expected
    assert sum(calls) == expected, "each step ran once"


@pytest.mark.slow
def test_concurrent_jobs_keep_their_own_steps(app: App) -> None:
    """Steps of different jobs are written together; each job gets its own results."""

    @app.job(retry=Retry(max_attempts=3, backoff=AT_ONCE))
    async def counts(ctx: Context, start: int) -> list[int]:
        values = [await ctx.step(f"step {n}", operator.add, start, n) for n in range(5)]
        if ctx.attempt == 1:
            raise ConnectionError("again")
        return values

    handles = [counts.enqueue(100 * number) for number in range(40)]
    with working(app, concurrency=40):
        for number, handle in enumerate(handles):
            assert handle.result(timeout=60) == [100 * number + n for n in range(5)]
    until(lambda: all(handle.state() is State.SUCCEEDED for handle in handles), "all jobs have succeeded")


def test_unordered_steps_are_matched_by_name_in_any_order(app: App) -> None:
    """Two branches with two calls each: the second attempt reaches them in reverse order."""
    ran: list[str] = []
    orders: dict[int, list[str]] = {1: ["left", "right"], 2: ["right", "left"]}

    @app.job(retry=Retry(max_attempts=2, backoff=Backoff(base=0.0, jitter=False)))
    async def branches(ctx: Context) -> list[str]:
        steps = ctx.step_options(unordered=True)

        async def branch(side: str) -> str:
            first = await steps.step(side, note, f"{side} 1")
            second = await steps.step(side, note, f"{side} 2")  # the same name again is another step
            return f"{first}, {second}"

        async def note(what: str) -> str:
            ran.append(what)
            if what == "left 2" and ran.count(what) == 1:
                raise ConnectionError("once")
            return what

        order = orders[ctx.attempt]
        results = dict(zip(order, await ctx.gather(*map(branch, order)), strict=True))
        return [results["left"], results["right"], await ctx.step("end", note, "end")]

    handle = branches.enqueue()
    work_off(app)
    work_off(app)
    assert handle.result(timeout=1) == ["left 1, left 2", "right 1, right 2", "end"]
    assert sorted(ran) == ["end", "left 1", "left 2", "left 2", "right 1", "right 2"]
    assert sorted(step.name for step in handle.steps()) == ["end", "left", "left (2)", "right", "right (2)"]

"""The task pool runs coroutines in shared tasks: no state leaks to the next, and one that waits keeps its own task."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any

import pytest

from holdfast import config
from holdfast.errors import InvalidSetting
from holdfast.worker.task_pool import TaskPool

pytestmark = pytest.mark.req("JF-7")

Work = Callable[[], Coroutine[Any, Any, object]]
Task = asyncio.Task[None]


class Harness:
    """Runs coroutines in a task pool and records their results."""

    def __init__(self) -> None:
        self.pool: TaskPool[Work, object] = TaskPool(self._begin, self._finished)
        self.ends: list[object] = []
        self._changed = asyncio.Event()
        self.removed: list[Work] = []
        self.raises = True  # a result that is an error is raised in the pool's bookkeeping

    def _begin(self, work: Work, task: Task) -> Coroutine[Any, Any, object] | None:
        return None if work in self.removed else work()

    def _finished(self, work: Work, end: object) -> None:
        self.ends.append(end)
        self._changed.set()
        if isinstance(end, Exception) and self.raises:
            raise end

    async def run(self, *works: Work) -> list[object]:
        self.pool.add(works)
        return await self.wait_for(len(works) - len(self.removed))

    async def wait_for(self, count: int) -> list[object]:
        async with asyncio.timeout(20):
            while len(self.ends) < count:
                await self._changed.wait()
                self._changed.clear()
        return self.ends


def current_task() -> Task:
    task = asyncio.current_task()
    assert task is not None
    return task


async def name() -> str:
    return current_task().get_name()


async def test_coroutines_that_do_not_wait_share_a_task_but_no_context() -> None:
    said: ContextVar[str] = ContextVar("said", default="nothing")

    async def speaks() -> tuple[str, str]:
        before = said.get()
        said.set("something")
        return before, current_task().get_name()

    ends = await Harness().run(*[speaks] * 100)
    assert len(set(ends)) == 1, "one task, and each starts with the context from before the first"
    assert said.get() == "nothing"


async def test_coroutine_that_waits_keeps_its_context() -> None:
    said: ContextVar[int] = ContextVar("said")

    def speaks(number: int) -> Work:
        async def work() -> int:
            said.set(number)
            for _ in range(number % 3):
                await asyncio.sleep(0)
            return said.get() - number

        return work

    assert await Harness().run(*map(speaks, range(100))) == [0] * 100


async def test_each_of_many_waiting_coroutines_gets_a_task_soon() -> None:
    begun, proceed = set[str](), asyncio.Event()

    async def waits() -> None:
        begun.add(current_task().get_name())
        await proceed.wait()

    harness = Harness()
    harness.pool.add([waits] * 1000)
    for _ in range(15):  # iterations of the loop, far fewer than a thousand
        await asyncio.sleep(0)
    assert len(begun) == 1000
    proceed.set()
    await harness.wait_for(1000)


kept: list[object] = []


def keeps(task: Task) -> None:
    kept.append(task)


def watches(task: Task) -> None:
    kept.append(weakref.ref(task))


def wants_to_be_called(task: Task) -> None:
    task.add_done_callback(lambda _: kept.append("called"))


def cancels(task: Task) -> None:
    task.cancel()


def renames(task: Task) -> None:
    task.set_name("mine")


@pytest.mark.parametrize("touch", [keeps, watches, wants_to_be_called, cancels, renames])
async def test_task_touched_by_coroutine_is_not_reused(touch: Callable[[Task], None]) -> None:
    kept.clear()
    seen: list[tuple[str, int, list[object]]] = []

    async def touches() -> None:
        touch(current_task())

    async def looks() -> None:
        await asyncio.sleep(0)
        seen.append((current_task().get_name(), current_task().cancelling(), kept[:]))

    before = await Harness().run(name, name)
    assert before[0] == before[1]
    ends = await Harness().run(name, touches, name, looks)
    assert ends[2] not in (ends[0], "mine"), "the next runs in another task"
    assert (seen[0][0], seen[0][1]) == (ends[2], 0)
    if touch is wants_to_be_called:
        assert seen[0][2] == ["called"], "called at the end of the coroutine that added it"


async def test_cancelling_a_waiting_coroutine_affects_no_other() -> None:
    waiting: list[Task] = []

    async def waits() -> str:
        waiting.append(current_task())
        said = "nothing"
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError as error:
            said = str(error)
        with pytest.raises(ValueError, match="after that") as raised:
            raise ValueError("after that")
        return said if raised.value.__context__ is None else "the caught error is still its context"

    async def gives_up() -> None:
        waiting.append(current_task())
        await asyncio.sleep(60)

    async def late() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)
        except TimeoutError:
            return "late"
        return "in time"

    harness = Harness()
    harness.pool.add([waits, gives_up, late])
    for _ in range(3):
        await asyncio.sleep(0)
    assert waiting[0] is not waiting[1]
    for task in waiting:
        task.cancel("enough")
    assert await harness.wait_for(3) == ["enough", None, "late"]


async def test_coroutine_that_raises_is_finished() -> None:
    async def at_once() -> str:
        raise ValueError("at once")

    async def later() -> str:
        await asyncio.sleep(0)
        raise ValueError("later")

    harness = Harness()
    harness.raises = False
    ends = await harness.run(name, at_once, later, name)
    assert sorted(str(end) for end in ends if isinstance(end, ValueError)) == ["at once", "later"]
    assert len(ends) == 4


async def test_removed_work_is_not_started_and_bookkeeping_error_blocks_no_other() -> None:
    async def gone() -> str:
        raise AssertionError("it was removed")

    async def mistaken() -> Exception:
        return RuntimeError("in the bookkeeping")

    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, problem: problems.append(problem))
    harness = Harness()
    harness.removed = [gone]
    ends = await harness.run(name, gone, mistaken, name)
    assert len(ends) == 3
    assert ends[0] != ends[2]


async def test_canary_task_without_references_is_reused() -> None:
    """Fails on a Python with other reference counts; then HOLDFAST_DISABLE=task-pool is the workaround."""
    assert len(set(await Harness().run(*[name] * 100))) == 1


async def test_each_coroutine_has_its_own_task_if_pool_is_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DISABLE", "task-pool")
    assert len(set(await Harness().run(*[name] * 100))) == 100


def test_unknown_fast_path_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DISABLE", "pipeline, turbo")
    with pytest.raises(InvalidSetting, match="turbo") as refused:
        config.is_disabled("pipeline")
    assert refused.value.code == "invalid_disable"
    assert "task-pool" in (refused.value.fix or "")

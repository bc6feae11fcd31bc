"""Tasks that run one thing after another: nothing of one is there for the next, and what waits has its own."""

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


class Bench:
    """Runs things, and knows which task each had and how each ended."""

    def __init__(self) -> None:
        self.hands: TaskPool[Work, object] = TaskPool(self._begin, self._over)
        self.ends: list[object] = []
        self._news = asyncio.Event()
        self.unwanted: list[Work] = []
        self.careful = True  # an end that is an error is one of the bookkeeping

    def _begin(self, work: Work, task: Task) -> Coroutine[Any, Any, object] | None:
        return None if work in self.unwanted else work()

    def _over(self, work: Work, end: object) -> None:
        self.ends.append(end)
        self._news.set()
        if isinstance(end, Exception) and self.careful:
            raise end

    async def run(self, *things: Work) -> list[object]:
        self.hands.add(things)
        return await self.over(len(things) - len(self.unwanted))

    async def over(self, count: int) -> list[object]:
        async with asyncio.timeout(20):
            while len(self.ends) < count:
                await self._news.wait()
                self._news.clear()
        return self.ends


def own() -> Task:
    task = asyncio.current_task()
    assert task is not None
    return task


async def name() -> str:
    return own().get_name()


async def test_what_does_not_wait_shares_a_task_and_nothing_else() -> None:
    said: ContextVar[str] = ContextVar("said", default="nothing")

    async def speaks() -> tuple[str, str]:
        before = said.get()
        said.set("something")
        return before, own().get_name()

    ends = await Bench().run(*[speaks] * 100)
    assert len(set(ends)) == 1, "one task, and each began with what was there before the first"
    assert said.get() == "nothing"


async def test_what_waits_has_a_context_of_its_own_all_along() -> None:
    said: ContextVar[int] = ContextVar("said")

    def speaks(number: int) -> Work:
        async def work() -> int:
            said.set(number)
            for _ in range(number % 3):
                await asyncio.sleep(0)
            return said.get() - number

        return work

    assert await Bench().run(*map(speaks, range(100))) == [0] * 100


async def test_of_many_that_wait_each_has_a_task_soon() -> None:
    begun, go_on = set[str](), asyncio.Event()

    async def waits() -> None:
        begun.add(own().get_name())
        await go_on.wait()

    bench = Bench()
    bench.hands.add([waits] * 1000)
    for _ in range(15):  # trips of the loop, not a thousand of them
        await asyncio.sleep(0)
    assert len(begun) == 1000
    go_on.set()
    await bench.over(1000)


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
async def test_a_task_that_somebody_has_touched_is_not_used_again(touch: Callable[[Task], None]) -> None:
    kept.clear()
    seen: list[tuple[str, int, list[object]]] = []

    async def touches() -> None:
        touch(own())

    async def looks() -> None:
        await asyncio.sleep(0)
        seen.append((own().get_name(), own().cancelling(), kept[:]))

    before = await Bench().run(name, name)
    assert before[0] == before[1]
    ends = await Bench().run(name, touches, name, looks)
    assert ends[2] not in (ends[0], "mine"), "the next has another"
    assert (seen[0][0], seen[0][1]) == (ends[2], 0)
    if touch is wants_to_be_called:
        assert seen[0][2] == ["called"], "when the one that asked was over"


async def test_one_that_waits_is_interrupted_alone() -> None:
    waiting: list[Task] = []

    async def waits() -> str:
        waiting.append(own())
        said = "nothing"
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError as error:
            said = str(error)
        with pytest.raises(ValueError, match="after that") as raised:
            raise ValueError("after that")
        return said if raised.value.__context__ is None else "what it has caught is not over"

    async def gives_up() -> None:
        waiting.append(own())
        await asyncio.sleep(60)

    async def late() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)
        except TimeoutError:
            return "late"
        return "in time"

    bench = Bench()
    bench.hands.add([waits, gives_up, late])
    for _ in range(3):
        await asyncio.sleep(0)
    assert waiting[0] is not waiting[1]
    for task in waiting:
        task.cancel("enough")
    assert await bench.over(3) == ["enough", None, "late"]


async def test_one_that_raises_has_ended_too() -> None:
    async def at_once() -> str:
        raise ValueError("at once")

    async def later() -> str:
        await asyncio.sleep(0)
        raise ValueError("later")

    bench = Bench()
    bench.careful = False
    ends = await bench.run(name, at_once, later, name)
    assert sorted(str(end) for end in ends if isinstance(end, ValueError)) == ["at once", "later"]
    assert len(ends) == 4


async def test_what_is_unwanted_is_not_begun_and_a_mistake_holds_up_no_other() -> None:
    async def gone() -> str:
        raise AssertionError("nobody wants it")

    async def mistaken() -> Exception:
        return RuntimeError("in the bookkeeping")

    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, problem: problems.append(problem))
    bench = Bench()
    bench.unwanted = [gone]
    ends = await bench.run(name, gone, mistaken, name)
    assert len(ends) == 3
    assert ends[0] != ends[2]


async def test_canary_a_task_that_nobody_keeps_is_used_again() -> None:
    """Red with a Python whose reference counts say something else: then HOLDFAST_DISABLE=task-pool is the way out."""
    assert len(set(await Bench().run(*[name] * 100))) == 1


async def test_switched_off_each_thing_has_a_task_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DISABLE", "task-pool")
    assert len(set(await Bench().run(*[name] * 100))) == 100


def test_an_unknown_fast_path_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DISABLE", "pipeline, turbo")
    with pytest.raises(InvalidSetting, match="turbo") as refused:
        config.is_disabled("pipeline")
    assert refused.value.code == "invalid_disable"
    assert "task-pool" in (refused.value.fix or "")

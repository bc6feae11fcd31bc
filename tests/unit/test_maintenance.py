"""A worker starts its maintenance tasks one after another, so that it does not open a connection for each."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.features.assembly import Store, open_store
from holdfast.worker.maintenance import Maintenance, MaintenanceTask

pytestmark = pytest.mark.req("JF-3", "SC-13")


class Watched:
    """Slow maintenance tasks that record how many of them run at the same time."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.most = 0
        self.finished: list[str] = []
        self._changed = asyncio.Event()

    def task(self, name: str, *, readies: bool = True) -> MaintenanceTask:
        async def run(store: Store) -> int:
            self.running.add(name)
            self.most = max(self.most, len(self.running))
            for _ in range(3):
                await asyncio.sleep(0)
            self.running.discard(name)
            return 0

        return MaintenanceTask(name, 60.0, run=run, readies=readies)

    async def begin(self, *maintenance: MaintenanceTask, stopping: asyncio.Event) -> list[asyncio.Task[None]]:
        store = open_store("sqlite:///:memory:")

        def record(name: str) -> None:
            self.finished.append(name)
            self._changed.set()

        return [asyncio.create_task(Maintenance(store, maintenance, "*", has_run=record).run(stopping))]

    async def has_finished(self, name: str) -> None:
        while name not in self.finished:
            self._changed.clear()
            await self._changed.wait()


async def test_first_runs_of_maintenance_tasks_do_not_overlap() -> None:
    watched, stopping = Watched(), asyncio.Event()
    tasks = await watched.begin(*(watched.task(name) for name in "abcd"), stopping=stopping)
    async with asyncio.timeout(20):
        await watched.has_finished("a")
        assert (watched.most, watched.finished) == (1, ["d", "c", "b", "a"]), "promotion is listed first and runs last"
        stopping.set()
        await asyncio.gather(*tasks)


async def test_slow_maintenance_task_does_not_block_others() -> None:
    watched, stopping, proceed = Watched(), asyncio.Event(), asyncio.Event()

    async def slow(store: Store) -> int:
        await proceed.wait()
        return 0

    tasks = await watched.begin(
        MaintenanceTask("slow", 60.0, run=slow, readies=False), watched.task("after"), stopping=stopping
    )
    async with asyncio.timeout(20):
        await watched.has_finished("after")
        assert "slow" not in watched.finished
        stopping.set()
        proceed.set()
        await asyncio.gather(*tasks)


async def test_worker_that_stops_at_once_runs_no_maintenance_task() -> None:
    watched, stopping = Watched(), asyncio.Event()
    stopping.set()
    tasks = await watched.begin(watched.task("a"), watched.task("b", readies=False), stopping=stopping)
    await asyncio.gather(*tasks)
    assert watched.finished == []


async def test_maintenance_that_is_cancelled_as_it_leaves_ends() -> None:
    """A worker cancels its maintenance in the same turn of the event loop in which it asks it to end, if its database
    does not respond (fault 47)."""
    watched, stopping, hanging = Watched(), asyncio.Event(), asyncio.Event()

    async def hang(store: Store) -> int:
        hanging.set()
        await asyncio.Event().wait()
        return 0

    (task,) = await watched.begin(
        MaintenanceTask("hang", 60.0, run=hang, readies=False), watched.task("after"), stopping=stopping
    )
    async with asyncio.timeout(20):
        await watched.has_finished("after")
        await hanging.wait()
    for _ in range(10):  # it pauses until the next work is due
        await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(stopping.set)
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(task.cancel)
    done, _ = await asyncio.wait({task}, timeout=20)
    assert done, "it has ended"
    assert task.cancelled()

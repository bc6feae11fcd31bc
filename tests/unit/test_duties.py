"""How a worker begins its duties: one after another, so that it does not open a connection for each of them."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.features.assembly import Store, open_store
from holdfast.worker.maintenance import Maintenance, MaintenanceTask

pytestmark = pytest.mark.req("JF-3", "SC-13")


class Watched:
    """Duties that take a while, and who of them was at it at the same time."""

    def __init__(self) -> None:
        self.at_it: set[str] = set()
        self.most = 0
        self.looked: list[str] = []
        self._news = asyncio.Event()

    def duty(self, name: str, *, readies: bool = True) -> MaintenanceTask:
        async def run(store: Store) -> int:
            self.at_it.add(name)
            self.most = max(self.most, len(self.at_it))
            for _ in range(3):
                await asyncio.sleep(0)
            self.at_it.discard(name)
            return 0

        return MaintenanceTask(name, 60.0, run=run, readies=readies)

    async def begin(self, *duties: MaintenanceTask, leaving: asyncio.Event) -> list[asyncio.Task[None]]:
        store = open_store("sqlite:///:memory:")

        def looked(name: str) -> None:
            self.looked.append(name)
            self._news.set()

        return [asyncio.create_task(Maintenance(store, duties, "*", has_run=looked).run(leaving))]

    async def has_looked(self, name: str) -> None:
        while name not in self.looked:
            self._news.clear()
            await self._news.wait()


async def test_first_looks_are_one_after_another() -> None:
    watched, leaving = Watched(), asyncio.Event()
    tasks = await watched.begin(*(watched.duty(name) for name in "abcd"), leaving=leaving)
    async with asyncio.timeout(20):
        await watched.has_looked("a")
        assert (watched.most, watched.looked) == (1, ["d", "c", "b", "a"]), "promotion, which is the first, comes last"
        leaving.set()
        await asyncio.gather(*tasks)


async def test_one_that_goes_slowly_is_waited_for_by_nobody() -> None:
    watched, leaving, go_on = Watched(), asyncio.Event(), asyncio.Event()

    async def slow(store: Store) -> int:
        await go_on.wait()
        return 0

    tasks = await watched.begin(
        MaintenanceTask("slow", 60.0, run=slow, readies=False), watched.duty("after"), leaving=leaving
    )
    async with asyncio.timeout(20):
        await watched.has_looked("after")
        assert "slow" not in watched.looked
        leaving.set()
        go_on.set()
        await asyncio.gather(*tasks)


async def test_who_leaves_at_once_looks_at_nothing() -> None:
    watched, leaving = Watched(), asyncio.Event()
    leaving.set()
    tasks = await watched.begin(watched.duty("a"), watched.duty("b", readies=False), leaving=leaving)
    await asyncio.gather(*tasks)
    assert watched.looked == []

"""A tick that must end before its jobs: what is done is settled, the rest is handed back (HK-1)."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest

from holdfast import App, State
from tests.app.shop import stocked
from tests.support.direct_sql import open_by_hand


@pytest.fixture
def shop(app: App) -> App:
    return stocked(app)


@pytest.mark.req("HK-1", "SC-13")
def test_what_is_not_done_in_time_is_handed_back(shop: App) -> None:
    slow, quick = shop.enqueue("nap", {"seconds": 600}), shop.enqueue("add", {"a": 1})
    while not (done := shop.tick(timeout="300ms")).taken:
        pass  # on a busy machine the time is up before it has looked
    assert done.duration < 10
    assert (done.taken, done.succeeded, done.handed_back, done.more) == (2, 1, 1, True)
    assert quick.state() is State.SUCCEEDED
    found = slow.get()
    assert (found.state, found.retries, found.crashes) == (State.RETRY_WAITING, 0, 0)
    assert slow.history()[-1].meta["reason"] == "tick_over"


@pytest.mark.req("HK-1", "SC-13")
async def test_it_can_be_stopped_and_cancelled_from_async_code(shop: App) -> None:
    begun = asyncio.Event()

    @shop.job()
    async def waits() -> None:
        begun.set()
        await asyncio.sleep(600)

    first = await shop.aenqueue("waits")
    stop = asyncio.Event()
    ticking = asyncio.create_task(shop.atick(stop=stop))
    await asyncio.wait_for(begun.wait(), 20)
    stop.set()
    done = await asyncio.wait_for(ticking, 20)
    assert (done.taken, done.handed_back) == (1, 1)
    begun.clear()
    ticking = asyncio.create_task(shop.atick())
    await asyncio.wait_for(begun.wait(), 20)
    ticking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ticking
    found = await first.aget()
    assert (found.state, found.attempt, found.crashes) == (State.RETRY_WAITING, 2, 0)
    assert shop.health.get().lease_active == 0
    await shop.aclose()


@pytest.mark.req("HK-1", "SC-13")
async def test_cancelled_while_it_settles_it_settles_first(app: App, url: str) -> None:
    """Somebody else holds the lock that settling needs; the host gives up on the tick in the meantime."""
    with closing(open_by_hand(url)) as by_hand:
        returned = asyncio.Event()

        @app.job()
        async def locks() -> str:
            by_hand.execute("begin immediate" if by_hand.name == "sqlite" else "begin")
            if by_hand.name != "sqlite":
                by_hand.execute("select 1 from job_state for update")
            returned.set()
            return "done"

        handle = await app.aenqueue("locks")
        ticking = asyncio.create_task(app.atick())
        await asyncio.wait_for(returned.wait(), 20)
        await asyncio.wait({ticking}, timeout=0.5)  # until it waits for the lock; earlier is as good
        ticking.cancel()
        await asyncio.wait({ticking}, timeout=0.2)
        by_hand.rollback()
        with pytest.raises(asyncio.CancelledError):
            await ticking
    assert (await handle.aget()).state is State.SUCCEEDED
    assert app.health.get().lease_active == 0
    await app.aclose()

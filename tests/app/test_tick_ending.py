"""A tick that ends before its jobs: finished jobs are settled, the others are handed back (HK-1)."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest

from holdfast import App, State
from tests.app.tick_jobs import declare_jobs
from tests.support.direct_sql import open_by_hand


@pytest.fixture
def shop(app: App) -> App:
    return declare_jobs(app)


@pytest.mark.req("HK-1", "SC-13")
def test_unfinished_jobs_are_handed_back_at_the_timeout(shop: App) -> None:
    slow, quick = shop.enqueue("nap", {"seconds": 600}), shop.enqueue("add", {"a": 1})
    while not (done := shop.tick(timeout="300ms")).taken:
        pass  # on a busy machine the timeout passes before the first claim
    assert done.duration < 10
    assert (done.taken, done.succeeded, done.handed_back, done.more) == (2, 1, 1, True)
    assert quick.state() is State.SUCCEEDED
    job = slow.get()
    assert (job.state, job.retries, job.crashes) == (State.RETRY_WAITING, 0, 0)
    assert slow.history()[-1].meta["reason"] == "tick_over"


@pytest.mark.req("HK-1", "SC-13")
async def test_async_tick_can_be_stopped_and_cancelled(shop: App) -> None:
    started = asyncio.Event()

    @shop.job()
    async def waits() -> None:
        started.set()
        await asyncio.sleep(600)

    first = await shop.aenqueue("waits")
    stop = asyncio.Event()
    ticking = asyncio.create_task(shop.atick(stop=stop))
    await asyncio.wait_for(started.wait(), 20)
    stop.set()
    done = await asyncio.wait_for(ticking, 20)
    assert (done.taken, done.handed_back) == (1, 1)
    started.clear()
    ticking = asyncio.create_task(shop.atick())
    await asyncio.wait_for(started.wait(), 20)
    ticking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ticking
    job = await first.aget()
    assert (job.state, job.attempt, job.crashes) == (State.RETRY_WAITING, 2, 0)
    assert shop.health.get().lease_active == 0
    await shop.aclose()


@pytest.mark.req("HK-1", "SC-13")
async def test_tick_cancelled_while_settling_settles_first(app: App, url: str) -> None:
    """Another connection holds the lock that settling needs; the caller cancels the tick meanwhile."""
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
        await asyncio.wait({ticking}, timeout=0.5)  # usually it waits for the lock by then; earlier is fine too
        ticking.cancel()
        await asyncio.wait({ticking}, timeout=0.2)
        by_hand.rollback()
        with pytest.raises(asyncio.CancelledError):
            await ticking
    assert (await handle.aget()).state is State.SUCCEEDED
    assert app.health.get().lease_active == 0
    await app.aclose()

"""Claims without polling, interruption of cancelled jobs, and the order of several queues."""

from __future__ import annotations

import asyncio
import threading

import pytest

from holdfast import App, State
from holdfast.app.internals import session_of
from holdfast.worker.claim_order import ClaimOrder
from tests.app.conftest import NewApp
from tests.support.waiting import until
from tests.support.workers import work_off, working

# Polling is too slow to make any of these tests pass.
NEVER = 120.0


@pytest.mark.req("JF-7", "JF-6")
def test_job_is_claimed_and_awaited_without_polling(app: App, new_app: NewApp) -> None:
    worker_app = new_app()

    @worker_app.job()
    async def double(n: int) -> int:
        return 2 * n

    with working(worker_app, poll=NEVER) as background:
        until(lambda: background.worker and background.worker._asleep, "the worker is idle")
        for n in range(5):
            assert app.enqueue("double", {"n": n}).result(timeout=30) == 2 * n


@pytest.mark.req("JF-6")
async def test_async_result_is_awaited_without_polling(app: App, new_app: NewApp) -> None:
    worker_app = new_app()

    @worker_app.job()
    async def double(n: int) -> int:
        return 2 * n

    with working(worker_app, poll=NEVER):
        handles = [await app.aenqueue("double", {"n": n}) for n in range(10)]
        results = await asyncio.gather(*(handle.aresult(timeout=30) for handle in handles))
        assert results == [2 * n for n in range(10)]
    await session_of(app).store.leave_loop()


@pytest.mark.req("JF-7")
def test_worker_polls_without_notifications(app: App, new_app: NewApp) -> None:
    worker_app = new_app()

    @worker_app.job()
    async def double(n: int) -> int:
        return 2 * n

    with working(worker_app, notify=False, poll=0.05):
        assert app.enqueue("double", {"n": 4}).result(timeout=30) == 8


@pytest.mark.req("CX-11")
def test_cancelled_running_job_is_interrupted_and_its_slot_freed(app: App, new_app: NewApp) -> None:
    worker_app = new_app()
    started, interrupted = threading.Event(), threading.Event()

    @worker_app.job()
    async def patient() -> None:
        started.set()
        try:
            await asyncio.sleep(NEVER)
        except asyncio.CancelledError:
            interrupted.set()
            raise

    @worker_app.job()
    async def quick() -> str:
        return "done"

    with working(worker_app, concurrency=1, poll=NEVER):
        job = app.enqueue("patient")
        assert started.wait(30)
        next_one = app.enqueue("quick")
        job.cancel("changed my mind")
        assert interrupted.wait(30), "the handler was not interrupted"
        assert next_one.result(timeout=30) == "done"
    assert job.state() is State.CANCELLED
    assert [event.type for event in job.history()] == ["enqueue", "take", "cancel"]


@pytest.mark.req("CX-11")
def test_cancel_without_a_notification_is_noticed(app: App, new_app: NewApp) -> None:
    worker_app = new_app()
    started, interrupted = threading.Event(), threading.Event()

    @worker_app.job()
    async def patient() -> None:
        started.set()
        try:
            await asyncio.sleep(NEVER)
        finally:
            interrupted.set()

    with working(worker_app, notify=False, check_cancelled_every=0.1):
        job = app.enqueue("patient")
        assert started.wait(30)
        job.cancel()
        assert interrupted.wait(30), "the handler was not interrupted"


@pytest.mark.req("SC-2")
def test_queues_are_served_in_list_order(app: App) -> None:
    order: list[int] = []

    @app.job()
    async def note(n: int) -> None:
        order.append(n)

    for n in range(4):
        note.using(queue="low" if n % 2 else "high").enqueue(n)
    work_off(app, queues=("high", "low"), concurrency=1)
    assert order == [0, 2, 1, 3]


@pytest.mark.req("SC-2")
def test_weights_distribute_the_first_queue() -> None:
    search = ClaimOrder(("mail", "reports", "rest"), {"mail": 8, "reports": 1})
    first = [search.queues()[0] for _ in range(10_000)]
    assert all(sorted(search.queues()) == ["mail", "reports", "rest"] for _ in range(10))
    assert 7_600 < first.count("mail") < 8_400
    assert 800 < first.count("reports") < 1_200
    assert 800 < first.count("rest") < 1_200
    assert {ClaimOrder(("b", "a")).queues() for _ in range(10)} == {("b", "a")}

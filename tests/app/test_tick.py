"""The tick: at most N jobs, here and now, with a summary; whatever happens to it, the jobs are not lost (HK-1)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast import App, Backoff, HoldfastError, Retry, State
from holdfast.domain.tick import TickSummary
from tests.app.conftest import NewApp
from tests.app.waiting import until
from tests.support.by_hand import open_by_hand

ROOT = Path(__file__).parents[2]
AT_ONCE = Retry(max_attempts=2, backoff=Backoff(base=0.001, factor=1, cap=0.001, jitter=False))


@pytest.fixture
def shop(app: App) -> App:
    @app.job()
    async def add(a: int, b: int = 1) -> int:
        return a + b

    @app.job()
    def blocking(number: int) -> int:
        return number

    @app.job(retry=AT_ONCE)
    async def fails() -> None:
        raise ConnectionError("the line is busy")

    @app.job()
    async def nap(seconds: float) -> None:
        await asyncio.sleep(seconds)

    return app


@pytest.mark.req("HK-1", "JF-7")
def test_it_runs_at_most_so_many_and_says_what_happened(shop: App) -> None:
    handles = [shop.enqueue("add", {"a": n}) for n in range(3)]
    handles += [shop.enqueue("blocking", {"number": n}) for n in range(2)]
    first = shop.tick(limit=4)
    assert (first.taken, first.succeeded, first.more) == (4, 4, True)
    assert list(first.ids) == [handle.id for handle in handles[:4]]
    second = shop.tick(limit=4)
    assert (second.taken, second.succeeded, second.more, second.ids) == (1, 1, False, (handles[4].id,))
    third = shop.tick()
    assert (third.taken, third.more, third.ids) == (0, False, ())
    assert [handle.result() for handle in handles] == [1, 2, 3, 0, 1]
    assert shop.health().lease_active == 0


@pytest.mark.req("HK-1")
def test_more_is_not_said_of_what_cannot_be_run_now(shop: App) -> None:
    shop.enqueue("add", {"a": 1})
    shop.enqueue("add", {"a": 2}, delay=600)
    shop.enqueue("handled_elsewhere")
    shop.enqueue("add", {"a": 3}, queue="mail")
    done = shop.tick(limit=1)
    assert (done.taken, done.more) == (1, False)
    shop.enqueue("add", {"a": 4})
    done = shop.tick(limit=1, queues=("mail", "default"))
    assert (done.taken, done.more) == (1, True)


@pytest.mark.req("HK-1", "JF-5")
def test_a_failure_is_tried_again_by_a_later_tick_and_then_buried(shop: App) -> None:
    handle = shop.enqueue("fails")
    done = shop.tick()
    assert (done.taken, done.retried, done.dead) == (1, 1, 0)
    later: list[TickSummary] = []

    def tried_again() -> bool:
        later.append(shop.tick())
        return later[-1].taken == 1

    until(tried_again, "the retry is due, and the tick makes it so")
    done = later[-1]
    assert (done.taken, done.retried, done.dead) == (1, 0, 1)
    assert handle.state() is State.DEAD_LETTER


@pytest.mark.req("HK-1", "DP-9")
def test_it_does_the_duties_first(shop: App) -> None:
    late = shop.enqueue("add", {"a": 1}, deadline=datetime.now(UTC) - timedelta(seconds=1))
    due = shop.enqueue("add", {"a": 2}, delay="1ms")
    until(lambda: shop.tick().taken == 1, "what is due is run")
    assert due.state() is State.SUCCEEDED
    assert late.state() is State.FAILED


@pytest.mark.req("HK-1")
def test_concurrency_is_a_limit(app: App) -> None:
    running, most = 0, 0

    @app.job()
    async def counts() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1

    for _ in range(6):
        app.enqueue("counts")
    done = app.tick(limit=6, concurrency=2)
    assert (done.succeeded, most) == (6, 2)


@pytest.mark.req("HK-1", "SC-13")
def test_what_is_not_done_in_time_is_handed_back(shop: App) -> None:
    slow, quick = shop.enqueue("nap", {"seconds": 600}), shop.enqueue("add", {"a": 1})
    began = time.monotonic()
    done = shop.tick(timeout="300ms")
    assert time.monotonic() - began < 10
    assert (done.taken, done.succeeded, done.handed_back, done.more) == (2, 1, 1, True)
    assert quick.state() is State.SUCCEEDED
    found = slow.job()
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
    found = await first.ajob()
    assert (found.state, found.attempt, found.crashes) == (State.RETRY_WAITING, 2, 0)
    assert shop.health().lease_active == 0
    await shop.aclose()


@pytest.mark.req("HK-1")
async def test_inside_a_running_loop_it_says_what_to_call(shop: App) -> None:
    shop.enqueue("add", {"a": 1})
    with pytest.raises(HoldfastError, match="atick") as caught:
        shop.tick()
    assert caught.value.code == "running_loop"
    assert (await shop.atick()).succeeded == 1
    await shop.aclose()


@pytest.mark.req("HK-1", "CX-11")
def test_a_job_cancelled_while_it_ran_is_said_to_be(app: App, new_app: NewApp) -> None:
    begun, go = threading.Event(), threading.Event()

    @app.job()
    def holds() -> None:
        begun.set()
        go.wait(20)

    handle = app.enqueue("holds")
    elsewhere = new_app()

    def cancel() -> None:
        begun.wait(20)
        elsewhere.cancel(handle.id)
        go.set()

    beside = threading.Thread(target=cancel)
    beside.start()
    done = app.tick()
    beside.join()
    assert (done.taken, done.succeeded, done.cancelled, done.lost) == (1, 0, 1, 0)


@pytest.mark.req("HK-1", "CX-11")
def test_a_job_that_is_cancelled_is_stopped_and_not_waited_for(shop: App, new_app: NewApp) -> None:
    handle, elsewhere = shop.enqueue("nap", {"seconds": 600}), new_app()

    def cancel() -> None:
        until(lambda: handle.state() is State.IN_PROGRESS, "it is running")
        elsewhere.cancel(handle.id)

    beside = threading.Thread(target=cancel)
    beside.start()
    done = shop.tick()
    beside.join()
    assert (done.taken, done.cancelled, done.lost) == (1, 1, 0)


@pytest.mark.req("HK-1", "DP-7")
def test_a_lease_that_was_lost_abandons_what_runs(shop: App, new_app: NewApp) -> None:
    begun = threading.Event()

    @shop.job()
    async def waits() -> None:
        begun.set()
        await asyncio.sleep(600)

    handle = shop.enqueue("waits")
    other = new_app()

    def end_the_lease() -> None:
        assert begun.wait(20)
        found = other.client.run(other.client.verbs.attempts(handle.id, handle.tenant))[-1]
        assert found.worker.startswith("tick ")
        lease = other.client.run(other.client.verbs.health("*"))
        assert lease.lease_active == 1
        take_away(other)

    beside = threading.Thread(target=end_the_lease)
    beside.start()
    done = shop.tick(lease=0.5)
    beside.join()
    assert (done.taken, done.lost, done.handed_back) == (1, 1, 0)
    assert (handle.job().state, handle.job().crashes) == (State.IN_PROGRESS, 0)
    assert Counter(event.verb for event in handle.history())["snooze"] == 0


def take_away(app: App) -> None:
    """End every lease, as an operator with a SQL shell would."""
    by_hand = open_by_hand(app.store.url)
    (row,) = by_hand.execute("select id from lease where ended_at is null")
    by_hand.close()
    assert app.client.run(app.client.verbs.end_lease(str(row[0]), "taken away", "*"))


@pytest.mark.req("HK-1", "JF-4")
def test_a_job_may_take_longer_than_the_lease(shop: App, new_app: NewApp) -> None:
    handle = shop.enqueue("nap", {"seconds": 1.5})
    other, over = new_app(), threading.Event()

    def sweep() -> None:
        while not over.wait(0.05):
            other.tick()  # it would take the job if the lease had lapsed

    beside = threading.Thread(target=sweep)
    beside.start()
    done = shop.tick(lease=0.5)
    over.set()
    beside.join(30)
    assert (done.succeeded, done.lost) == (1, 0)
    assert handle.job().crashes == 0


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
    assert (await handle.ajob()).state is State.SUCCEEDED
    assert app.health().lease_active == 0
    await app.aclose()


@pytest.mark.req("HK-1", "JF-3")
def test_many_at_once_run_each_job_once(shop: App, new_app: NewApp) -> None:
    handles = [shop.enqueue("add", {"a": n}) for n in range(60)]
    apps = [new_app() for _ in range(4)]
    for each in apps:
        each.kinds.update(shop.kinds)
    taken: list[str] = []

    def ticks(app: App) -> None:
        while (done := app.tick(limit=5)).taken:
            taken.extend(done.ids)

    threads = [threading.Thread(target=ticks, args=(each,)) for each in apps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(taken) == sorted(handle.id for handle in handles)
    assert {handle.job().attempt for handle in handles} == {1}


@pytest.mark.req("HK-1")
@pytest.mark.parametrize(
    "options",
    [
        {"limit": 0},
        {"concurrency": 0},
        {"queues": ()},
        {"queues": "mail"},
        {"timeout": "x"},
        {"lease": 0},
        {"weights": {"mail": 0}},
        {"executor": " "},
    ],
)
def test_options_that_make_no_sense(shop: App, options: dict[str, object]) -> None:
    with pytest.raises(HoldfastError):
        shop.tick(**options)  # type: ignore[arg-type]


KILLED = """
from tests.app.victim import app
app.tick(lease=1.0)
"""


@pytest.mark.req("HK-1", "CX-15", "DP-8")
def test_killed_half_way_its_jobs_are_recovered_by_the_next(shop: App, url: str, tmp_path: Path) -> None:
    shop.client.make_ready()
    handles = [shop.enqueue("hold", {"number": n}) for n in range(2)]
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))
    environment = os.environ | {"HOLDFAST_URL": url, "HOLDFAST_TEST_FOLDER": str(tmp_path), "PYTHONPATH": path}
    process = subprocess.Popen([sys.executable, "-c", KILLED], cwd=ROOT, env=environment)
    try:
        begun = tmp_path / "begun"
        until(lambda: begun.exists() and len(begun.read_text().splitlines()) == 2, "both are running")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=10)
    assert shop.tick().taken == 0  # still under the dead one's lease

    @shop.job()
    def hold(number: int) -> int:
        return number

    ids: list[str] = []

    def recovered() -> bool:
        ids.extend(shop.tick().ids)
        return len(ids) == 2

    until(recovered, "the lease has lapsed and the next tick has taken them up")
    assert [handle.result() for handle in handles] == [0, 1]
    assert {handle.job().crashes for handle in handles} == {1}

"""`app.tick()`: run at most N jobs in this process and return a summary (HK-1)."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import App, HoldfastError, State
from holdfast.worker.options import TickSummary
from tests.app.conftest import NewApp
from tests.app.tick_jobs import declare_jobs
from tests.support.waiting import until


@pytest.fixture
def shop(app: App) -> App:
    return declare_jobs(app)


@pytest.mark.req("HK-1", "JF-7")
def test_tick_runs_at_most_limit_jobs_and_returns_a_summary(shop: App) -> None:
    handles = [shop.enqueue("add", {"a": n}) for n in range(3)]
    handles += [shop.enqueue("blocking", {"number": n}) for n in range(2)]
    first = shop.tick(limit=4)
    assert (first.taken, first.succeeded, first.more, first.ok) == (4, 4, True, True)
    assert list(first.ids) == [handle.id for handle in handles[:4]]
    second = shop.tick(limit=4)
    assert (second.taken, second.succeeded, second.more, second.ids) == (1, 1, False, (handles[4].id,))
    third = shop.tick()
    assert (third.taken, third.more, third.ids) == (0, False, ())
    assert [handle.result() for handle in handles] == [1, 2, 3, 0, 1]
    assert shop.health.get().lease_active == 0


@pytest.mark.req("HK-1")
def test_more_ignores_jobs_that_cannot_run_now(shop: App) -> None:
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
def test_failure_is_retried_by_a_later_tick_and_then_dead_lettered(shop: App) -> None:
    handle = shop.enqueue("fails")
    done = shop.tick()
    assert (done.taken, done.retried, done.dead) == (1, 1, 0)
    later: list[TickSummary] = []

    def retried() -> bool:
        later.append(shop.tick())
        return later[-1].taken == 1

    until(retried, "a tick has promoted and run the retry")
    done = later[-1]
    assert (done.taken, done.retried, done.dead) == (1, 0, 1)
    assert handle.state() is State.DEAD_LETTER


@pytest.mark.req("HK-1", "DP-9")
def test_tick_runs_maintenance_first(shop: App) -> None:
    late = shop.enqueue("add", {"a": 1}, deadline=datetime.now(UTC) - timedelta(seconds=1))
    due = shop.enqueue("add", {"a": 2}, delay="1ms")
    until(lambda: shop.tick().taken == 1, "the due job has run")
    assert due.state() is State.SUCCEEDED
    assert late.state() is State.FAILED


@pytest.mark.req("HK-1")
def test_concurrency_limits_parallel_jobs(app: App) -> None:
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


@pytest.mark.req("HK-1")
async def test_tick_in_a_running_loop_names_atick(shop: App) -> None:
    shop.enqueue("add", {"a": 1})
    with pytest.raises(HoldfastError, match="atick") as caught:
        shop.tick()
    assert caught.value.code == "running_loop"
    assert (await shop.atick()).succeeded == 1
    await shop.aclose()


@pytest.mark.slow
@pytest.mark.req("HK-1", "JF-3")
def test_concurrent_ticks_run_each_job_once(shop: App, new_app: NewApp) -> None:
    handles = [shop.enqueue("add", {"a": n}) for n in range(60)]
    apps = [new_app() for _ in range(4)]
    for each in apps:
        each._kinds.update(shop._kinds)
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
    assert {handle.get().attempt for handle in handles} == {1}


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
def test_invalid_options_are_refused(shop: App, options: dict[str, object]) -> None:
    with pytest.raises(HoldfastError):
        shop.tick(**options)  # type: ignore[arg-type]

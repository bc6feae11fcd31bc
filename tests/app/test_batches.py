"""Handlers for many jobs at once: each job has its own attempt, result, error, retry and cancellation."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import App, Backoff, BatchItem, Reject, Retry, RetryLater, State, current
from holdfast.errors import InvalidArguments, InvalidSetting
from tests.app.conftest import NewApp
from tests.support.waiting import until
from tests.support.workers import work_off, working

pytestmark = pytest.mark.req("HF-12")

LATER = Retry(max_attempts=2, backoff=Backoff(base=3600.0, jitter=False))


@dataclass
class Document:
    id: int
    text: str = ""


def test_one_call_runs_many_jobs(app: App) -> None:
    calls: list[list[Document]] = []

    @app.job(batch=4, within="200ms")
    async def index(documents: list[Document]) -> list[int | Exception]:
        assert current() is None
        calls.append(documents)
        return [document.id * 2 for document in documents]

    handles = app.enqueue_many(index.prepare(Document(n)) for n in range(10))
    work_off(app, concurrency=1)  # the jobs of a batch share a slot
    assert [handle.result(timeout=5) for handle in handles] == [2 * n for n in range(10)]
    assert [len(call) for call in calls] == [4, 4, 2]
    assert [document for call in calls for document in call] == [Document(n) for n in range(10)]
    for handle in handles:
        assert (handle.get().attempt, [event.type for event in handle.history()]) == (1, ["enqueue", "take", "succeed"])
    assert asyncio.run(index([Document(1)])) == [2]  # the function itself
    with pytest.raises(InvalidArguments):
        index.enqueue([Document(1)])  # type: ignore[arg-type]


def test_each_job_has_its_own_end(app: App) -> None:
    @app.job(batch=10, within="100ms", retry=LATER)
    def check(numbers: list[int]) -> list[str | Exception]:
        errors: dict[int, Exception] = {
            1: ValueError("odd"),
            2: Reject("too_even", "no"),
            3: RetryLater("1h", "not yet"),
        }
        return [errors.get(number, f"{number} is fine") for number in numbers]

    handles = app.enqueue_many(check.prepare(n) for n in range(4))
    work_off(app)
    jobs = [handle.get() for handle in handles]
    assert [job.state for job in jobs] == [State.SUCCEEDED, State.RETRY_WAITING, State.DEAD_LETTER, State.RETRY_WAITING]
    assert [job.error_code for job in jobs[1:]] == ["ValueError", "too_even", "retry_asked"]
    assert [job.retries for job in jobs] == [0, 1, 0, 1]
    assert handles[0].result() == "0 is fine"


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda _: 1 / 0, "ZeroDivisionError"),
        (lambda many: many[1:], "batch_results"),
        (lambda _: 7, "batch_results"),
    ],
)
def test_error_of_the_call_is_the_error_of_every_job(app: App, end: Callable[[list[int]], Any], code: str) -> None:
    @app.job(batch=3, within="100ms", retry=LATER)
    def check(numbers: list[int]) -> None:
        return end(numbers)  # type: ignore[no-any-return]

    handles = app.enqueue_many(check.prepare(n) for n in range(3))
    work_off(app)
    for handle in handles:
        job = handle.get()
        assert (job.state, job.error_code, job.retries) == (State.RETRY_WAITING, code, 1)


def test_jobs_are_cancelled_one_by_one(app: App) -> None:
    seen: list[list[BatchItem[int]]] = []
    go, stopped = asyncio.Event(), threading.Event()

    @app.job(batch=3, within="10s")
    async def check(numbers: list[BatchItem[int]]) -> list[int | Exception]:
        seen.append(numbers)
        try:
            while not numbers[1].cancelled:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await go.wait()
        except asyncio.CancelledError:
            stopped.set()
            raise
        return [number.value for number in numbers]

    handles = app.enqueue_many(check.prepare(n) for n in range(3))
    with working(app) as worker:
        until(lambda: seen, "the batch runs")
        assert {(item.job_id, item.attempt) for item in seen[0]} == {(handle.id, 1) for handle in handles}
        assert seen[0][0].idempotency_key == f"default:check:{handles[0].id}"
        app.jobs.cancel(handles[1].id)
        until(lambda: seen[0][1].cancelled, "the job knows")
        assert [item.cancelled for item in seen[0]] == [False, True, False]
        assert worker._loop is not None
        worker._loop.call_soon_threadsafe(go.set)
        assert [handles[n].result(timeout=10) for n in (0, 2)] == [0, 2]
        assert handles[1].state() == State.CANCELLED
        go.clear()
        others = app.enqueue_many(check.prepare(n) for n in range(3))
        until(lambda: len(seen) == 2, "the second batch runs")
        app.jobs.cancel(*(handle.id for handle in others))
        assert stopped.wait(10), "the call of a batch ends when all of its jobs were cancelled"
    assert Counter(handle.state() for handle in others) == {State.CANCELLED: 3}


def test_cancelled_job_leaves_the_batch_that_waits(app: App) -> None:
    calls: list[list[int]] = []

    @app.job(batch=3, within="1m")
    def check(numbers: list[int]) -> None:
        calls.append(numbers)

    first, second = check.enqueue(1), check.enqueue(2)
    with working(app) as background:
        until(lambda: first.state() == second.state() == State.IN_PROGRESS, "both wait")
        first.cancel()
        assert background.worker is not None
        running = background.worker._slots.running
        until(lambda: first.id not in running, "the worker knows")
        rest = [check.enqueue(n) for n in (4, 5)]
        for handle in (second, *rest):
            handle.result(timeout=20)
    assert [sorted(call) for call in calls] == [[2, 4, 5]]


def test_tenants_never_share_a_call(app: App, new_app: NewApp) -> None:
    calls: list[tuple[str, list[int]]] = []
    inner = new_app(tenant="other")

    @inner.job()
    def after(n: int) -> None: ...

    @inner.job(batch=4, within="200ms")
    def check(numbers: list[int]) -> None:
        calls.append((after.enqueue(0).tenant, sorted(numbers)))

    for n in range(3):
        for tenant in ("a", "b"):
            check.using(tenant=tenant).enqueue(n)
    with working(inner, tenant="*"):
        until(lambda: len(calls) == 2, "both batches run")
    assert sorted(calls) == [("a", [0, 1, 2]), ("b", [0, 1, 2])]


def test_stopping_worker_returns_jobs_that_wait(app: App) -> None:
    @app.job(batch=5, within="1m")
    def check(numbers: list[int]) -> None: ...

    handle = check.enqueue(1)
    with working(app, grace=0.1):
        until(lambda: handle.state() == State.IN_PROGRESS, "it waits for others")
    assert handle.state() in (State.QUEUED, State.RETRY_WAITING)
    job = handle.get()
    assert (job.retries, job.crashes) == (0, 0)


def test_tick_runs_a_batch_at_once(app: App) -> None:
    calls: list[int] = []

    @app.job(batch=50, within="1m")
    def check(numbers: list[int]) -> None:
        calls.append(len(numbers))

    app.enqueue_many(check.prepare(n) for n in range(3))
    app.tick()
    assert calls == [3]


def test_invalid_declarations_are_refused(app: App) -> None:
    def declare(function: Callable[..., Any], **options: Any) -> str:
        with pytest.raises(InvalidSetting) as refused:
            app.job(**options)(function)
        return refused.value.code

    def fine(numbers: list[int]) -> None: ...
    def two(ctx: Any, numbers: list[int]) -> None: ...
    def one(number: int) -> None: ...

    assert declare(two, batch=3) == declare(one, batch=3) == "invalid_batch"
    assert declare(fine, batch=0) == declare(fine, batch="x") == "invalid_setting"
    assert declare(fine, batch=3, within="2m") == "invalid_duration"
    assert declare(fine, within="2s") == declare(fine, batch=3, process=True) == "conflicting_options"

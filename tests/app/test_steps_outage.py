"""The store is unreachable while steps are written, read or awaited: workers wait, and no step runs twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import App, Backoff, Context, Retry, State, SyncContext
from holdfast.app.internals import session_of
from holdfast.engine.outcome import Failed
from holdfast.engine.steps import StepEntry
from holdfast.errors import StaleLease, StoreUnavailable
from holdfast.stores.flow import Flow
from holdfast.worker import executor
from holdfast.worker.writers import StepWriter
from tests.app.outages import Outage
from tests.app.test_steps import step_rows, steps_of
from tests.support.operations import name_of
from tests.support.stores import claim, open_lease, put_one, settle, work
from tests.support.waiting import until
from tests.support.workers import work_off, working

pytestmark = pytest.mark.req("HF-6", "CX-15", "SC-19")

ONCE = Retry(max_attempts=1)


class Kinds:
    """The same job in sync and async form, and its recorded side effects."""

    def __init__(self, app: App) -> None:
        self.done: list[str] = []

        @app.job("async", retry=ONCE)
        async def in_a_task(ctx: Context) -> list[str]:
            await ctx.step("first", self.act, "first")
            await ctx.sleep("10ms")
            await ctx.step("second", self.act, "second")
            return self.done

        @app.job("thread", retry=ONCE)
        def in_a_thread(ctx: SyncContext) -> list[str]:
            ctx.step("first", self.act, "first")
            ctx.sleep("10ms")
            ctx.step("second", self.act, "second")
            return self.done

    def act(self, name: str) -> None:
        self.done.append(name)


@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("operation", ["steps.save", "steps.list"])
@pytest.mark.parametrize("how", ["failing", "unanswered"])
def test_outage_of_step_operations_costs_no_attempt(
    app: App, monkeypatch: pytest.MonkeyPatch, kind: str, operation: str, how: str
) -> None:
    kinds, outage = Kinds(app), Outage(app, monkeypatch)
    (outage.failing if how == "failing" else outage.unanswered)[operation] = 2
    handle = app.enqueue(kind)
    with working(app):
        assert handle.result(timeout=20) == ["first", "second"]
    job = handle.get()
    assert (kinds.done, job.attempt, job.retries, job.crashes) == (["first", "second"], 2, 0, 0)
    assert outage.hits[operation] == 2


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_wait_whose_settlement_was_not_answered_is_waited_for_once(
    app: App, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    kinds, outage = Kinds(app), Outage(app, monkeypatch)
    handle = app.enqueue(kind)
    with working(app):
        outage.unanswered["leases.exchange"] = 3
        assert handle.result(timeout=20) == ["first", "second"]
    assert kinds.done == ["first", "second"]
    assert [(name, kind) for _, kind, name, _ in step_rows(app, handle.id)] == [
        ("first", "step"),
        ("sleep", "sleep"),
        ("second", "step"),
    ]


@pytest.mark.req("CX-10", "JF-5")
def test_handler_that_meets_an_outage_uses_no_attempt(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind that starts at most once is not started again."""
    monkeypatch.setattr(executor, "AFTER_OUTAGE", (0.0, 0.0))
    started: list[int] = []

    @app.job(retry=ONCE)
    async def orders(ctx: Context) -> str:
        started.append(ctx.attempt)
        if len(started) == 1:
            raise StoreUnavailable("connection lost")
        return "done"

    @app.job(at_most_once=True)
    async def pays() -> None:
        raise StoreUnavailable("connection lost")

    handle, once = orders.enqueue(), pays.enqueue()
    with working(app):
        assert handle.result(timeout=20) == "done"
        until(lambda: once.get().state.finished, "the payment has failed")
    job = handle.get()
    assert (started, job.retries, job.crashes) == ([1, 2], 0, 0)
    (snooze,) = [event for event in app.jobs.history(handle.id) if event.type == "snooze"]
    assert "database was lost" in snooze.meta["reason"]
    assert (once.get().state, once.get().attempt) == (State.DEAD_LETTER, 1)


def entry(n: int, value: str = "1") -> StepEntry:
    return StepEntry(n, f"step {n}", "step", value)


async def save_all(app: App, *saves: Any) -> list[Any]:
    try:
        return await asyncio.gather(*saves, return_exceptions=True)
    finally:
        await app.aclose()


def test_write_of_an_ended_attempt_is_refused(app: App) -> None:
    """A thread that could not be stopped writes for the previous attempt at the same moment under the same lease."""
    policy = Retry(max_attempts=5, backoff=Backoff(base=0.0, cap=0.0, jitter=False))
    session_of(app).make_ready()
    put_one(session_of(app).store, retry=policy)
    lease = open_lease(session_of(app).store)
    (first,) = claim(session_of(app).store, lease)
    assert settle(session_of(app).store, first, Failed("broken", "again")) == []
    session_of(app).store.run(session_of(app).store.leases.promote())
    (second,) = claim(session_of(app).store, lease)
    recorder = StepWriter(session_of(app).store, "*")
    old, new = recorder.save(first, [entry(1, '"old"')]), recorder.save(second, [entry(1, '"new"'), entry(2)])
    stale, refused = asyncio.run(save_all(app, old, new))
    assert [answer.fate for answer in stale] == ["stale"]
    assert refused == []
    assert [(step.n, step.value, step.attempt) for step in steps_of(app, second.id)] == [(1, "new", 2), (2, 1, 2)]


def test_unknown_lease_is_reported_to_every_writer(app: App) -> None:
    session_of(app).make_ready()
    for _ in range(3):
        put_one(session_of(app).store)
    lease = open_lease(session_of(app).store, tenant="default")
    claims = claim(session_of(app).store, lease, 3, tenant="default")
    recorder = StepWriter(session_of(app).store, "another")
    answers = asyncio.run(save_all(app, *(recorder.save(each, [entry(1)]) for each in claims)))
    assert [type(answer) for answer in answers] == [StaleLease] * 3


def test_large_results_are_not_written_in_one_batch(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    run = session_of(app).store.arun

    async def arun(flow: Flow[Any]) -> Any:
        start: Any = flow.start
        if name_of(flow)[0] == "steps.save":
            entries: list[tuple[str, int, StepEntry]] = start.args[-2]
            sizes.append(sum(len(each.value or "") for _, _, each in entries))
        return await run(flow)

    monkeypatch.setattr(session_of(app).store, "arun", arun)

    @app.job()
    async def large(ctx: Context) -> int:
        pages = await ctx.gather(*(ctx.step(f"page {n}", lambda: "x" * 1_000_000) for n in range(20)))
        return sum(map(len, pages))

    handle = large.enqueue()
    work_off(app)
    assert handle.result(timeout=20) == 20_000_000
    assert max(sizes) < 6_000_000
    assert sum(sizes) > 20_000_000


def test_write_of_a_lost_attempt_does_not_count_for_the_next_worker(app: App) -> None:
    """Two workers, one of them too late: its steps do not count for the other's attempt."""
    session_of(app).make_ready()
    put_one(session_of(app).store)
    lease = open_lease(session_of(app).store)
    (late,) = claim(session_of(app).store, lease)
    session_of(app).store.run(session_of(app).store.leases.end(lease, "gone", "*"))
    session_of(app).store.run(session_of(app).store.leases.recover())
    session_of(app).store.run(session_of(app).store.leases.promote())
    (answer,) = asyncio.run(save_all(app, StepWriter(session_of(app).store, "*").save(late, [entry(1)])))
    assert [each.fate for each in answer] == ["stale"]
    assert steps_of(app, late.id) == []
    assert [each.id for each in work(session_of(app).store)] == [late.id]
    assert app.jobs.get(late.id).state is State.SUCCEEDED

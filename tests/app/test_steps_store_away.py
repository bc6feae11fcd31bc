"""A store that is away while steps are written, read or waited for: it is waited for, and nothing is done twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import App, Backoff, Context, Retry, State, SyncContext
from holdfast.engine.outcome import Failed
from holdfast.engine.steps import StepEntry
from holdfast.errors import StaleLease, StoreUnavailable
from holdfast.stores.flow import Flow
from holdfast.worker import executor
from holdfast.worker.writers import StepWriter
from tests.app.away import Away
from tests.app.test_steps import steps_of, told
from tests.support.operations import name_of
from tests.support.stores import claim, open_lease, put_one, settle, work
from tests.support.waiting import until
from tests.support.workers import work_off, working

pytestmark = pytest.mark.req("HF-6", "CX-15", "SC-19")

ONCE = Retry(max_attempts=1)


class Kinds:
    """The same job in both colours, and what it did outside."""

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
@pytest.mark.parametrize("how", ["away", "deaf"])
def test_it_is_waited_for_and_costs_no_attempt(
    app: App, monkeypatch: pytest.MonkeyPatch, kind: str, operation: str, how: str
) -> None:
    kinds, away = Kinds(app), Away(app, monkeypatch)
    (away.left if how == "away" else away.deaf)[operation] = 2
    handle = app.enqueue(kind)
    with working(app):
        assert handle.result(timeout=20) == ["first", "second"]
    job = handle.get()
    assert (kinds.done, job.attempt, job.retries, job.crashes) == (["first", "second"], 2, 0, 0)
    assert away.met[operation] == 2


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_a_wait_whose_settlement_got_no_answer_is_waited_for_once(
    app: App, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    kinds, away = Kinds(app), Away(app, monkeypatch)
    handle = app.enqueue(kind)
    with working(app):
        away.deaf["leases.exchange"] = 3
        assert handle.result(timeout=20) == ["first", "second"]
    assert kinds.done == ["first", "second"]
    assert [(name, kind) for _, kind, name, _ in told(app, handle.id)] == [
        ("first", "step"),
        ("sleep", "sleep"),
        ("second", "step"),
    ]


@pytest.mark.req("CX-10", "JF-5")
def test_a_handler_that_meets_a_lost_database_uses_up_no_attempt(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind that is begun at most once is not begun again."""
    monkeypatch.setattr(executor, "AFTER_OUTAGE", (0.0, 0.0))
    begun: list[int] = []

    @app.job(retry=ONCE)
    async def orders(ctx: Context) -> str:
        begun.append(ctx.attempt)
        if len(begun) == 1:
            raise StoreUnavailable("connection lost")
        return "done"

    @app.job(at_most_once=True)
    async def pays() -> None:
        raise StoreUnavailable("connection lost")

    handle, once = orders.enqueue(), pays.enqueue()
    with working(app):
        assert handle.result(timeout=20) == "done"
        until(lambda: once.get().state.finished, "the payment to fail")
    job = handle.get()
    assert (begun, job.retries, job.crashes) == ([1, 2], 0, 0)
    (snooze,) = [event for event in app.jobs.history(handle.id) if event.type == "snooze"]
    assert "database was lost" in snooze.meta["reason"]
    assert (once.get().state, once.get().attempt) == (State.DEAD_LETTER, 1)


def entry(n: int, value: str = "1") -> StepEntry:
    return StepEntry(n, f"step {n}", "step", value)


async def all_of_them(app: App, *saves: Any) -> list[Any]:
    try:
        return await asyncio.gather(*saves, return_exceptions=True)
    finally:
        await app.aclose()


def test_an_attempt_that_is_over_does_not_speak_for_the_next_one(app: App) -> None:
    """A thread that could not be stopped writes of the attempt before, in the same moment and under the same lease."""
    policy = Retry(max_attempts=5, backoff=Backoff(base=0.0, cap=0.0, jitter=False))
    app._session.make_ready()
    put_one(app._store, retry=policy)
    lease = open_lease(app._store)
    (first,) = claim(app._store, lease)
    assert settle(app._store, first, Failed("broken", "again")) == []
    app._store.run(app._store.leases.promote())
    (second,) = claim(app._store, lease)
    recorder = StepWriter(app._store, "*")
    old, new = recorder.save(first, [entry(1, '"old"')]), recorder.save(second, [entry(1, '"new"'), entry(2)])
    stale, kept = asyncio.run(all_of_them(app, old, new))
    assert [answer.fate for answer in stale] == ["stale"]
    assert kept == []
    assert [(step.n, step.value, step.attempt) for step in steps_of(app, second.id)] == [(1, "new", 2), (2, 1, 2)]


def test_a_lease_that_nobody_knows_is_told_to_all_who_wrote_under_it(app: App) -> None:
    app._session.make_ready()
    for _ in range(3):
        put_one(app._store)
    lease = open_lease(app._store, tenant="default")
    claims = claim(app._store, lease, 3, tenant="default")
    recorder = StepWriter(app._store, "another")
    answers = asyncio.run(all_of_them(app, *(recorder.save(each, [entry(1)]) for each in claims)))
    assert [type(answer) for answer in answers] == [StaleLease] * 3


def test_large_results_are_not_written_all_at_once(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    run = app._store.arun

    async def arun(flow: Flow[Any]) -> Any:
        start: Any = flow.start
        if name_of(flow)[0] == "steps.save":
            entries: list[tuple[str, int, StepEntry]] = start.args[-2]
            sizes.append(sum(len(each.value or "") for _, _, each in entries))
        return await run(flow)

    monkeypatch.setattr(app._store, "arun", arun)

    @app.job()
    async def large(ctx: Context) -> int:
        found = await ctx.gather(*(ctx.step(f"page {n}", lambda: "x" * 1_000_000) for n in range(20)))
        return sum(map(len, found))

    handle = large.enqueue()
    work_off(app)
    assert handle.result(timeout=20) == 20_000_000
    assert max(sizes) < 6_000_000
    assert sum(sizes) > 20_000_000


def test_an_attempt_can_be_ended_while_another_is_written_for_it(app: App) -> None:
    """Two workers, one of them too late: what it has done is not taken for the other's."""
    app._session.make_ready()
    put_one(app._store)
    lease = open_lease(app._store)
    (late,) = claim(app._store, lease)
    app._store.run(app._store.leases.end(lease, "gone", "*"))
    app._store.run(app._store.leases.reap())
    app._store.run(app._store.leases.promote())
    (answer,) = asyncio.run(all_of_them(app, StepWriter(app._store, "*").save(late, [entry(1)])))
    assert [each.fate for each in answer] == ["stale"]
    assert steps_of(app, late.id) == []
    assert [each.id for each in work(app._store)] == [late.id]
    assert app.jobs.get(late.id).state is State.SUCCEEDED

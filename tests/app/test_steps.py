"""Durable steps: each one runs once, whatever happens to the attempt (HF-6, CX-8)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import (
    App,
    AppEvent,
    Backoff,
    Context,
    EventTimeout,
    Reject,
    Retry,
    State,
    SyncContext,
    step_key,
)
from holdfast.app.internals import session_of
from holdfast.engine.steps import Step
from tests.app.conftest import NewApp
from tests.support.workers import work_off, working

pytestmark = pytest.mark.req("HF-6", "CX-8")

AT_ONCE = Backoff(base=0.0, cap=0.0, jitter=False)
AGAIN = Retry(max_attempts=5, backoff=AT_ONCE)


@dataclass
class Receipt:
    number: int
    when: datetime


def steps_of(app: App, job_id: str) -> list[Step]:
    return session_of(app).run(session_of(app).store.steps.list(job_id, "default"))


def step_rows(app: App, job_id: str) -> list[tuple[int, str, str, Any]]:
    return [(step.n, step.kind, step.name, step.value) for step in steps_of(app, job_id)]


def test_completed_step_is_not_repeated(app: App) -> None:
    calls: list[str] = []

    def charge(amount: int) -> dict[str, int]:
        calls.append("charge")
        return {"charged": amount}

    async def ship(ref: dict[str, int]) -> str:
        calls.append("ship")
        return f"parcel for {ref['charged']}"

    @app.job(retry=AGAIN)
    async def order(ctx: Context, amount: int) -> str:
        calls.append("top")
        ref = await ctx.step("charge", charge, amount)
        parcel = await ctx.step("ship", ship, ref)
        if ctx.attempt < 3:
            raise ConnectionError("the last part fails")
        return parcel

    handle = order.enqueue(7)
    with working(app):
        assert handle.result(timeout=20) == "parcel for 7"
    assert calls == ["top", "charge", "ship", "top", "top"]
    assert step_rows(app, handle.id) == [(1, "step", "charge", {"charged": 7}), (2, "step", "ship", "parcel for 7")]


@pytest.mark.every_case
@pytest.mark.parametrize("form", ["sync", "async"])
def test_step_counts_the_tries_of_earlier_attempts(app: App, form: str) -> None:
    twice = Retry(max_attempts=2, backoff=AT_ONCE)

    def charge(attempt: int) -> int:
        if attempt < 3:
            raise ConnectionError("the bank is closed")
        return attempt

    @app.job("order", retry=AGAIN)
    async def order(ctx: Context) -> None:
        await ctx.step_options(retry=twice).step("charge", charge, ctx.attempt)
        await ctx.step("ship", charge, 3)

    @app.job("sync_order", retry=AGAIN)
    def sync_order(ctx: SyncContext) -> None:
        ctx.step_options(retry=twice).step("charge", charge, ctx.attempt)
        ctx.step("ship", charge, 3)

    handle = (order if form == "async" else sync_order).enqueue()
    with working(app):
        handle.result(timeout=20)
    # The policy of the step allows two tries in each attempt.
    assert [(step.name, step.tries) for step in steps_of(app, handle.id)] == [("charge", 5), ("ship", 1)]


def test_completed_step_is_not_repeated_in_a_sync_handler(app: App) -> None:
    calls: list[str] = []

    def charge(amount: int) -> int:
        calls.append("charge")
        return amount * 2

    async def ship() -> str:
        calls.append("ship")
        return "sent"

    @app.job(retry=AGAIN)
    def order(ctx: SyncContext, amount: int) -> list[Any]:
        paid = ctx.step("charge", charge, amount)
        sent = ctx.step("ship", ship)
        if ctx.attempt < 2:
            raise ConnectionError("again")
        return [paid, sent]

    handle = order.enqueue(4)
    with working(app):
        assert handle.result(timeout=20) == [8, "sent"]
    assert calls == ["charge", "ship"]


def test_sleep_frees_the_worker_and_continues_in_a_new_attempt(app: App) -> None:
    started: list[int] = []

    @app.job()
    async def naps(ctx: Context) -> str:
        started.append(ctx.attempt)
        await ctx.step("first", lambda: 1)
        await ctx.sleep("1h")
        await ctx.sleep_until(datetime.now(UTC) - timedelta(hours=1))
        return "rested"

    handle = naps.enqueue()
    work_off(app)
    job = handle.get()
    assert (job.state, started) == (State.RETRY_WAITING, [1])
    assert (job.retries, job.crashes) == (0, 0)
    session_of(app).run(session_of(app).store.clock.set(timedelta(hours=2), None))
    with working(app):
        assert handle.result(timeout=20) == "rested"
    assert [event.type for event in handle.history()][:4] == ["enqueue", "take", "snooze", "due"]
    assert handle.history()[2].meta["sleeps"] == "sleep"


@pytest.mark.parametrize("when", ["before", "after"])
def test_event_is_received_whether_sent_before_or_after_the_wait(app: App, when: str) -> None:
    @app.job()
    async def waits(ctx: Context, invoice: int) -> list[Any]:
        event = await ctx.wait_for_event("payment.settled", match={"invoice": invoice}, timeout="1h")
        assert isinstance(event, AppEvent)
        return [event.name, event.data["amount"], event.sent_by]

    handle = waits.enqueue(7)
    if when == "before":
        assert app.send_event("payment.settled", {"invoice": 7, "amount": 12}).woke == 0
    app.send_event("payment.settled", {"invoice": 8, "amount": 99})
    work_off(app)
    if when == "after":
        assert handle.state() is State.RETRY_WAITING
        assert app.send_event("payment.settled", {"invoice": 9, "amount": 1}).woke == 0
        assert app.send_event("payment.settled", {"invoice": 7, "amount": 12}).woke == 1
        assert handle.state() is State.QUEUED
    work_off(app)
    assert handle.result(timeout=20) == ["payment.settled", 12, "tester"]


def test_event_timeout_is_raised_and_remembered(app: App, new_app: NewApp) -> None:
    seen: list[str] = []

    @app.job()
    async def waits(ctx: Context) -> str:
        try:
            await ctx.wait_for_event("never", timeout="50ms")
        except EventTimeout:
            seen.append("late")
        await ctx.wait_for_event("continue")
        return "done"

    handle = waits.enqueue()
    with working(app):
        while len(steps_of(app, handle.id)) < 2 or handle.state() is not State.RETRY_WAITING:
            asyncio.run(asyncio.sleep(0.01))
        app.send_event("never")  # too late
        app.send_event("continue", job=handle.id)
        assert handle.result(timeout=20) == "done"
    assert seen == ["late", "late"]


def test_job_receives_each_event_once(app: App) -> None:
    @app.job()
    async def reads(ctx: Context) -> list[int]:
        return [(await ctx.wait_for_event("number")).data["n"] for _ in range(3)]

    handle = reads.enqueue()
    for n in (1, 2):
        app.send_event("number", {"n": n})
    work_off(app)
    app.send_event("number", {"n": 3}, key="three")
    assert app.send_event("number", {"n": 3}, key="three").created is False
    work_off(app)
    assert handle.result(timeout=5) == [1, 2, 3]


def test_gathered_steps_are_all_recorded_before_the_first_error_is_raised(app: App) -> None:
    calls: list[str] = []

    async def fetch(page: str) -> str:
        calls.append(page)
        if page == "b" and calls.count("b") == 1:
            raise ConnectionError("b is unreachable")
        await asyncio.sleep(0)
        return page.upper()

    @app.job(retry=AGAIN)
    async def pages(ctx: Context) -> list[str]:
        return await ctx.gather(*(ctx.step(f"page {page}", fetch, page) for page in "abc"))

    handle = pages.enqueue()
    with working(app):
        assert handle.result(timeout=20) == ["A", "B", "C"]
    assert sorted(calls) == ["a", "b", "b", "c"]


def test_gathered_steps_in_a_sync_handler(app: App) -> None:
    @app.job()
    def pages(ctx: SyncContext) -> list[str]:
        return ctx.gather(*(ctx.submit(f"page {page}", str.upper, page) for page in "abc"))

    handle = pages.enqueue()
    work_off(app)
    assert handle.result(timeout=5) == ["A", "B", "C"]


@pytest.mark.slow
def test_step_is_retried_by_its_own_policy_at_no_cost_to_the_job(app: App) -> None:
    tries: list[int] = []

    def flaky() -> str:
        tries.append(len(tries) + 1)
        if len(tries) < 4:
            raise ConnectionError("not yet")
        return "there"

    @app.job(retry=Retry(max_attempts=1))
    async def runs(ctx: Context) -> str:
        slow = Retry(max_attempts=2, backoff=Backoff(base=1.1, factor=1.0, jitter=False))
        quick = Retry(max_attempts=3, backoff=AT_ONCE)
        try:
            await ctx.step_options(retry=slow).step("slow", flaky)
        except ConnectionError:
            return await ctx.step_options(retry=quick).step("quick", flaky)
        return "too early"

    handle = runs.enqueue()
    with working(app):
        assert handle.result(timeout=20) == "there"
    steps = steps_of(app, handle.id)
    assert [(step.name, step.tries, step.error is None) for step in steps] == [("slow", 2, False), ("quick", 2, True)]
    assert handle.get().retries == 0


def test_caught_step_failure_is_replayed_in_later_attempts(app: App) -> None:
    class Declined(Exception):
        pass

    calls: list[str] = []

    def charge() -> None:
        calls.append("charge")
        raise Declined("no money")

    def refund() -> str:
        calls.append("refund")
        return "refunded"

    @app.job()
    async def pay(ctx: Context) -> str:
        try:
            await ctx.step("charge", charge)
        except Declined as error:
            calls.append(str(error))
            answer = await ctx.step("refund", refund)
            await ctx.sleep("10ms")
            return answer
        return "paid"

    handle = pay.enqueue()
    with working(app):
        assert handle.result(timeout=20) == "refunded"
    assert calls == ["charge", "no money", "refund", "no money"]


def test_step_has_its_own_timeout(app: App) -> None:
    async def hangs() -> None:
        await asyncio.sleep(60)

    @app.job(retry=Retry(max_attempts=1))
    async def waits(ctx: Context) -> str:
        try:
            await ctx.step_options(timeout=0.05).step("hangs", hangs)
        except TimeoutError:
            return "gave up"
        return "waited"

    handle = waits.enqueue()
    work_off(app)
    assert handle.result(timeout=5) == "gave up"


@pytest.mark.parametrize("change", ["name", "kind"])
def test_changed_steps_are_reported_and_nothing_runs(app: App, new_app: NewApp, change: str) -> None:
    done: list[str] = []

    @app.job("pay")
    async def pay(ctx: Context) -> None:
        await ctx.step("charge", done.append, "old charge")
        await ctx.wait_for_event("go")

    handle = pay.enqueue()
    work_off(app)
    app.send_event("go")
    newer = new_app()

    @newer.job("pay")
    async def pay_now(ctx: Context) -> None:
        if change == "name":
            await ctx.step("reserve", done.append, "reserve")
        else:
            await ctx.sleep("1h", name="charge")

    work_off(newer)
    (held,) = app.versions.held()
    assert (held.job_id, handle.get().state) == (handle.id, State.RETRY_WAITING)
    assert "durable call 1 was step 'charge'" in held.message
    assert done == ["old charge"]


def test_patched_keeps_running_jobs_on_the_old_path(app: App, new_app: NewApp) -> None:
    @app.job("pay")
    async def pay(ctx: Context) -> str:
        await ctx.step("charge", lambda: 1)
        await ctx.wait_for_event("go")
        return "old"

    under_way = pay.enqueue()
    work_off(app)
    newer = new_app()

    @newer.job("pay")
    async def pay_now(ctx: Context) -> str:
        way = "old"
        if await ctx.patched("reserve first"):
            await ctx.step("reserve", lambda: 1)
            way = "new"
        await ctx.step("charge", lambda: 1)
        await ctx.wait_for_event("go")
        return way

    fresh = newer.enqueue("pay")
    work_off(newer)
    app.send_event("go")
    work_off(newer)
    assert (under_way.result(timeout=5), fresh.result(timeout=5)) == ("old", "new")
    assert [name for _, _, name, _ in step_rows(app, fresh.id)] == ["reserve first", "reserve", "charge", "go"]


def test_later_attempt_sees_the_value_a_step_returned(app: App) -> None:
    moment = datetime(2027, 1, 31, tzinfo=UTC)

    def issue() -> Receipt:
        return Receipt(7, moment)

    seen: list[object] = []

    @app.job(retry=AGAIN)
    async def bill(ctx: Context) -> None:
        receipt = await ctx.step("issue", issue)
        seen.append(receipt)
        if ctx.attempt < 2:
            raise ConnectionError("again")

    handle = bill.enqueue()
    with working(app):
        handle.wait(timeout=20)
    assert seen == [Receipt(7, moment), Receipt(7, moment)]


def test_step_key_is_stable_across_attempts(app: App) -> None:
    keys: list[str] = []

    def charge() -> None:
        keys.append(step_key())
        if len(keys) < 2:
            raise ConnectionError("again")

    @app.job(retry=AGAIN)
    async def pay(ctx: Context) -> None:
        await ctx.step("charge", charge)
        await ctx.step("again", lambda: keys.append(step_key()))

    handle = pay.enqueue()
    with working(app):
        handle.wait(timeout=20)
    assert keys[0] == keys[1] == f"default:pay:{handle.id}:1"
    assert keys[2] == f"default:pay:{handle.id}:2"


@pytest.mark.parametrize(
    ("name", "function", "code"),
    [
        ("", len, "invalid_name"),
        ("x" * 201, len, "invalid_name"),
        ("a\nb", len, "invalid_name"),
        (7, len, "invalid_name"),
        ("ok", "not a function", "not_callable"),
    ],
)
def test_invalid_step_calls_are_refused(app: App, name: Any, function: Any, code: str) -> None:
    @app.job(retry=Retry(max_attempts=1))
    async def runs(ctx: Context) -> None:
        await ctx.step(name, function)

    handle = runs.enqueue()
    work_off(app)
    assert (handle.state(), handle.get().error_code) == (State.DEAD_LETTER, code)


@pytest.mark.parametrize("value", [object(), float("nan"), "\x00"])
def test_result_that_cannot_be_stored_fails_the_step(app: App, value: object) -> None:
    @app.job(retry=Retry(max_attempts=1))
    async def runs(ctx: Context) -> None:
        await ctx.step("bad", lambda: value)

    handle = runs.enqueue()
    work_off(app)
    assert handle.state() is State.DEAD_LETTER
    assert (handle.get().error_code or "").startswith("payload_")
    assert step_rows(app, handle.id) == []


def test_step_cannot_make_durable_calls(app: App) -> None:
    @app.job(retry=Retry(max_attempts=1))
    async def runs(ctx: Context) -> None:
        async def inner() -> None:
            await ctx.sleep("1h")

        await ctx.step("outer", inner)

    handle = runs.enqueue()
    work_off(app)
    assert handle.get().error_code == "nested_step"


def test_control_exception_in_a_step_ends_the_job(app: App) -> None:
    def refuses() -> None:
        raise Reject("no_such_card", "there is no such card")

    @app.job()
    async def pay(ctx: Context) -> None:
        await ctx.step_options(retry=Retry(max_attempts=5)).step("charge", refuses)

    handle = pay.enqueue()
    work_off(app)
    assert (handle.state(), handle.get().error_code) == (State.DEAD_LETTER, "no_such_card")


def test_task_group_that_waits_suspends_the_handler(app: App) -> None:
    @app.job()
    async def waits(ctx: Context) -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.step("one", lambda: 1))
            group.create_task(ctx.sleep("10ms"))
        return "both"

    handle = waits.enqueue()
    with working(app):
        assert handle.result(timeout=20) == "both"

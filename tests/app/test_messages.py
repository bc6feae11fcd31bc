"""Messages into a job, and values and answers out of it (HF-17)."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import App, Backoff, Context, EventTimeout, Message, Retry, State, SyncContext
from holdfast.errors import Conflict, InvalidSetting, JobFailed, NotFound, Refused, WaitTimeout
from tests.support.workers import work_off, working

pytestmark = pytest.mark.req("HF-17")

AGAIN = Retry(max_attempts=5, backoff=Backoff(base=0.0, cap=0.0, jitter=False))


@dataclass
class Limit:
    amount: int


@pytest.mark.every_case
@pytest.mark.parametrize("form", ["sync", "async"])
def test_messages_are_received_in_order_each_once(app: App, form: str) -> None:
    if form == "async":

        @app.job(name="collect", retry=AGAIN)
        async def collect(ctx: Context) -> list[Any]:
            received = [(await ctx.receive("item", timeout="30s")).data for _ in range(5)]
            if ctx.attempt < 3:
                raise ConnectionError("once more")
            return received
    else:

        @app.job(name="collect", retry=AGAIN)
        def collect(ctx: SyncContext) -> list[Any]:
            received = [ctx.receive("item", timeout="30s").data for _ in range(5)]
            if ctx.attempt < 3:
                raise ConnectionError("once more")
            return received

    handle = collect.enqueue()
    for n in range(3):
        handle.send("item", {"n": n})
    handle.send("other", "not for this name")
    with working(app):
        handle.send("item", [3])
        handle.send("item", None)
        assert handle.result(timeout=30) == [{"n": 0}, {"n": 1}, {"n": 2}, [3], None]


def test_a_job_that_waits_for_a_message_holds_no_slot(app: App) -> None:
    @app.job
    async def wait(ctx: Context) -> str:
        message = await ctx.receive("go")
        return f"{message.name} from {message.sent_by}: {message.data}"

    handle = wait.enqueue()
    work_off(app)
    assert handle.state() is State.RETRY_WAITING
    assert "mailbox:go" in str(handle.why())
    sent = handle.send("go", "now", key="k1")
    assert (sent.created, sent.woke) == (True, 1)
    assert handle.send("go", "again", key="k1").created is False
    work_off(app)
    assert handle.result(timeout=1).startswith("go from ")
    with pytest.raises(Conflict, match="receives no more messages"):
        handle.send("go")


def test_no_message_in_time(app: App) -> None:
    @app.job
    async def wait(ctx: Context) -> str:
        try:
            await ctx.receive("go", timeout="100ms")
        except EventTimeout as error:
            return error.message
        return "received"

    handle = wait.enqueue()
    with working(app):
        assert handle.result(timeout=20) == "message 'go' did not arrive in time"


def test_messages_are_no_events(app: App) -> None:
    handle = app.jobs.handle("01a1de74-eb8c-70f1-843b-cac5f6817387")
    with pytest.raises(NotFound):
        handle.send("go")
    with pytest.raises(InvalidSetting, match="messages to one job"):
        app.send_event("mailbox:go", {"data": 1})

    @app.job
    async def wait(ctx: Context) -> Any:
        return (await ctx.receive("go")).data

    job = wait.enqueue()
    job.send("go", 7)
    assert list(app.events.read_sent("reader")) == []


@pytest.mark.every_case
@pytest.mark.parametrize("form", ["sync", "async"])
def test_a_question_is_answered_or_refused(app: App, form: str) -> None:
    accepted: list[int] = []

    def check(limit: Limit) -> None:
        if limit.amount > 100:
            raise ValueError("at most 100")

    if form == "async":

        @app.job(name="clerk")
        async def clerk(ctx: Context) -> int:
            for _ in range(2):
                question = await ctx.receive("limit", type=Limit, check=check)
                accepted.append(question.data.amount)
                await ctx.answer(question, {"granted": question.data.amount})
            return 2
    else:

        @app.job(name="clerk")
        def clerk(ctx: SyncContext) -> int:
            for _ in range(2):
                question = ctx.receive("limit", type=Limit, check=check)
                accepted.append(question.data.amount)
                ctx.answer(question, {"granted": question.data.amount})
            return 2

    handle = clerk.enqueue()
    with working(app):
        assert handle.ask("limit", {"amount": 70}, timeout=20) == {"granted": 70}
        with pytest.raises(Refused, match="at most 100"):
            handle.ask("limit", {"amount": 101}, timeout=20)
        with pytest.raises(Refused, match="amount"):
            handle.ask("limit", {"amount": "much"}, timeout=20)
        assert handle.ask("limit", {"amount": 30}, key="q2", timeout=20) == {"granted": 30}
        assert handle.result(timeout=20) == 2
    assert set(accepted) == {70, 30}
    assert handle.ask("limit", None, key="q2", timeout=1) == {"granted": 30}, "asking again returns the same answer"


def test_a_question_without_an_answer(app: App) -> None:
    @app.job
    async def deaf(ctx: Context) -> None:
        await ctx.receive("stop")

    handle = deaf.enqueue()
    with working(app):
        with pytest.raises(WaitTimeout):
            handle.ask("anything", timeout=0.2)
        threading.Timer(0.2, lambda: handle.send("stop")).start()
        with pytest.raises(JobFailed, match="has ended without an answer"):
            handle.ask("anything", timeout=20)


def test_published_values(app: App) -> None:
    @app.job(retry=AGAIN)
    async def work(ctx: Context) -> None:
        await ctx.publish("state", "begun")
        if ctx.attempt == 1:
            raise ConnectionError("again")
        await ctx.publish("state", {"rows": 7})
        await ctx.publish("other", 1)
        await ctx.receive("end")

    handle = work.enqueue()
    assert handle.value("state") is None
    with working(app):
        assert handle.wait_for_value("other", timeout=20) == 1
        assert handle.value("state") == {"rows": 7}
        assert handle.value("none", default=3) == 3
        assert [(each.name, each.value) for each in app.jobs.values(handle.id)] == [
            ("other", 1),
            ("state", {"rows": 7}),
        ]
        handle.send("end")
        handle.result(timeout=20)
    assert handle.value("state") == {"rows": 7}
    with pytest.raises(JobFailed, match="has ended without a value"):
        handle.wait_for_value("none", timeout=5)


async def test_async_forms(app: App) -> None:
    @app.job
    async def echo(ctx: Context) -> str:
        question: Message = await ctx.receive("say")
        await ctx.publish("heard", question.data)
        await ctx.answer(question, str(question.data).upper())
        return "done"

    handle = await echo.aenqueue()
    with working(app):
        assert await handle.aask("say", "hello", timeout=20) == "HELLO"
        assert await handle.await_for_value("heard", timeout=20) == "hello"
        assert await handle.avalue("heard") == "hello"
        assert await handle == "done"

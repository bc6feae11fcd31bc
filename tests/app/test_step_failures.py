"""Unusual errors and results of steps: a later attempt sees them unchanged, and the job ends (HF-6)."""

from __future__ import annotations

import gc
import weakref
from functools import partial
from typing import Any

import pytest

from holdfast import App, Backoff, Context, Retry, State, SyncContext
from holdfast.errors import NotFound
from holdfast.worker.executor import Handler, execute
from holdfast.worker.shutdown import Stop
from tests.app.test_steps import AGAIN, AT_ONCE, steps_of
from tests.support.waiting import until
from tests.support.workers import work_off, working
from tests.unit.test_settlement import CLAIM

pytestmark = pytest.mark.req("HF-6", "CX-8")


class Declined(Exception):
    """Its constructor needs more than its message."""

    def __init__(self, bank: str, amount: int) -> None:
        super().__init__(bank, amount)
        self.bank, self.amount = bank, amount

    def __str__(self) -> str:
        return f"{self.bank} declined {self.amount}"


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no message")


ERRORS = {
    "plain": (ConnectionError("unreachable"), ConnectionError, "unreachable"),
    "extra constructor arguments": (Declined("ACME", 7), Declined, "ACME declined 7"),
    "unprintable": (Mute(), Mute, ""),
    "a key": (KeyError("k"), KeyError, "'k'"),
    "of the system": (OSError(2, "no such file"), FileNotFoundError, "[Errno 2] no such file"),
    "of text": (
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad byte"),
        UnicodeDecodeError,
        "'utf-8' codec can't decode byte 0xff in position 0: bad byte",
    ),
    "holdfast error": (NotFound("no such job"), NotFound, "no such job [not_found] Check the id and the tenant."),
}


@pytest.mark.parametrize(("error", "kind", "message"), ERRORS.values(), ids=ERRORS.keys())
def test_step_error_keeps_its_type_and_message_in_later_attempts(
    app: App, error: Exception, kind: type[Exception], message: str
) -> None:
    seen: list[tuple[type[Exception], str]] = []

    def fails() -> None:
        raise error

    @app.job(retry=Retry(max_attempts=2, backoff=AT_ONCE))
    async def tries(ctx: Context) -> None:
        try:
            await ctx.step("fails", fails)
        except kind as caught:
            seen.append((kind, _message(caught)))
            await ctx.step("note", lambda: None)
            raise

    handle = tries.enqueue()
    with working(app):
        until(lambda: handle.state() is State.DEAD_LETTER, "its attempts are used up")
    assert seen == [(kind, message)] * 2
    job = handle.get()
    assert job.error_code == (
        "not_found"
        if kind is NotFound
        else kind.__name__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )


def _message(error: Exception) -> str:
    try:
        return str(error)
    except ValueError:
        return ""


@pytest.mark.req("CX-11")
async def test_error_without_a_code_still_ends_its_job() -> None:
    """A HoldfastError created without its code: nothing may escape `execute`, or its slot is taken for good."""

    async def call(claim: Any, stop: Stop) -> None:
        raise NotFound.__new__(NotFound)

    outcome = await execute(Handler("k", call), CLAIM)
    assert type(outcome).__name__ == "Failed"


@pytest.mark.slow
def test_step_failure_after_a_pause_is_final_when_the_handler_pauses_again(app: App) -> None:
    """Its row exists and is still open: the write of the next pause closes it."""
    tries: list[int] = []
    later = Retry(max_attempts=2, backoff=Backoff(base=1.01, factor=1.0, jitter=False))

    def fails() -> None:
        tries.append(len(tries) + 1)
        raise ConnectionError("unreachable")

    @app.job()
    async def runs(ctx: Context) -> str:
        try:
            await ctx.step_options(retry=later).step("fails", fails)
        except ConnectionError:
            await ctx.sleep("10ms")
        return "gave up"

    handle = runs.enqueue()
    with working(app):
        assert handle.result(timeout=20) == "gave up"
    assert tries == [1, 2]
    (failed, _) = steps_of(app, handle.id)
    assert (failed.over, failed.tries, failed.error and failed.error["message"]) == (True, 2, "unreachable")


def test_step_whose_result_cannot_be_stored_is_not_retried(app: App) -> None:
    """The work was done, and a retry would return the same."""
    done: list[str] = []

    def charge() -> object:
        done.append("charged")
        return object()

    @app.job()
    async def pay(ctx: Context) -> None:
        await ctx.step_options(retry=Retry(max_attempts=5, backoff=AT_ONCE)).step("charge", charge)

    handle = pay.enqueue()
    work_off(app)
    assert (handle.state(), handle.get().error_code, done) == (State.DEAD_LETTER, "payload_not_json", ["charged"])


@pytest.mark.parametrize("limit", [None, 5.0])
def test_function_that_returns_a_coroutine_is_awaited(app: App, limit: float | None) -> None:
    async def fetch(page: int) -> int:
        return page * 2

    class Fetcher:
        async def __call__(self, page: int) -> int:
            return await fetch(page)

    @app.job(retry=AGAIN)
    async def reads(ctx: Context) -> list[int]:
        steps = ctx.step_options(timeout=limit)
        return [await steps.step("a", lambda: fetch(7)), await steps.step("b", Fetcher(), 8)]

    @app.job(retry=AGAIN)
    def reads_in_a_thread(ctx: SyncContext) -> list[int]:
        steps = ctx.step_options(timeout=limit)
        return [steps.step("a", lambda: fetch(7)), steps.step("b", Fetcher(), 8)]

    handles = [reads.enqueue(), reads_in_a_thread.enqueue()]
    work_off(app)
    assert [handle.result(timeout=5) for handle in handles] == [[14, 16], [14, 16]]


def test_step_functions_are_released_with_their_attempt(app: App) -> None:
    """Steps are often closures, and the values they hold may be large."""

    class Large:
        def shrink(self) -> int:
            return 1

        def __call__(self) -> int:
            return self.shrink()

    held: list[weakref.ref[Large]] = []

    @app.job()
    async def works(ctx: Context) -> int:
        large = Large()
        held.append(weakref.ref(large))
        await ctx.step("method", large.shrink)
        await ctx.step("part", partial(Large.shrink, large))
        await ctx.step("object", large)
        return await ctx.step("closure", lambda: large.shrink())

    handles = [works.enqueue() for _ in range(20)]
    work_off(app)
    assert [handle.result(timeout=5) for handle in handles] == [1] * 20
    gc.collect()
    assert [each() for each in held] == [None] * 20

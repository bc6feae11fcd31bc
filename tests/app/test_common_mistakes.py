"""Common mistakes with steps and approvals are reported or do no harm (HF-6, CX-5)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from holdfast import App, ApprovalNotice, Context, Retry, State, SyncContext
from holdfast.app.internals import kinds_of
from holdfast.errors import InvalidSetting
from tests.support.workers import work_off

pytestmark = pytest.mark.req("HF-6", "CX-5")

ONCE = Retry(max_attempts=1)


@pytest.mark.parametrize("way", ["async", "thread"])
def test_handler_that_catches_everything_still_waits_for_the_approval(app: App, way: str) -> None:
    done: list[str] = []

    def charge() -> str:
        done.append("charged")
        return "paid"

    if way == "async":

        @app.job("pay")
        async def pay(ctx: Context) -> str:
            try:
                await ctx.approval("pay", summary="Pay")
            except BaseException:
                done.append("caught")
            return await ctx.step("charge", charge)

    else:

        @app.job("pay")
        def pay(ctx: SyncContext) -> str:
            try:
                ctx.approval("pay", summary="Pay")
            except BaseException:
                done.append("caught")
            return ctx.step("charge", charge)

    handle = app.enqueue("pay")
    work_off(app)
    assert (handle.state(), done) == (State.WAITING_FOR_APPROVAL, ["caught"])
    app.approvals.approve(app.approvals.list()[0].id, by="ada")
    work_off(app)
    assert handle.result(timeout=5) == "paid"
    assert done == ["caught", "charged"]


@pytest.mark.req("HF-3")
def test_handler_that_catches_a_wait_cannot_complete_its_job(app: App) -> None:
    @app.job()
    def pay(ctx: SyncContext) -> None:
        try:
            ctx.approval("pay", summary="Pay")
        except BaseException:
            with ctx.transaction():
                raise AssertionError("the block was entered") from None

    handle = pay.enqueue()
    work_off(app)
    assert handle.state() is State.WAITING_FOR_APPROVAL


@pytest.mark.parametrize("way", ["async", "thread"])
def test_handler_that_returns_after_catching_a_wait_still_waits(app: App, way: str) -> None:
    if way == "async":

        @app.job("naps")
        async def naps(ctx: Context) -> str:
            try:
                await ctx.sleep("1h")
            except BaseException:
                return "wide awake"
            return "rested"

    else:

        @app.job("naps")
        def naps(ctx: SyncContext) -> str:
            try:
                ctx.sleep("1h")
            except BaseException:
                return "wide awake"
            return "rested"

    handle = app.enqueue("naps")
    work_off(app)
    assert handle.state() is State.RETRY_WAITING
    assert handle.history()[-1].meta["sleeps"] == "sleep"


@pytest.mark.parametrize("way", ["async", "thread"])
def test_gather_raises_an_error_before_it_waits(app: App, way: str) -> None:
    def fails() -> None:
        raise ConnectionError("unreachable")

    if way == "async":

        @app.job("both")
        async def both(ctx: Context) -> str:
            try:
                await ctx.gather(ctx.step("fails", fails), ctx.sleep("1h"))
            except ConnectionError:
                return await ctx.step("instead", lambda: "done")
            return "waited"

    else:

        @app.job("both")
        def both(ctx: SyncContext) -> str:
            try:
                ctx.gather(ctx.submit("fails", fails), lambda: ctx.sleep("1h"))
            except ConnectionError:
                return ctx.step("instead", lambda: "done")
            return "waited"

    handle = app.enqueue("both")
    work_off(app)
    assert handle.result(timeout=5) == "done"


def test_waiting_for_an_event_with_an_invalid_name_fails(app: App) -> None:
    name = "x" * 101
    with pytest.raises(InvalidSetting, match="at most 100"):
        app.send_event(name)

    @app.job(retry=ONCE)
    async def waits(ctx: Context) -> None:
        await ctx.wait_for_event(name)

    handle = waits.enqueue()
    work_off(app)
    assert (handle.state(), handle.get().error_code) == (State.DEAD_LETTER, "invalid_name")


def test_step_cannot_return_a_handle(app: App) -> None:
    @app.job()
    def other() -> None: ...

    @app.job(retry=ONCE)
    async def runs(ctx: Context) -> None:
        await ctx.step("other", other.enqueue)

    handle = runs.enqueue()
    work_off(app)
    job = handle.get()
    assert (job.error_code, job.error_message) == (
        "payload_not_json",
        "result of enqueue $: holdfast.features.jobs.handle.Handle is not JSON",
    )


def test_sync_gather_of_results_names_submit(app: App) -> None:
    @app.job(retry=ONCE)
    def pages(ctx: SyncContext) -> list[Any]:
        return ctx.gather(ctx.step("a", str, 1), ctx.step("b", str, 2))  # type: ignore[arg-type]

    handle = pages.enqueue()
    work_off(app)
    job = handle.get()
    assert (job.state, job.error_code) == (State.DEAD_LETTER, "not_callable")
    assert "ctx.submit" in (job.error_message or "")


def test_notifier_with_a_wrong_signature_is_refused_at_declaration(app: App) -> None:
    with pytest.raises(InvalidSetting) as caught:

        @app.approval_notifier()
        def tell(what: ApprovalNotice) -> None: ...

    assert caught.value.code == "invalid_approval"
    assert kinds_of(app) == {}

    @app.approval_notifier()
    def notify(ctx: SyncContext, notice: ApprovalNotice) -> None: ...

    assert set(kinds_of(app)) == {"approval_notice"}


@pytest.mark.req("CX-14")
def test_jobs_are_listed_by_state_name_and_invalid_filters_are_refused(app: App) -> None:
    """The guides use `app.jobs.list(state="dead_letter")`."""
    handle = app.enqueue("pay")
    assert [job.id for job in app.jobs.list(state="queued")] == [handle.id]
    assert app.jobs.list(state="dead_letter", limit=20) == []
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"state": "dead"}, "unknown_state"),
        ({"since": datetime(2027, 1, 31)}, "invalid_time"),
        ({"until": "1d"}, "invalid_time"),
        ({"limit": 0}, "invalid_limit"),
        ({"limit": "20"}, "invalid_limit"),
        ({"status": "queued"}, "unknown_option"),
    ]
    for wanted, code in wrong:
        with pytest.raises(InvalidSetting) as refused:
            app.jobs.list(**wanted)
        assert refused.value.code == code, wanted

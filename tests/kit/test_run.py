"""`run` runs one job and returns its result or raises its exception."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone

import pytest

from holdfast import Cancel, Reject, RetryLater, State
from holdfast.app.internals import kinds_of
from holdfast.errors import Conflict, InvalidArguments, JobFailed, NotFound, WaitTimeout
from holdfast.testing import JobWaits, Kit
from tests.kit import shop
from tests.support.waiting import until

pytestmark = pytest.mark.req("HF-7")


def test_run_returns_the_result(kit: Kit) -> None:
    assert kit.run(shop.send_receipt, "ada@example.com", order=7) == "receipt 7 for ada@example.com"
    (job,) = kit.enqueued(shop.send_receipt, state=State.SUCCEEDED)
    assert [event.type for event in kit.history(job)] == ["enqueue", "take", "succeed"]


async def test_arun_returns_the_result_or_raises(kit: Kit) -> None:
    assert await kit.arun(shop.send_receipt, "ada@example.com", 7) == "receipt 7 for ada@example.com"
    with pytest.raises(shop.CardDeclined):
        await kit.arun(shop.charge, 7)


def test_arguments_and_result_pass_through_json(kit: Kit) -> None:
    """The result is rebuilt, in UTC: it is not the object that was passed in."""
    at = datetime(2026, 3, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    invoice = kit.run(shop.bill, shop.Invoice(7, at), tags=["a"])
    assert invoice == shop.Invoice(8, at)
    assert invoice.at.utcoffset() == timedelta(0)
    with pytest.raises(InvalidArguments):
        kit.run(shop.send_receipt, "ada@example.com", order="seven")  # type: ignore[arg-type]
    kit.assert_not_enqueued(shop.send_receipt)


def test_run_raises_the_exception_of_the_handler(kit: Kit) -> None:
    with pytest.raises(shop.CardDeclined) as declined:
        kit.run(shop.charge, 7)
    assert declined.value.order == 7
    (job,) = kit.enqueued(shop.charge)
    assert declined.value.__notes__ == [f"raised by job {job.id} (charge), which is retry_waiting now"]
    assert declined.traceback[-1].name == "charge"
    with pytest.raises(Reject, match="come back tomorrow"):
        kit.run(shop.refuse)
    with pytest.raises(RetryLater):
        kit.run(shop.retry_later)


def test_run_raises_cancel_of_the_handler(kit: Kit) -> None:
    @shop.app.job("withdrawn")
    def withdrawn() -> None:
        raise Cancel("the order was withdrawn")

    try:
        with pytest.raises(Cancel, match="withdrawn"):
            kit.run(withdrawn)
        kit.assert_enqueued(withdrawn, state="cancelled")
    finally:
        del kinds_of(shop.app)["withdrawn"]


def test_run_runs_only_that_job(kit: Kit) -> None:
    """Neither earlier jobs nor the jobs it enqueues."""
    before = [shop.place_order.enqueue(order) for order in range(3)]
    assert kit.run(shop.place_order, 3) is None
    assert [handle.state() for handle in before] == [State.QUEUED] * 3
    assert [event.attempt for handle in before for event in kit.history(handle) if event.attempt] == []
    (receipt,) = kit.assert_enqueued(shop.send_receipt, times=1)
    assert receipt.state is State.QUEUED
    assert [job.payload["order"] for job in kit.drain(["default"]).jobs] == [0, 1, 2], (
        "the earlier jobs are still queued"
    )


def test_run_picks_its_job_among_others_that_are_due(kit: Kit) -> None:
    handles = [shop.snooze.enqueue(0) for _ in range(3)]
    with pytest.raises(JobWaits):
        kit.run(handles[0])
    assert handles[0].state() is State.RETRY_WAITING, "due again at once, ahead of the others"
    with pytest.raises(JobWaits):
        kit.run(handles[1])
    assert [handle.get().attempt for handle in handles] == [1, 1, 0]


def test_handle_can_be_run_until_it_has_ended(kit: Kit) -> None:
    handle = shop.charge.using(delay="1d").enqueue(7)
    for state in (State.RETRY_WAITING, State.RETRY_WAITING, State.DEAD_LETTER):
        with pytest.raises(shop.CardDeclined):
            kit.run(handle)
        assert handle.state() is state
    with pytest.raises(JobFailed, match="dead_letter"):
        kit.run(handle)
    assert handle.get().attempt == 3, "an ended job is not run again"


def test_prepared_calls_and_keys_run_one_job(kit: Kit) -> None:
    call = shop.send_receipt.using(key="once").prepare("ada@example.com", 7)
    assert kit.run(call) == "receipt 7 for ada@example.com"
    assert kit.run(shop.send_receipt.using(key="once"), "ada@example.com", 7) == "receipt 7 for ada@example.com"
    (job,) = kit.enqueued()
    assert job.attempt == 1


def test_snoozed_job_raises_job_waits(kit: Kit) -> None:
    handle = shop.snooze.enqueue(3600)
    with pytest.raises(JobWaits, match="the file is not there yet") as waits:
        kit.run(handle)
    assert waits.value.code == "job_waits"
    assert waits.value.job.due_at is not None
    assert waits.value.job.due_at - datetime.now(UTC) > timedelta(minutes=59)
    assert kit.run(handle) == 2


def test_exit_and_timeout_are_failed_jobs(kit: Kit) -> None:
    with pytest.raises(JobFailed, match="SystemExit: 3") as failed:
        kit.run(shop.exits)
    assert isinstance(failed.value.__cause__, SystemExit)
    with pytest.raises(JobFailed, match=r"timeout: the handler was not done after 0\.05 s"):
        kit.run(shop.too_slow)


@pytest.mark.slow
def test_hanging_job_is_released_after_the_timeout(kit_url: str | None) -> None:
    with Kit(shop.app, kit_url, timeout="1s") as kit:
        with pytest.raises(WaitTimeout, match="not done after 1 s; released: hang"):
            kit.run(shop.hang)
        kit.assert_enqueued(shop.hang, state="retry_waiting")


def test_unknown_kind_cannot_be_run(kit: Kit) -> None:
    with pytest.raises(NotFound, match="declares no job") as unknown:
        kit.run(shop.app.enqueue("of.another.program"))
    assert unknown.value.code == "unknown_kind"


@pytest.mark.slow
async def test_running_job_cannot_be_run_again(kit: Kit) -> None:
    handle = await shop.hang.aenqueue()
    drain = asyncio.create_task(kit.adrain())
    await asyncio.to_thread(until, lambda: handle.state() is State.IN_PROGRESS, "the job runs")
    with pytest.raises(Conflict, match="in_progress"):
        await kit.arun(handle)
    drain.cancel()
    await asyncio.wait([drain])

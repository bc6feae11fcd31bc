"""`run`: one job, here and now, with its result or its own exception."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone

import pytest

from holdfast import Cancel, Reject, RetryLater, State
from holdfast.errors import Conflict, InvalidArguments, JobFailed, NotFound, WaitTimeout
from holdfast.testing import JobWaits, Kit
from tests.kit import shop
from tests.support.waiting import until

pytestmark = pytest.mark.req("HF-7")


def test_it_answers_the_result(kit: Kit) -> None:
    assert kit.run(shop.send_receipt, "ada@example.com", order=7) == "receipt 7 for ada@example.com"
    (job,) = kit.enqueued(shop.send_receipt, state=State.SUCCEEDED)
    assert [event.type for event in kit.history(job)] == ["enqueue", "take", "succeed"]


async def test_the_same_in_async_code(kit: Kit) -> None:
    assert await kit.arun(shop.send_receipt, "ada@example.com", 7) == "receipt 7 for ada@example.com"
    with pytest.raises(shop.CardDeclined):
        await kit.arun(shop.charge, 7)


def test_arguments_and_result_go_through_json(kit: Kit) -> None:
    """What comes back is rebuilt, and in UTC: not the object that went in."""
    at = datetime(2026, 3, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    invoice = kit.run(shop.bill, shop.Invoice(7, at), tags=["a"])
    assert invoice == shop.Invoice(8, at)
    assert invoice.at.utcoffset() == timedelta(0)
    with pytest.raises(InvalidArguments):
        kit.run(shop.send_receipt, "ada@example.com", order="seven")  # type: ignore[arg-type]
    kit.assert_not_enqueued(shop.send_receipt)


def test_it_raises_what_the_handler_raised(kit: Kit) -> None:
    with pytest.raises(shop.CardDeclined) as declined:
        kit.run(shop.charge, 7)
    assert declined.value.order == 7
    (job,) = kit.enqueued(shop.charge)
    assert declined.value.__notes__ == [f"raised by job {job.id} (charge), which is retry_waiting now"]
    assert declined.traceback[-1].name == "charge"
    with pytest.raises(Reject, match="come back tomorrow"):
        kit.run(shop.refuse)
    with pytest.raises(RetryLater):
        kit.run(shop.ask_again)


def test_a_job_that_cancels_itself_raises_what_it_raised(kit: Kit) -> None:
    @shop.app.job("withdrawn")
    def withdrawn() -> None:
        raise Cancel("the order was withdrawn")

    try:
        with pytest.raises(Cancel, match="withdrawn"):
            kit.run(withdrawn)
        kit.assert_enqueued(withdrawn, state="cancelled")
    finally:
        del shop.app._kinds["withdrawn"]


def test_only_that_job_runs(kit: Kit) -> None:
    """Neither those before it, nor what it enqueues."""
    before = [shop.place_order.enqueue(order) for order in range(3)]
    assert kit.run(shop.place_order, 3) is None
    assert [handle.state() for handle in before] == [State.QUEUED] * 3
    assert [event.attempt for handle in before for event in kit.history(handle) if event.attempt] == []
    (receipt,) = kit.assert_enqueued(shop.send_receipt, times=1)
    assert receipt.state is State.QUEUED
    assert [job.payload["order"] for job in kit.drain(["default"]).jobs] == [0, 1, 2], "and they are where they were"


def test_one_in_the_midst_of_others_that_come_back_just_now(kit: Kit) -> None:
    handles = [shop.put_off.enqueue(0) for _ in range(3)]
    with pytest.raises(JobWaits):
        kit.run(handles[0])
    assert handles[0].state() is State.RETRY_WAITING, "due again at once, and before the others"
    with pytest.raises(JobWaits):
        kit.run(handles[1])
    assert [handle.get().attempt for handle in handles] == [1, 1, 0]


def test_a_handle_again_and_again(kit: Kit) -> None:
    handle = shop.charge.using(delay="1d").enqueue(7)
    for state in (State.RETRY_WAITING, State.RETRY_WAITING, State.DEAD_LETTER):
        with pytest.raises(shop.CardDeclined):
            kit.run(handle)
        assert handle.state() is state
    with pytest.raises(JobFailed, match="dead_letter"):
        kit.run(handle)
    assert handle.get().attempt == 3, "what has ended is not run"


def test_what_was_prepared_and_what_has_a_key(kit: Kit) -> None:
    call = shop.send_receipt.using(key="once").prepare("ada@example.com", 7)
    assert kit.run(call) == "receipt 7 for ada@example.com"
    assert kit.run(shop.send_receipt.using(key="once"), "ada@example.com", 7) == "receipt 7 for ada@example.com"
    (job,) = kit.enqueued()
    assert job.attempt == 1


def test_a_job_that_puts_itself_off_has_no_result_yet(kit: Kit) -> None:
    handle = shop.put_off.enqueue(3600)
    with pytest.raises(JobWaits, match="the file is not there yet") as waits:
        kit.run(handle)
    assert waits.value.code == "job_waits"
    assert waits.value.job.due_at is not None
    assert waits.value.job.due_at - datetime.now(UTC) > timedelta(minutes=59)
    assert kit.run(handle) == 2


def test_what_must_not_end_a_test_run_is_a_failed_job(kit: Kit) -> None:
    with pytest.raises(JobFailed, match="SystemExit: 3") as failed:
        kit.run(shop.leave)
    assert isinstance(failed.value.__cause__, SystemExit)
    with pytest.raises(JobFailed, match=r"timeout: the handler was not done after 0\.05 s"):
        kit.run(shop.too_slow)


@pytest.mark.slow
def test_a_job_that_hangs_is_given_up(place: str | None) -> None:
    with Kit(shop.app, place, timeout="1s") as kit:
        with pytest.raises(WaitTimeout, match="not done after 1 s; released: hang"):
            kit.run(shop.hang)
        kit.assert_enqueued(shop.hang, state="retry_waiting")


def test_what_cannot_be_run_here(kit: Kit) -> None:
    with pytest.raises(NotFound, match="declares no job") as unknown:
        kit.run(shop.app.enqueue("of.another.program"))
    assert unknown.value.code == "unknown_kind"


@pytest.mark.slow
async def test_a_job_that_runs_already(kit: Kit) -> None:
    handle = await shop.hang.aenqueue()
    drain = asyncio.create_task(kit.adrain())
    await asyncio.to_thread(until, lambda: handle.state() is State.IN_PROGRESS, "the job runs")
    with pytest.raises(Conflict, match="in_progress"):
        await kit.arun(handle)
    drain.cancel()
    await asyncio.wait([drain])

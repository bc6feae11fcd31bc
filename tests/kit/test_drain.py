"""`drain` runs due jobs and the jobs they create, on the real state machine, until none is due."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import State
from holdfast.errors import Conflict, HoldfastError, InvalidSetting, WaitTimeout
from holdfast.testing import JobsFailed, Kit, NeverIdle
from tests.kit import shop
from tests.support.waiting import until
from tests.support.workers import working

pytestmark = pytest.mark.req("HF-7")


def test_drain_runs_due_jobs_and_the_jobs_they_create(kit: Kit) -> None:
    first = shop.place_order.enqueue(7)
    report = kit.drain()
    assert [job.kind for job in report.jobs] == ["place_order", "send_receipt"]
    assert report.states == {"succeeded": 2}
    assert report.attempts == 2
    assert "2 jobs in 2 attempts: 2 succeeded" in repr(report)
    assert [event.type for event in kit.history(first)] == ["enqueue", "take", "succeed"]
    (receipt,) = kit.enqueued(shop.send_receipt)
    assert (receipt.parent_id, receipt.queue) == (first.id, "mail")
    (reminder,) = kit.enqueued(shop.remind)
    assert reminder.state is State.QUEUED, "the reminder is not due yet"


def test_a_failure_is_logged_once(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    shop.charge.enqueue(7)
    kit.drain(check=False)
    (failure,) = (record for record in caplog.records if "CardDeclined" in record.getMessage())
    assert failure.name == "holdfast.worker"


async def test_adrain_runs_due_jobs_and_the_jobs_they_create(kit: Kit) -> None:
    handle = await shop.place_order.aenqueue(7)
    report = await kit.adrain()
    assert report.states == {"succeeded": 2}
    assert await handle.astate() is State.SUCCEEDED
    assert (await kit.adrain()).attempts == 0


async def test_sync_form_refuses_to_block_a_running_loop(kit: Kit) -> None:
    with pytest.raises(InvalidSetting, match=r"await kit\.adrain") as refused:
        kit.drain()
    assert refused.value.code == "running_loop"
    with pytest.raises(InvalidSetting, match=r"await kit\.arun"):
        kit.run(shop.snooze, 0)


def test_jobs_run_one_at_a_time_in_queue_order(kit: Kit) -> None:
    orders = [3, 1, 2]
    for order in orders:
        shop.send_receipt.enqueue("ada@example.com", order)
    shop.send_receipt.using(priority=1).enqueue("ada@example.com", 0)
    assert [job.payload["order"] for job in kit.drain().jobs] == [0, *orders]


@pytest.mark.slow
def test_drain_can_be_limited_to_queues(kit: Kit) -> None:
    shop.place_order.enqueue(1)
    shop.send_receipt.enqueue("ada@example.com", 1)
    assert [job.kind for job in kit.drain(["mail"]).jobs] == ["send_receipt"]
    assert [job.kind for job in kit.drain(["default"]).jobs] == ["place_order"]
    assert kit.drain(["default"]).attempts == 0
    assert kit.drain().attempts == 1


def test_jobs_of_other_programs_are_not_run(kit: Kit) -> None:
    shop.app.enqueue("of.another.program", {"x": 1})
    assert kit.drain().attempts == 0
    (job,) = kit.enqueued()
    assert job.state is State.QUEUED


# --- failures ---


@pytest.mark.slow
def test_failure_is_reported_even_if_retries_remain(kit: Kit) -> None:
    shop.send_receipt.enqueue("ada@example.com", 1)
    shop.charge.enqueue(7)
    shop.charge.enqueue(8)
    with pytest.raises(JobsFailed) as failed:
        kit.drain()
    assert failed.value.code == "jobs_failed"
    assert isinstance(failed.value.__cause__, shop.CardDeclined)
    assert [failure.job.payload["order"] for failure in failed.value.failures] == [7, 8]
    assert failed.value.report.states == {"succeeded": 1, "retry_waiting": 2}
    message = str(failed.value)
    assert "2 jobs failed" in message
    assert "drain(check=False)" in message
    assert "is retry_waiting after 1 attempt: tests.kit.shop.CardDeclined: order 7 was declined" in message
    second = message.partition("order 8 was declined")[2]
    assert 'shop.py", line' in second, "the traceback of the failure that is not the cause"
    assert "testing/drain.py" not in second, "no frames of the kit"


@pytest.mark.slow
def test_expected_failures_are_returned_in_the_report(kit: Kit) -> None:
    shop.charge.enqueue(7)
    report = kit.drain(check=False)
    (failure,) = report.failures
    assert isinstance(failure.error, shop.CardDeclined)
    assert failure.error.order == 7
    assert failure.job.state is State.RETRY_WAITING
    for state in (State.RETRY_WAITING, State.DEAD_LETTER):
        kit.travel("1h")
        assert kit.drain(check=False).states == {state: 1}


@pytest.mark.slow
def test_retry_waits_exactly_as_long_as_its_policy(kit: Kit) -> None:
    shop.charge.enqueue(7)
    with kit.frozen():
        (job,) = kit.drain(check=False).jobs
        assert job.due_at == kit.now() + timedelta(seconds=60)
        kit.travel(59.999)
        assert kit.drain().attempts == 0
        kit.travel(0.001)
        assert kit.drain(check=False).attempts == 1


@pytest.mark.slow
def test_failure_followed_by_success_is_not_reported(kit: Kit) -> None:
    handle = shop.second_time_lucky.enqueue()
    report = kit.drain()
    assert (report.attempts, report.states) == (2, {"succeeded": 1})
    assert handle.result() == 2


def test_dead_letters_are_failures_but_requested_retries_are_not(kit: Kit) -> None:
    shop.refuse.enqueue()
    with pytest.raises(JobsFailed, match="dead_letter after 1 attempt: not_today: come back tomorrow"):
        kit.drain()
    shop.retry_later.enqueue()
    shop.snooze.enqueue(60)
    assert kit.drain().states == {"retry_waiting": 2}


def test_snoozed_job_runs_when_the_clock_has_moved(kit: Kit) -> None:
    handle = shop.snooze.enqueue(60)
    assert kit.drain().states == {"retry_waiting": 1}
    assert kit.drain().attempts == 0
    kit.travel("1m")
    assert kit.drain().states == {"succeeded": 1}
    assert handle.result() == 2


@pytest.mark.slow
def test_slow_drain_makes_no_further_job_due(kit: Kit) -> None:
    """The snooze lasts one millisecond; the drain takes much longer."""
    shop.snooze.enqueue(0.001)
    shop.hang.enqueue(0.05)
    assert kit.drain().attempts == 2
    assert kit.drain().attempts == 0
    kit.travel(0.001)
    assert kit.drain().attempts == 1


def test_endless_job_raises_never_idle(kit: Kit) -> None:
    shop.for_ever.enqueue()
    with pytest.raises(NeverIdle, match=r"after 5 attempts; they were for_ever \(6\)") as never:
        kit.drain(limit=5)
    assert never.value.code == "never_idle"


def test_reaching_the_limit_exactly_is_no_error(kit: Kit) -> None:
    for order in range(3):
        shop.send_receipt.enqueue("ada@example.com", order)
    assert kit.drain(limit=3).attempts == 3


def test_deadline_passes_with_the_clock(kit: Kit) -> None:
    handle = shop.snooze.using(deadline=datetime.now(UTC) + timedelta(hours=1), delay="2h").enqueue(0)
    kit.travel("2h")
    assert kit.drain().attempts == 0
    assert (handle.get().state, handle.get().error_code) == (State.FAILED, "deadline_passed")


# --- timeouts and concurrent work ---


@pytest.mark.slow
def test_job_waiting_for_another_job_needs_concurrency(kit_url: str | None) -> None:
    with Kit(shop.app, kit_url, timeout=2) as kit:
        handle = shop.wait_for_receipt.enqueue(7)
        with pytest.raises(WaitTimeout, match=r"not done after 2 s; released: wait_for_receipt.*concurrency"):
            kit.drain()
    with Kit(shop.app, kit_url, timeout=60) as kit:
        handle = shop.wait_for_receipt.enqueue(7)
        assert kit.drain(concurrency=2).states == {"succeeded": 2}
        assert handle.result() == "receipt 7 for bob@example.com"


async def test_cancelled_drain_hands_its_jobs_back(kit: Kit) -> None:
    handle = await shop.hang.aenqueue()
    drain = asyncio.create_task(kit.adrain())
    await asyncio.to_thread(until, lambda: handle.state() is State.IN_PROGRESS, "the job runs")
    drain.cancel()
    with pytest.raises(asyncio.CancelledError):
        await drain
    assert handle.state() is State.RETRY_WAITING


@pytest.mark.slow
async def test_clock_can_move_while_a_job_runs(kit: Kit) -> None:
    """The lease does not expire: the third job is claimed under it while the second still runs."""
    handles = [await shop.hang.aenqueue(seconds) for seconds in (0.4, 1.2, 0.0)]
    drain = asyncio.create_task(kit.adrain(concurrency=2))
    await asyncio.to_thread(until, lambda: handles[1].state() is not State.QUEUED, "the job runs")
    kit.travel("30d")
    report = await drain
    assert (report.attempts, report.states) == (3, {"succeeded": 3})
    assert kit.now() - datetime.now(UTC) > timedelta(days=29)


@pytest.mark.slow
def test_drain_leaves_no_threads(kit: Kit) -> None:
    before = set(threading.enumerate())
    for order in range(5):
        shop.send_receipt.enqueue("ada@example.com", order)
        kit.drain()
    names = ("holdfast-job", "holdfast-heartbeat")
    until(
        lambda: not [each for each in set(threading.enumerate()) - before if each.name.startswith(names)],
        "the threads are gone",
        10.0,
    )


def test_kit_errors_are_holdfast_errors() -> None:
    assert issubclass(JobsFailed, HoldfastError)
    assert issubclass(NeverIdle, HoldfastError)


@pytest.mark.req("DP-14")
def test_workflow_is_drained_to_its_end(kit: Kit) -> None:
    wf = shop.app.workflow("small")
    first = wf.add(shop.send_receipt, "ada", 7)
    second = wf.add(shop.send_receipt, "ada", 8, after=first)
    wf.add(shop.send_receipt, "ada", 9, after=second)
    run = wf.start()
    assert [job.payload["order"] for job in kit.drain().jobs] == [7, 8, 9]
    assert run.status() == "succeeded"
    assert run[second].state() is State.SUCCEEDED


@pytest.mark.req("DP-22")
def test_waiting_without_a_drain_raises_instead_of_hanging(kit: Kit) -> None:
    handle = shop.place_order.enqueue(7)
    with pytest.raises(Conflict) as refused:
        handle.result()
    assert refused.value.code == "not_drained"
    assert handle.id in refused.value.message
    assert "kit.drain()" in (refused.value.fix or "")
    with pytest.raises(Conflict, match="not_drained"):
        asyncio.run(handle.aresult())
    with pytest.raises(WaitTimeout):
        handle.result(timeout=0.01)
    with pytest.raises(Conflict, match="not_drained"):
        handle.result(timeout=600)
    wf = shop.app.workflow("orders")
    wf.add(shop.place_order, 8)
    with pytest.raises(Conflict, match="not_drained"):
        wf.start().wait()
    kit.drain()
    handle.result()


async def test_waiting_beside_a_drain_is_allowed(kit: Kit) -> None:
    handle = await shop.place_order.aenqueue(7)
    await asyncio.wait_for(asyncio.gather(handle.aresult(), kit.adrain()), 30)
    waiting = asyncio.create_task((await shop.place_order.aenqueue(8)).aresult())
    with working(shop.app):
        await asyncio.wait_for(waiting, 30)

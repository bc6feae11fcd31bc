"""`drain`: what is due runs, and what comes of it, on the real state machine, until nothing is due."""

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


def test_it_runs_what_is_due_and_what_comes_of_it(kit: Kit) -> None:
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
    assert reminder.state is State.QUEUED, "tomorrow has not come"


def test_a_failure_is_logged_once(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    shop.charge.enqueue(7)
    kit.drain(check=False)
    (failure,) = (record for record in caplog.records if "CardDeclined" in record.getMessage())
    assert failure.name == "holdfast.worker"


async def test_the_same_in_async_code(kit: Kit) -> None:
    handle = await shop.place_order.aenqueue(7)
    report = await kit.adrain()
    assert report.states == {"succeeded": 2}
    assert await handle.astate() is State.SUCCEEDED
    assert (await kit.adrain()).attempts == 0


async def test_the_sync_colour_refuses_to_block_a_loop(kit: Kit) -> None:
    with pytest.raises(InvalidSetting, match=r"await kit\.adrain") as refused:
        kit.drain()
    assert refused.value.code == "running_loop"
    with pytest.raises(InvalidSetting, match=r"await kit\.arun"):
        kit.run(shop.put_off, 0)


def test_jobs_run_one_after_another_in_their_order(kit: Kit) -> None:
    orders = [3, 1, 2]
    for order in orders:
        shop.send_receipt.enqueue("ada@example.com", order)
    shop.send_receipt.using(priority=1).enqueue("ada@example.com", 0)
    assert [job.payload["order"] for job in kit.drain().jobs] == [0, *orders]


@pytest.mark.slow
def test_only_some_queues(kit: Kit) -> None:
    shop.place_order.enqueue(1)
    shop.send_receipt.enqueue("ada@example.com", 1)
    assert [job.kind for job in kit.drain(["mail"]).jobs] == ["send_receipt"]
    assert [job.kind for job in kit.drain(["default"]).jobs] == ["place_order"]
    assert kit.drain(["default"]).attempts == 0
    assert kit.drain().attempts == 1


def test_jobs_of_other_programs_are_left(kit: Kit) -> None:
    shop.app.enqueue("of.another.program", {"x": 1})
    assert kit.drain().attempts == 0
    (job,) = kit.enqueued()
    assert job.state is State.QUEUED


# --- failures ---


@pytest.mark.slow
def test_a_failure_is_not_hidden_by_the_tries_that_are_left(kit: Kit) -> None:
    shop.send_receipt.enqueue("ada@example.com", 1)
    shop.charge.enqueue(7)
    shop.charge.enqueue(8)
    with pytest.raises(JobsFailed) as failed:
        kit.drain()
    assert failed.value.code == "jobs_failed"
    assert isinstance(failed.value.__cause__, shop.CardDeclined)
    assert [failure.job.payload["order"] for failure in failed.value.failures] == [7, 8]
    assert failed.value.report.states == {"succeeded": 1, "retry_waiting": 2}
    said = str(failed.value)
    assert "2 jobs failed" in said
    assert "drain(check=False)" in said
    assert "is retry_waiting after 1 attempt: tests.kit.shop.CardDeclined: order 7 was declined" in said
    second = said.partition("order 8 was declined")[2]
    assert 'shop.py", line' in second, "the traceback of one that is not chained"
    assert "testing/drain.py" not in second, "no frames of the machinery"


@pytest.mark.slow
def test_failures_that_are_expected(kit: Kit) -> None:
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
def test_a_retry_waits_as_long_as_its_policy_says_without_chance(kit: Kit) -> None:
    shop.charge.enqueue(7)
    with kit.frozen():
        (job,) = kit.drain(check=False).jobs
        assert job.due_at == kit.now() + timedelta(seconds=60)
        kit.travel(59.999)
        assert kit.drain().attempts == 0
        kit.travel(0.001)
        assert kit.drain(check=False).attempts == 1


@pytest.mark.slow
def test_a_failure_that_is_made_good_is_none(kit: Kit) -> None:
    handle = shop.second_time_lucky.enqueue()
    report = kit.drain()
    assert (report.attempts, report.states) == (2, {"succeeded": 1})
    assert handle.result() == 2


def test_dead_letters_are_failures_and_what_a_handler_asks_for_is_none(kit: Kit) -> None:
    shop.refuse.enqueue()
    with pytest.raises(JobsFailed, match="dead_letter after 1 attempt: not_today: come back tomorrow"):
        kit.drain()
    shop.ask_again.enqueue()
    shop.put_off.enqueue(60)
    assert kit.drain().states == {"retry_waiting": 2}


def test_a_job_that_puts_itself_off_runs_when_the_clock_has_moved(kit: Kit) -> None:
    handle = shop.put_off.enqueue(60)
    assert kit.drain().states == {"retry_waiting": 1}
    assert kit.drain().attempts == 0
    kit.travel("1m")
    assert kit.drain().states == {"succeeded": 1}
    assert handle.result() == 2


@pytest.mark.slow
def test_nothing_becomes_due_because_a_drain_is_slow(kit: Kit) -> None:
    """The job comes back after a millisecond, of which there are many meanwhile."""
    shop.put_off.enqueue(0.001)
    shop.hang.enqueue(0.05)
    assert kit.drain().attempts == 2
    assert kit.drain().attempts == 0
    kit.travel(0.001)
    assert kit.drain().attempts == 1


def test_a_job_that_would_go_on_for_ever_is_an_error(kit: Kit) -> None:
    shop.for_ever.enqueue()
    with pytest.raises(NeverIdle, match=r"after 5 attempts; they were for_ever \(6\)") as never:
        kit.drain(limit=5)
    assert never.value.code == "never_idle"


def test_the_limit_may_be_reached(kit: Kit) -> None:
    for order in range(3):
        shop.send_receipt.enqueue("ada@example.com", order)
    assert kit.drain(limit=3).attempts == 3


def test_a_deadline_passes_with_the_clock(kit: Kit) -> None:
    handle = shop.put_off.using(deadline=datetime.now(UTC) + timedelta(hours=1), delay="2h").enqueue(0)
    kit.travel("2h")
    assert kit.drain().attempts == 0
    assert (handle.get().state, handle.get().error_code) == (State.FAILED, "deadline_passed")


# --- limits of time, and others at work ---


@pytest.mark.slow
def test_jobs_that_wait_for_others_need_room(place: str | None) -> None:
    with Kit(shop.app, place, timeout=2) as kit:
        handle = shop.wait_for_receipt.enqueue(7)
        with pytest.raises(WaitTimeout, match=r"not done after 2 s; released: wait_for_receipt.*concurrency"):
            kit.drain()
    with Kit(shop.app, place, timeout=60) as kit:
        handle = shop.wait_for_receipt.enqueue(7)
        assert kit.drain(concurrency=2).states == {"succeeded": 2}
        assert handle.result() == "receipt 7 for bob@example.com"


async def test_a_drain_that_is_cancelled_hands_back(kit: Kit) -> None:
    handle = await shop.hang.aenqueue()
    drain = asyncio.create_task(kit.adrain())
    await asyncio.to_thread(until, lambda: handle.state() is State.IN_PROGRESS, "the job runs")
    drain.cancel()
    with pytest.raises(asyncio.CancelledError):
        await drain
    assert handle.state() is State.RETRY_WAITING


@pytest.mark.slow
async def test_a_test_may_travel_while_a_job_runs(kit: Kit) -> None:
    """Its lease has not run out then: the third job is taken under it while the second still runs."""
    handles = [await shop.hang.aenqueue(seconds) for seconds in (0.4, 1.2, 0.0)]
    drain = asyncio.create_task(kit.adrain(concurrency=2))
    await asyncio.to_thread(until, lambda: handles[1].state() is not State.QUEUED, "the job runs")
    kit.travel("30d")
    report = await drain
    assert (report.attempts, report.states) == (3, {"succeeded": 3})
    assert kit.now() - datetime.now(UTC) > timedelta(days=29)


@pytest.mark.slow
def test_threads_do_not_pile_up(kit: Kit) -> None:
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


def test_errors_of_the_kit_are_errors_of_holdfast() -> None:
    assert issubclass(JobsFailed, HoldfastError)
    assert issubclass(NeverIdle, HoldfastError)


@pytest.mark.req("DP-14")
def test_a_workflow_is_drained_to_its_end(kit: Kit) -> None:
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

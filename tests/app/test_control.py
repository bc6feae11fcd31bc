"""Exceptions and calls that control a job: RetryLater, Reject, Cancel and snooze."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from holdfast import App, Backoff, Cancel, Handle, Job, Kind, Reject, Retry, RetryLater, State, SyncContext
from holdfast.app.internals import session_of
from holdfast.errors import InvalidSetting
from tests.support.stores import forward
from tests.support.workers import work_off

LATER = Backoff(base=3600, jitter=False, cap=3600)
SLOW = Retry(max_attempts=2, backoff=LATER)


def end(app: App, kind: Kind[[], Any] | Handle[Any]) -> Job:
    """The job after one attempt."""
    handle = kind if isinstance(kind, Handle) else kind.enqueue()
    work_off(app)
    return handle.get()


def last(handle: Handle[Any], event_type: str) -> dict[str, Any]:
    return [event.meta for event in handle.history() if event.type == event_type][-1]


@pytest.mark.req("CX-9", "JF-5")
@pytest.mark.parametrize("after", [90, "90s", timedelta(seconds=90)])
def test_retry_later_waits_as_long_as_requested(app: App, after: Any) -> None:
    @app.job(retry=SLOW)
    def busy() -> None:
        raise RetryLater(after=after, message="the service is down")

    handle = busy.enqueue()
    now = forward(session_of(app).store)
    job = end(app, handle)
    assert (job.state, job.retries, job.due_at) == (State.RETRY_WAITING, 1, now + timedelta(seconds=90))
    assert (job.error_code, job.error_message) == ("retry_asked", "the service is down")
    assert "raise RetryLater" in last(handle, "fail")["traceback"]


@pytest.mark.req("CX-9", "JF-5", "DP-15")
def test_retry_later_counts_as_a_failure_and_ends_at_the_limit(app: App) -> None:
    @app.job(retry=SLOW)
    async def busy() -> None:
        raise RetryLater(after=0)

    handle = busy.enqueue()
    work_off(app)
    app.jobs.reschedule(handle.id)
    assert end(app, handle).state is State.DEAD_LETTER
    assert [event.type for event in handle.history()][-2:] == ["fail", "dead_letter"]


@pytest.mark.req("CX-9")
def test_retry_later_can_set_a_backoff_or_use_the_job_policy(app: App) -> None:
    @app.job(retry=SLOW)
    def own() -> None:
        raise RetryLater(backoff=Backoff(base=7, jitter=False))

    @app.job(retry=SLOW)
    def jobs() -> None:
        raise RetryLater

    handles = own.enqueue(), jobs.enqueue()
    now = forward(session_of(app).store)
    work_off(app)
    assert [handle.get().due_at for handle in handles] == [now + timedelta(seconds=7), now + timedelta(seconds=3600)]


@pytest.mark.req("DP-22")
def test_cause_of_a_retry_is_recorded(app: App) -> None:
    @app.job(retry=SLOW)
    def busy() -> None:
        try:
            raise ConnectionError("line 7 is busy")
        except ConnectionError as error:
            raise RetryLater(after=5) from error

    handle = busy.enqueue()
    assert end(app, handle).error_message == "line 7 is busy"
    assert "ConnectionError: line 7 is busy" in last(handle, "fail")["traceback"]


@pytest.mark.req("DP-15", "DP-22")
def test_reject_is_final_and_records_its_code(app: App) -> None:
    @app.job()
    def refuses() -> None:
        raise Reject("card_expired", "the card has expired")

    handle = refuses.enqueue()
    job = end(app, handle)
    assert (job.state, job.attempt, job.retries) == (State.DEAD_LETTER, 1, 0)
    assert (job.error_code, job.error_message) == ("card_expired", "the card has expired")
    assert "raise Reject" in last(handle, "fail")["traceback"]


@pytest.mark.req("CX-11", "CX-4", "SC-5")
@pytest.mark.parametrize("reason", ["the order was withdrawn", None])
def test_cancel_ends_the_job_as_cancelled(app: App, reason: str | None) -> None:
    @app.job()
    async def gives_up() -> None:
        raise Cancel(reason)

    handle = gives_up.enqueue()
    job = end(app, handle)
    assert (job.state, job.error_code) == (State.CANCELLED, None)
    assert job.finished_at is not None
    event = handle.history()[-1]
    assert (event.type, event.from_state) == ("cancel", State.IN_PROGRESS)
    assert event.meta == {"by": "handler"} | ({"reason": reason} if reason else {})
    assert event.actor.startswith("worker ")
    (attempt,) = session_of(app).run(session_of(app).store.jobs.attempts(handle.id, handle.tenant))
    assert attempt.outcome == "cancelled"


@pytest.mark.req("CX-9", "SC-5")
def test_snooze_is_not_a_failure_and_costs_no_retry(app: App) -> None:
    @app.job(retry=Retry(max_attempts=1))
    def waits(ctx: SyncContext) -> None:
        ctx.snooze("10m", "the file is not there yet")

    handle = waits.enqueue()
    now = forward(session_of(app).store)
    job = end(app, handle)
    assert (job.state, job.retries, job.error_code) == (State.RETRY_WAITING, 0, None)
    assert job.due_at == now + timedelta(minutes=10)
    assert last(handle, "snooze")["reason"] == "the file is not there yet"


@pytest.mark.slow
@pytest.mark.req("SC-5")
def test_endless_snoozing_is_logged(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.job()
    def waits(ctx: SyncContext) -> None:
        ctx.snooze(3600, "not yet\nforged line")

    handle = waits.enqueue()
    for _ in range(10):
        work_off(app)
        app.jobs.reschedule(handle.id)
    assert handle.get().attempt == 10
    (warning,) = [record.getMessage() for record in caplog.records if "snoozed again" in record.message]
    assert handle.id in warning
    assert "attempt 10: not yet forged line" in warning


@pytest.mark.req("CX-9")
@pytest.mark.parametrize(
    ("policy", "error", "state"),
    [
        (Retry(backoff=LATER, give_up_on=(ValueError,)), ValueError("x"), State.DEAD_LETTER),
        (Retry(backoff=LATER, give_up_on=(ValueError,)), OSError("x"), State.RETRY_WAITING),
        (Retry(backoff=LATER, retry_on=(OSError,)), OSError("x"), State.RETRY_WAITING),
        (Retry(backoff=LATER, retry_on=(OSError,)), ValueError("x"), State.DEAD_LETTER),
        (Retry(backoff=LATER, retry_on=(OSError,)), RetryLater(60), State.RETRY_WAITING),  # an explicit request
    ],
)
def test_retry_policy_of_a_kind_selects_by_error_type(app: App, policy: Retry, error: Exception, state: State) -> None:
    @app.job(retry=policy)
    def fails() -> None:
        raise error

    assert end(app, fails).state is state
    # A policy for one job does not replace the error types of its kind.
    assert end(app, fails.using(retry=Retry(max_attempts=9, backoff=LATER))).state is state


@pytest.mark.req("CX-9")
@pytest.mark.parametrize(
    ("policy", "state"), [({"give_up_on": TimeoutError}, State.DEAD_LETTER), ({"backoff": LATER}, State.RETRY_WAITING)]
)
def test_timeout_is_treated_as_a_timeout_error(app: App, policy: Any, state: State) -> None:
    @app.job(retry=Retry(**policy), timeout=0.05)
    async def sleeps() -> None:
        await asyncio.sleep(60)

    job = end(app, sleeps)
    assert (job.state, job.error_code) == (state, "timeout")


@pytest.mark.req("JF-5")
def test_control_exceptions_are_refused_as_a_policy(app: App) -> None:
    @app.job()
    def plain() -> None: ...

    def refusals() -> Any:
        yield lambda: app.job(retry=RetryLater(30))  # type: ignore[call-overload]
        yield lambda: plain.using(retry=RetryLater(30))  # type: ignore[arg-type]
        yield lambda: plain.using(retry=Retry(retry_on=(OSError,)))
        yield lambda: app.enqueue("plain", retry=RetryLater(30))  # type: ignore[arg-type]
        yield lambda: app.enqueue("elsewhere", retry=RetryLater(30))  # type: ignore[arg-type]
        yield lambda: app.enqueue("elsewhere", retry=Retry(give_up_on=(OSError,)))

    for attempt in refusals():
        with pytest.raises(InvalidSetting) as caught:
            attempt()
        assert caught.value.code == "invalid_retry"


@pytest.mark.req("JF-7", "SC-19")
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("form", ["sync", "async"])
def test_base_exceptions_end_only_the_handler(
    app: App, error: type[BaseException], form: str, caplog: pytest.LogCaptureFixture
) -> None:
    def sync_handler() -> None:
        raise error

    async def async_handler() -> None:
        raise error

    caplog.set_level(logging.CRITICAL)
    app.job("odd", retry=Retry(max_attempts=1))(sync_handler if form == "sync" else async_handler)

    @app.job()
    def fine() -> int:
        return 3

    odd, other = app.enqueue("odd"), fine.enqueue()
    work_off(app, concurrency=1)
    job = odd.get()
    assert job.state is State.DEAD_LETTER
    assert error.__name__ in f"{job.error_code} {job.error_message}"
    assert other.result(timeout=5) == 3

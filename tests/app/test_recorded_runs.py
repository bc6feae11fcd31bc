"""A reservation block can be recorded as a job with one attempt that ends as the block does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import App, State
from holdfast.app.internals import session_of
from holdfast.engine.job import Attempt, Job
from holdfast.errors import Conflict, InvalidInput, NotFound, Refused
from tests.app.conftest import NewApp
from tests.support.stores import forward, new_id
from tests.support.workers import work_off

pytestmark = pytest.mark.req("SC-22")


def recorded(app: App, job_id: str | None) -> tuple[Job, Attempt]:
    assert job_id is not None
    job = app.jobs.get(job_id)
    (attempt,) = app.jobs.attempts(job_id)
    return job, attempt


@pytest.mark.every_case
def test_block_is_recorded_as_a_job_with_one_attempt(app: App) -> None:
    @app.job
    def calibrate(**_: Any) -> None:
        raise AssertionError("no worker runs it")

    with app.reservations.hold("printer", record="calibrate", reason="new ink") as held:
        job, attempt = recorded(app, held.job_id)
        assert (job.state, job.kind, job.attempt, job.enqueued_by) == (State.IN_PROGRESS, "calibrate", 1, "tester")
        assert job.payload == {"reservation": held.id, "scope": "resource", "name": "printer"}
        assert (attempt.worker, attempt.outcome, attempt.ended_at) == ("tester", None, None)
        assert app.reservations.get(held.id).job_id == held.job_id
        assert app.reservations.record(held.id, "calibrate") == held.job_id, "a second call returns the same job"
        seen = app.jobs.liveness(job.id)
        app.reservations.set(held.id, resource="printer")
        assert app.jobs.liveness(job.id).renewals == (seen.renewals or 0) + 1
        assert app.workers.list() == [], "the holder is not a worker"
        work_off(app, queues=("default", "reservation"))
    job, attempt = recorded(app, held.job_id)
    assert (job.state, attempt.outcome, job.error_code) == (State.SUCCEEDED, "succeeded", None)
    assert attempt.ended_at is not None
    assert [each.type for each in app.jobs.history(job.id)] == ["enqueue", "take", "succeed"]

    with pytest.raises(ZeroDivisionError), app.reservations.hold("printer", record="calibrate") as held:
        _ = 1 / 0
    job, attempt = recorded(app, held.job_id)
    assert (job.state, attempt.outcome, attempt.error_code) == (State.FAILED, "failed", "ZeroDivisionError")
    assert attempt.error_message == "division by zero"
    assert app.dead_letters.groups() == []

    async def inside() -> str | None:
        async with app.reservations.hold("printer", record="calibrate") as mine:
            await asyncio.sleep(0)
        await app.aclose()
        return mine.job_id

    assert recorded(app, asyncio.run(inside()))[0].state is State.SUCCEEDED
    with app.reservations.hold("printer") as plain:
        assert plain.job_id is None
    assert app.audit.verify().ok


def test_lost_holder_is_recorded_as_crashed(new_app: NewApp) -> None:
    app, other = new_app(), new_app()
    first, second = new_id(), new_id()
    app.reservations.set(first, resource="printer", ttl=30)
    job_id = app.reservations.record(first, "calibrate")
    forward(session_of(app).store, 20)
    app.reservations.set(first, resource="printer", ttl=30)
    forward(session_of(app).store, 20)
    other.run_worker(burst=True)
    assert app.jobs.get(job_id).state is State.IN_PROGRESS, "the reservation is renewed"
    forward(session_of(app).store, 40)
    assert other.reservations.set(second, resource="printer").state == "active"
    job, attempt = recorded(other, job_id)
    assert (job.state, job.error_code, attempt.outcome) == (State.FAILED, "worker_lost", "crashed")
    with pytest.raises(NotFound, match="reservation_not_found"):  # too late
        app.reservations.release(first, outcome="succeeded")
    assert recorded(app, job_id)[1].outcome == "crashed"

    # No other holder requests the resource: maintenance finds the lost holder.
    job_id = other.reservations.record(second, "calibrate")
    forward(session_of(app).store, 100)
    app.run_worker(burst=True)
    assert recorded(app, job_id)[1].outcome == "crashed"
    app.run_worker(burst=True)
    assert recorded(app, job_id)[0].state is State.FAILED


def test_recorded_run_can_be_released_or_cancelled_and_bad_calls_are_refused(app: App) -> None:
    mine = new_id()
    for bad in ("", " ", "x" * 300, 7):
        with pytest.raises(InvalidInput):
            app.reservations.hold("printer", record=bad)  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="reservation_not_found"):
        app.reservations.record(mine, "calibrate")
    app.reservations.set(mine, resource="printer")
    waiting = new_id()
    app.reservations.set(waiting, resource="printer")
    with pytest.raises(NotFound):  # it is still waiting
        app.reservations.record(waiting, "calibrate")
    job_id = app.reservations.record(mine, "calibrate")
    for wrong in ({"outcome": "maybe"}, {"outcome": "succeeded", "error_code": "x"}, {"error_message": "x"}):
        with pytest.raises(InvalidInput):
            app.reservations.release(mine, **wrong)  # type: ignore[arg-type]
    app.reservations.release(mine, reason="it hangs")
    job, attempt = recorded(app, job_id)
    assert (job.state, attempt.outcome, job.error_code) == (State.FAILED, "failed", "reservation_released")
    assert "tester" in str(job.error_message)

    with pytest.raises(Conflict, match="reservation_lost"), app.reservations.hold("scanner", record="scan") as held:
        app.reservations.release(held.id)
    assert recorded(app, held.job_id)[0].error_code == "reservation_released"
    with app.reservations.hold("scanner", record="scan") as held:
        assert held.job_id is not None
        app.jobs.cancel(held.job_id)
    assert recorded(app, held.job_id)[0].state is State.CANCELLED
    app.payload_rules.set("scan", signal_only=True, forbidden=["reservation"])
    with pytest.raises(Refused, match="payload_forbidden"), app.reservations.hold("scanner", record="scan"):
        raise AssertionError("a block that cannot be recorded is not entered")
    assert app.reservations.list() == [app.reservations.get(waiting)]


@pytest.mark.req("DP-19")
@pytest.mark.every_case
def test_health_does_not_count_the_holder_of_a_reservation_as_a_worker(app: App) -> None:
    app.enqueue("unrelated")
    with app.reservations.hold("printer", record="calibrate"):
        health = app.health.get()
        assert (health.lease_active, health.workers, health.in_progress) == (0, 0, 1)
        assert "no_worker" in [reason.code for reason in health.reasons]
        assert session_of(app).run(session_of(app).store.health.statistics("default")).workers == ()

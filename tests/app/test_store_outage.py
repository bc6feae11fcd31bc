"""The store fails at each operation of a worker: nothing is lost, and the worker continues."""

from __future__ import annotations

import asyncio
import threading

import pytest

from holdfast import App, State
from holdfast.app.internals import session_of
from tests.app.conftest import NewApp
from tests.app.outages import Outage
from tests.support.waiting import until
from tests.support.workers import working

pytestmark = pytest.mark.req("CX-15", "SC-19")


@pytest.fixture
def worker_app(new_app: NewApp) -> App:
    app = new_app()

    @app.job()
    def quick(number: int) -> int:
        return number

    return app


@pytest.mark.parametrize("operation", ["leases.exchange", "leases.promote", "leases.expire", "leases.recover"])
def test_failed_operation_is_retried(
    app: App, worker_app: App, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    outage = Outage(worker_app, monkeypatch)
    outage.failing[operation] = 2
    with working(worker_app):
        handles = [app.enqueue("quick", {"number": n}) for n in range(3)]
        assert [handle.result(timeout=20) for handle in handles] == [0, 1, 2]
        until(lambda: outage.hits[operation] == 2, "the operation has failed twice")
    assert [handle.get().attempt for handle in handles] == [1, 1, 1]


@pytest.mark.slow
def test_exchange_with_a_lost_response_loses_no_job_and_runs_none_twice(
    app: App, worker_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its claims are handed back without being started; its settlements stay recorded."""
    outage = Outage(worker_app, monkeypatch)
    outage.unanswered["leases.exchange"] = 2
    handles = [app.enqueue("quick", {"number": n}) for n in range(40)]
    with working(worker_app):
        assert [handle.result(timeout=20) for handle in handles] == list(range(40))
        outage.unanswered["leases.exchange"] = 3
        more = [app.enqueue("quick", {"number": n}) for n in range(40)]
        assert [handle.result(timeout=20) for handle in more] == list(range(40))
        until(lambda: outage.hits["leases.exchange"] == 5, "five responses were lost")
    operations = [event.type for handle in handles for event in handle.history()]
    assert operations.count("succeed") == 40
    assert operations.count("snooze") == operations.count("take") - 40 > 0


def waits(app: App) -> tuple[threading.Event, threading.Event]:
    """Declare a job that waits; return events for its start and its end."""
    started, stopped = threading.Event(), threading.Event()

    @app.job()
    async def wait() -> None:
        started.set()
        try:
            await asyncio.sleep(600)
        finally:
            stopped.set()

    return started, stopped


@pytest.mark.req("CX-11")
def test_cancelled_job_is_stopped_after_a_failed_exchange(
    app: App, worker_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, stopped = waits(worker_app)
    outage = Outage(worker_app, monkeypatch)
    with working(worker_app, notify=False, check_cancelled_every=600.0):  # so that no notification arrives
        handle = app.enqueue("wait")
        assert started.wait(20)
        app.jobs.cancel(handle.id)
        outage.failing["leases.exchange"] = 1
        assert stopped.wait(20), "the job still runs"
    assert handle.state() is State.CANCELLED


@pytest.mark.req("CX-11")
@pytest.mark.parametrize("operation", ["leases.cancellations", "leases.holdings"])
def test_cancelled_job_is_stopped_after_failed_cancellation_checks(
    app: App, worker_app: App, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    started, stopped = waits(worker_app)
    outage = Outage(worker_app, monkeypatch)
    with working(worker_app, check_cancelled_every=0.1):
        handle = app.enqueue("wait")
        assert started.wait(20)
        outage.failing[operation] = 2
        app.jobs.cancel(handle.id)
        assert stopped.wait(20), "the job still runs"
    assert outage.hits[operation] == 2


@pytest.mark.slow
def test_failed_heartbeat_is_not_a_lost_lease(app: App, worker_app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    outage = Outage(worker_app, monkeypatch)
    outage.failing["leases.renew"] = 3
    with working(worker_app, lease_ttl=3.0) as background:
        lease = until(lambda: background.lease, "the worker has a lease")
        until(lambda: outage.hits["leases.renew"] == 3, "the heartbeat has failed")
        assert app.enqueue("quick", {"number": 1}).result(timeout=20) == 1
        assert background.lease == lease


@pytest.mark.slow
def test_lease_lost_during_an_outage_is_replaced(app: App, worker_app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    outage = Outage(worker_app, monkeypatch)
    with working(worker_app) as background:
        until(lambda: background.lease, "the worker has a lease")
        outage.failing["leases.open"] = 2
        assert session_of(app).run(session_of(app).store.leases.end(background.lease, "ended by a test", "*"))
        assert app.enqueue("quick", {"number": 1}).result(timeout=20) == 1
    assert outage.hits["leases.open"] == 2


@pytest.mark.slow
def test_worker_that_cannot_settle_still_stops(app: App, new_app: NewApp, monkeypatch: pytest.MonkeyPatch) -> None:
    worker_app = new_app()
    started, release = threading.Event(), threading.Event()

    @worker_app.job()
    def slow() -> None:
        started.set()
        assert release.wait(20)

    outage = Outage(worker_app, monkeypatch)
    with working(worker_app, grace=1.0) as background:
        handle = app.enqueue("slow")
        assert started.wait(20)
        outage.failing["leases.exchange"] = outage.failing["leases.holdings"] = 1000
        background.ask_to_stop()
        release.set()
        until(lambda: not background.alive, "the worker has ended")
    assert outage.hits["leases.exchange"] > 0
    # Not settled and not lost: the next sweep frees it when the lease has expired.
    assert handle.state() is State.IN_PROGRESS

"""A store that cannot be used for a while, at every operation of a worker: nothing is lost, the worker goes on."""

from __future__ import annotations

import asyncio
import threading

import pytest

from holdfast import App, State
from tests.app.away import Away
from tests.app.conftest import NewApp
from tests.support.waiting import until
from tests.support.workers import working

pytestmark = pytest.mark.req("CX-15", "SC-19")


@pytest.fixture
def elsewhere(new_app: NewApp) -> App:
    app = new_app()

    @app.job()
    def quick(number: int) -> int:
        return number

    return app


@pytest.mark.parametrize("operation", ["leases.exchange", "leases.promote", "leases.expire", "leases.reap"])
def test_a_verb_that_fails_is_tried_again(
    app: App, elsewhere: App, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    away = Away(elsewhere, monkeypatch)
    away.left[operation] = 2
    with working(elsewhere):
        handles = [app.enqueue("quick", {"number": n}) for n in range(3)]
        assert [handle.result(timeout=20) for handle in handles] == [0, 1, 2]
        until(lambda: away.met[operation] == 2, "the store was away")
    assert [handle.get().attempt for handle in handles] == [1, 1, 1]


@pytest.mark.slow
def test_a_turn_whose_answer_was_lost_loses_no_job_and_runs_none_twice(
    app: App, elsewhere: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it took is handed back, having never begun; what it settled stays settled."""
    away = Away(elsewhere, monkeypatch)
    away.deaf["leases.exchange"] = 2
    handles = [app.enqueue("quick", {"number": n}) for n in range(40)]
    with working(elsewhere):
        assert [handle.result(timeout=20) for handle in handles] == list(range(40))
        away.deaf["leases.exchange"] = 3
        more = [app.enqueue("quick", {"number": n}) for n in range(40)]
        assert [handle.result(timeout=20) for handle in more] == list(range(40))
        until(lambda: away.met["leases.exchange"] == 5, "five answers were lost")
    operations = [event.type for handle in handles for event in handle.history()]
    assert operations.count("succeed") == 40
    assert operations.count("snooze") == operations.count("take") - 40 > 0


def waits(app: App) -> tuple[threading.Event, threading.Event]:
    """A job that waits: that it has begun, and that it was stopped."""
    begun, stopped = threading.Event(), threading.Event()

    @app.job()
    async def wait() -> None:
        begun.set()
        try:
            await asyncio.sleep(600)
        finally:
            stopped.set()

    return begun, stopped


@pytest.mark.req("CX-11")
def test_what_was_cancelled_is_stopped_after_a_turn_that_failed(
    app: App, elsewhere: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, stopped = waits(elsewhere)
    away = Away(elsewhere, monkeypatch)
    with working(elsewhere, notify=False, recall_every=600.0):  # so that nobody tells it
        handle = app.enqueue("wait")
        assert begun.wait(20)
        app.jobs.cancel(handle.id)
        away.left["leases.exchange"] = 1
        assert stopped.wait(20), "it runs on"
    assert handle.state() is State.CANCELLED


@pytest.mark.req("CX-11")
@pytest.mark.parametrize("operation", ["leases.cancellations", "leases.holdings"])
def test_and_when_the_worker_could_not_ask_what_was_cancelled(
    app: App, elsewhere: App, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    begun, stopped = waits(elsewhere)
    away = Away(elsewhere, monkeypatch)
    with working(elsewhere, recall_every=0.1):
        handle = app.enqueue("wait")
        assert begun.wait(20)
        away.left[operation] = 2
        app.jobs.cancel(handle.id)
        assert stopped.wait(20), "it runs on"
    assert away.met[operation] == 2


@pytest.mark.slow
def test_a_heartbeat_that_fails_is_not_a_lost_lease(app: App, elsewhere: App, monkeypatch: pytest.MonkeyPatch) -> None:
    away = Away(elsewhere, monkeypatch)
    away.left["leases.renew"] = 3
    with working(elsewhere, beat=1) as beside:
        lease = until(lambda: beside.lease, "the worker has a lease")
        until(lambda: away.met["leases.renew"] == 3, "the heartbeat has failed")
        assert app.enqueue("quick", {"number": 1}).result(timeout=20) == 1
        assert beside.lease == lease


@pytest.mark.slow
def test_a_lost_lease_while_the_store_is_away(app: App, elsewhere: App, monkeypatch: pytest.MonkeyPatch) -> None:
    away = Away(elsewhere, monkeypatch)
    with working(elsewhere) as beside:
        until(lambda: beside.lease, "the worker has a lease")
        away.left["leases.open"] = 2
        assert app._session.run(app._session.store.leases.end(beside.lease, "ended by a test", "*"))
        assert app.enqueue("quick", {"number": 1}).result(timeout=20) == 1
    assert away.met["leases.open"] == 2


@pytest.mark.slow
def test_a_worker_that_cannot_settle_when_it_leaves_ends_all_the_same(
    app: App, new_app: NewApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = new_app()
    begun, go_on = threading.Event(), threading.Event()

    @elsewhere.job()
    def slow() -> None:
        begun.set()
        assert go_on.wait(20)

    away = Away(elsewhere, monkeypatch)
    with working(elsewhere, grace=1.0) as beside:
        handle = app.enqueue("slow")
        assert begun.wait(20)
        away.left["leases.exchange"] = away.left["leases.holdings"] = 1000
        beside.ask_to_stop()
        go_on.set()
        until(lambda: not beside.alive, "the worker has ended")
    assert away.met["leases.exchange"] > 0
    # Not settled, not lost: whoever sweeps next frees it when the lease has lapsed.
    assert handle.state() is State.IN_PROGRESS

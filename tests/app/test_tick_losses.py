"""Jobs that a tick loses while they run: cancelled, taken away with the lease, left behind when it is killed (HK-1)."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path

import pytest

from holdfast import App, State
from holdfast.features.assembly import Store
from holdfast.worker.maintenance import MaintenanceTask
from tests.app.conftest import NewApp
from tests.app.shop import stocked
from tests.app.worker_process import process
from tests.faults.snapshot import take_snapshot
from tests.support.by_hand import open_by_hand
from tests.support.waiting import until


@pytest.fixture
def shop(app: App) -> App:
    return stocked(app)


@pytest.mark.req("HK-1", "CX-11")
def test_a_job_cancelled_while_it_ran_is_said_to_be(app: App, new_app: NewApp) -> None:
    begun, go = threading.Event(), threading.Event()

    @app.job()
    def holds() -> None:
        begun.set()
        go.wait(20)

    handle = app.enqueue("holds")
    elsewhere = new_app()

    def cancel() -> None:
        begun.wait(20)
        elsewhere.jobs.cancel(handle.id)
        go.set()

    beside = threading.Thread(target=cancel)
    beside.start()
    done = app.tick()
    beside.join()
    assert (done.taken, done.succeeded, done.cancelled, done.lost) == (1, 0, 1, 0)


@pytest.mark.slow
@pytest.mark.req("HK-1", "CX-11")
def test_a_job_that_is_cancelled_is_stopped_and_not_waited_for(shop: App, new_app: NewApp) -> None:
    handle, elsewhere = shop.enqueue("nap", {"seconds": 600}), new_app()

    def cancel() -> None:
        until(lambda: handle.state() is State.IN_PROGRESS, "it is running")
        elsewhere.jobs.cancel(handle.id)

    beside = threading.Thread(target=cancel)
    beside.start()
    done = shop.tick()
    beside.join()
    assert (done.taken, done.cancelled, done.lost) == (1, 1, 0)


@pytest.mark.slow
@pytest.mark.req("HK-1", "DP-7")
def test_a_lease_that_was_lost_abandons_what_runs(shop: App, new_app: NewApp) -> None:
    begun = threading.Event()

    @shop.job()
    async def waits() -> None:
        begun.set()
        await asyncio.sleep(600)

    handle = shop.enqueue("waits")
    other = new_app()

    def end_the_lease() -> None:
        assert begun.wait(20)
        found = other._session.run(other._session.store.jobs.attempts(handle.id, handle.tenant))[-1]
        assert found.worker.startswith("tick ")
        lease = other._session.run(other._session.store.health.get("*"))
        assert lease.lease_active == 1
        take_away(other)

    beside = threading.Thread(target=end_the_lease)
    beside.start()
    done = shop.tick(lease=3)
    beside.join()
    assert (done.taken, done.lost, done.handed_back, done.ok) == (1, 1, 0, False)
    assert (handle.get().state, handle.get().crashes) == (State.IN_PROGRESS, 0)
    assert Counter(event.type for event in handle.history())["snooze"] == 0


def take_away(app: App) -> None:
    """End every lease, as an operator with a SQL shell would."""
    by_hand = open_by_hand(app._store.url)
    (row,) = by_hand.execute("select id from lease where ended_at is null")
    by_hand.close()
    assert app._session.run(app._session.store.leases.end(str(row[0]), "taken away", "*"))


def kept_until(url: str) -> float:
    """The end of the one lease that is open."""
    (lease,) = [each for each in take_snapshot(url).leases.values() if each.ended is None]
    return lease.until


@pytest.mark.slow
@pytest.mark.req("HK-1", "JF-4")
def test_a_job_may_take_longer_than_the_lease(shop: App, new_app: NewApp, url: str) -> None:
    other, begun, longer = stocked(new_app()), threading.Event(), threading.Event()

    def lingers() -> None:
        begun.set()
        assert longer.wait(60)

    for each in (shop, other):
        each.job()(lingers)

    def sweep() -> None:
        try:
            assert begun.wait(20)
            first = kept_until(url)
            while kept_until(url) < first + 2.0:  # for longer than it was to last
                other.tick()  # it would take the job if the lease had lapsed
                longer.wait(0.05)
        finally:
            longer.set()

    handle = shop.enqueue("lingers")
    beside = threading.Thread(target=sweep)
    beside.start()
    done = shop.tick(lease=2)
    beside.join(30)
    assert (done.succeeded, done.lost) == (1, 0)
    assert handle.get().crashes == 0


KILLED = """
from tests.app.victim import app
app.tick(lease=1.0)
"""


@pytest.mark.slow
@pytest.mark.req("HK-1", "CX-15", "DP-8")
def test_killed_half_way_its_jobs_are_recovered_by_the_next(shop: App, url: str, tmp_path: Path) -> None:
    shop._session.make_ready()
    handles = [shop.enqueue("hold", {"number": n}) for n in range(2)]
    with process(KILLED, url=url, folder=tmp_path) as victim:
        begun = tmp_path / "begun"
        until(lambda: begun.exists() and len(begun.read_text().splitlines()) == 2, "both are running")
        victim.kill()
        victim.wait(timeout=10)
    assert shop.tick().taken == 0  # still under the dead one's lease

    @shop.job()
    def hold(number: int) -> int:
        return number

    ids: list[str] = []

    def recovered() -> bool:
        ids.extend(shop.tick().ids)
        return len(ids) == 2

    until(recovered, "the lease has lapsed and the next tick has taken them up")
    assert [handle.result() for handle in handles] == [0, 1]
    assert {handle.get().crashes for handle in handles} == {1}


@pytest.mark.req("HK-1", "SC-19")
def test_a_duty_that_fails_keeps_no_job_from_being_run(shop: App, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(store: Store) -> int:
        raise ValueError("one bad row")

    monkeypatch.setattr(shop, "_maintenance", lambda *_: (MaintenanceTask("bad", 0, run=fails),))
    handle = shop.enqueue("add", {"a": 1})
    done = shop.tick()
    assert (done.taken, done.succeeded) == (1, 1)
    assert handle.state() is State.SUCCEEDED

"""Jobs that a tick loses while they run: cancelled, lost with the lease, or orphaned when it is killed (HK-1)."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path

import pytest

from holdfast import App, State
from holdfast.app import internals
from holdfast.app.internals import session_of
from holdfast.features.assembly import Store
from holdfast.worker.maintenance import MaintenanceTask
from tests.app.conftest import NewApp
from tests.app.tick_jobs import declare_jobs
from tests.app.worker_process import process
from tests.faults.snapshot import take_snapshot
from tests.support.direct_sql import open_by_hand
from tests.support.waiting import until


@pytest.fixture
def shop(app: App) -> App:
    return declare_jobs(app)


@pytest.mark.req("HK-1", "CX-11")
def test_job_cancelled_while_running_is_counted_as_cancelled(app: App, new_app: NewApp) -> None:
    started, release = threading.Event(), threading.Event()

    @app.job()
    def holds() -> None:
        started.set()
        release.wait(20)

    handle = app.enqueue("holds")
    operator = new_app()

    def cancel() -> None:
        started.wait(20)
        operator.jobs.cancel(handle.id)
        release.set()

    background = threading.Thread(target=cancel)
    background.start()
    done = app.tick()
    background.join()
    assert (done.taken, done.succeeded, done.cancelled, done.lost) == (1, 0, 1, 0)


@pytest.mark.slow
@pytest.mark.req("HK-1", "CX-11")
def test_cancelled_job_is_stopped_and_not_waited_for(shop: App, new_app: NewApp) -> None:
    handle, operator = shop.enqueue("nap", {"seconds": 600}), new_app()

    def cancel() -> None:
        until(lambda: handle.state() is State.IN_PROGRESS, "the job is running")
        operator.jobs.cancel(handle.id)

    background = threading.Thread(target=cancel)
    background.start()
    done = shop.tick()
    background.join()
    assert (done.taken, done.cancelled, done.lost) == (1, 1, 0)


@pytest.mark.slow
@pytest.mark.req("HK-1", "DP-7")
def test_lost_lease_abandons_running_jobs(shop: App, new_app: NewApp) -> None:
    started = threading.Event()

    @shop.job()
    async def waits() -> None:
        started.set()
        await asyncio.sleep(600)

    handle = shop.enqueue("waits")
    other = new_app()

    def end_the_lease() -> None:
        assert started.wait(20)
        attempt = session_of(other).run(session_of(other).store.jobs.attempts(handle.id, handle.tenant))[-1]
        assert attempt.worker.startswith("tick ")
        lease = session_of(other).run(session_of(other).store.health.get("*"))
        assert lease.lease_active == 1
        end_open_lease(other)

    background = threading.Thread(target=end_the_lease)
    background.start()
    done = shop.tick(lease=3)
    background.join()
    assert (done.taken, done.lost, done.handed_back, done.ok) == (1, 1, 0, False)
    assert (handle.get().state, handle.get().crashes) == (State.IN_PROGRESS, 0)
    assert Counter(event.type for event in handle.history())["snooze"] == 0


def end_open_lease(app: App) -> None:
    """End the open lease, as an operator with a SQL shell would."""
    by_hand = open_by_hand(session_of(app).store.url)
    (row,) = by_hand.execute("select id from lease where ended_at is null")
    by_hand.close()
    assert session_of(app).run(session_of(app).store.leases.end(str(row[0]), "taken away", "*"))


def lease_end(url: str) -> float:
    """The end of the one lease that is open."""
    (lease,) = [each for each in take_snapshot(url).leases.values() if each.ended is None]
    return lease.until


@pytest.mark.slow
@pytest.mark.req("HK-1", "JF-4")
def test_lease_is_renewed_while_a_long_job_runs(shop: App, new_app: NewApp, url: str) -> None:
    other, started, longer = declare_jobs(new_app()), threading.Event(), threading.Event()

    def lingers() -> None:
        started.set()
        assert longer.wait(60)

    for each in (shop, other):
        each.job()(lingers)

    def sweep() -> None:
        try:
            assert started.wait(20)
            first = lease_end(url)
            while lease_end(url) < first + 2.0:  # longer than the lease was meant to last
                other.tick()  # it would take the job if the lease had expired
                longer.wait(0.05)
        finally:
            longer.set()

    handle = shop.enqueue("lingers")
    background = threading.Thread(target=sweep)
    background.start()
    done = shop.tick(lease=2)
    background.join(30)
    assert (done.succeeded, done.lost) == (1, 0)
    assert handle.get().crashes == 0


KILLED = """
from tests.app.killable_jobs import app
app.tick(lease=1.0)
"""


@pytest.mark.slow
@pytest.mark.req("HK-1", "CX-15", "DP-8")
def test_jobs_of_a_killed_tick_are_recovered_by_the_next(shop: App, url: str, tmp_path: Path) -> None:
    session_of(shop).make_ready()
    handles = [shop.enqueue("hold", {"number": n}) for n in range(2)]
    with process(KILLED, url=url, folder=tmp_path) as victim:
        started = tmp_path / "begun"
        until(lambda: started.exists() and len(started.read_text().splitlines()) == 2, "both are running")
        victim.kill()
        victim.wait(timeout=10)
    assert shop.tick().taken == 0  # still under the lease of the killed tick

    @shop.job()
    def hold(number: int) -> int:
        return number

    ids: list[str] = []

    def recovered() -> bool:
        ids.extend(shop.tick().ids)
        return len(ids) == 2

    until(recovered, "the lease has expired and the next tick has run the jobs")
    assert [handle.result() for handle in handles] == [0, 1]
    assert {handle.get().crashes for handle in handles} == {1}


@pytest.mark.req("HK-1", "SC-19")
def test_failing_maintenance_does_not_block_jobs(shop: App, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(store: Store) -> int:
        raise ValueError("one bad row")

    monkeypatch.setattr(internals, "maintenance_tasks", lambda *_: (MaintenanceTask("bad", 0, run=fails),))
    handle = shop.enqueue("add", {"a": 1})
    done = shop.tick()
    assert (done.taken, done.succeeded) == (1, 1)
    assert handle.state() is State.SUCCEEDED

"""Limits and reservations through the public API."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import datetime

import pytest

from holdfast import App, State
from holdfast.app.internals import session_of
from holdfast.errors import Conflict, InvalidSetting, NotFound
from tests.app.conftest import NewApp
from tests.support.stores import claim, open_lease
from tests.support.waiting import until
from tests.support.workers import working


@pytest.mark.req("SC-16")
def test_worker_obeys_concurrency_limits(app: App) -> None:
    running, most = 0, 0
    lock, together = threading.Lock(), threading.Event()

    @app.job(limit_key="one at a time", resources=("gpu-0",))
    def paint(number: int) -> None:
        nonlocal running, most
        with lock:
            running, most = running + 1, max(most, running + 1)
            if running == 2:
                together.set()
        together.wait(20)  # the first job waits for a second one
        time.sleep(0.02)
        with lock:
            running -= 1

    app.limits.set(key="*", concurrency=1)
    app.limits.set(resource="gpu-0", concurrency=3)
    handles = [paint.enqueue(number) for number in range(4)]
    handles += [paint.using(limit_key=f"c-{number}").enqueue(number) for number in range(2)]
    assert app.jobs.get(handles[0].id).uses == ("key:one at a time", "resource:gpu-0")
    app.run_worker(burst=True, concurrency=6)
    assert [job.state for job in app.jobs.list(kind="paint")] == [State.SUCCEEDED] * 6
    assert 1 < most <= 3
    assert [(each.scope, each.name, each.running) for each in app.limits.list()] == [
        ("key", "*", 0),
        ("resource", "gpu-0", 0),
    ]
    app.limits.remove(key="*")
    with pytest.raises(NotFound):
        app.limits.get(key="*")
    with pytest.raises(NotFound, match="limit_not_found"):
        app.limits.remove(key="*")


@pytest.mark.req("SC-16")
def test_idle_worker_obeys_a_rate_limit(app: App) -> None:
    @app.job()
    async def call() -> None: ...

    app.limits.set(kind="call", rate=(4, "0.4s"), burst=2)
    for _ in range(5):
        call.enqueue()
    began = time.monotonic()
    app.run_worker(burst=True, promote_every=0.05, poll=0.05)
    while app.jobs.list(kind="call", state=State.QUEUED):
        assert time.monotonic() < began + 20
        app.run_worker(burst=True, promote_every=0.05, poll=0.05)
        time.sleep(0.02)
    assert time.monotonic() - began >= 0.3, "two at once, then one every tenth of a second"


@pytest.mark.req("SC-16")
@pytest.mark.parametrize("scope", ["kind", "queue"])
def test_worker_wakes_when_a_rate_limit_allows_the_next_job(app: App, scope: str) -> None:
    """The worker neither polls nor does maintenance during the test: the claim returns when the next job may start."""

    @app.job(queue="calls")
    async def call() -> None: ...

    app.limits.set(**{scope: "call" if scope == "kind" else "calls"}, rate="50/s")  # type: ignore[arg-type]
    handles = [call.enqueue() for _ in range(6)]
    with working(app, poll=60.0, promote_every=60.0, sweep_every=60.0):
        for handle in handles:
            handle.result(timeout=20)
    starts = sorted(job.started_at for job in app.jobs.list(kind="call") if job.started_at is not None)
    assert (starts[-1] - starts[0]).total_seconds() >= 0.09, "five waits of a fiftieth of a second"


@pytest.mark.req("SC-16")
def test_invalid_limits_are_refused(app: App) -> None:
    def refused(code: str, **options: object) -> None:
        with pytest.raises(InvalidSetting, match=code):
            app.limits.set(**options)  # type: ignore[arg-type]

    refused("invalid_limit", queue="q")
    refused("invalid_limit", queue="q", concurrency=-1)
    refused("invalid_limit", queue="q", concurrency=True)
    refused("invalid_limit", queue="q", rate="often")
    refused("invalid_limit", queue="q", rate="0/s")
    refused("invalid_duration", queue="q", rate="5/fortnight")
    refused("invalid_limit", queue="q", concurrency=1, burst=5)
    refused("conflicting_options", queue="q", kind="k", concurrency=1)
    refused("invalid_name", queue=" ", concurrency=1)
    with pytest.raises(InvalidSetting, match="invalid_name"):
        app.job(resources="gpu-0")
    with pytest.raises(InvalidSetting, match="invalid_limit"):
        app.job(resources=[f"r{n}" for n in range(21)])


@pytest.mark.req("SC-10")
def test_reservation_blocks_other_claims_and_reservations(app: App, new_app: NewApp) -> None:
    app.enqueue("later")
    with app.reservations.hold(reason="by hand") as reserved:
        assert claim(session_of(app).store, open_lease(session_of(app).store)) == []
        with pytest.raises(Conflict, match="reservation_busy"), new_app().reservations.hold("gpu-0", wait=0.1):
            raise AssertionError("two at once")
        assert [each.id for each in app.reservations.list()] == [reserved.id]
    (job,) = claim(session_of(app).store, open_lease(session_of(app).store))
    with pytest.raises(Conflict, match="1 jobs are still running"), app.reservations.hold(queue="default", wait=0):
        raise AssertionError("it runs")
    with app.reservations.hold(queue="default", wait=0, at_once=True):
        pass
    reservations = app.reservations.list(ended=True)
    assert sorted((each.state, each.ended_why) for each in reservations) == [
        ("released", "left with Conflict"),
        ("released", "released"),
        ("released", "released"),
        ("withdrawn", "left with Conflict"),
    ]
    assert job.kind == "later"


@pytest.mark.slow
@pytest.mark.req("SC-10")
def test_second_reservation_waits_and_a_released_one_is_lost(app: App, new_app: NewApp) -> None:
    order: list[str] = []
    other = new_app()

    async def second() -> None:
        async with other.reservations.hold("gpu-0", wait="30s"):
            order.append("second")

    def expires(reservation: str) -> datetime:
        return app.reservations.get(reservation).expires_at

    with app.reservations.hold("gpu-0", ttl=5) as first:
        at_first = expires(first.id)
        waiting = threading.Thread(target=lambda: asyncio.run(second()))
        waiting.start()
        until(lambda: len(app.reservations.list()) == 2, "the second reservation waits")
        until(lambda: expires(first.id) > at_first, "the first reservation is renewed")
        order.append("first")
        assert not first.lost
    waiting.join(30)
    assert order == ["first", "second"]
    held = app.reservations.hold("gpu-0", ttl=5).__enter__()
    app.reservations.release(held.id, reason="it hangs")
    until(lambda: held.lost, "the holder is notified")
    with pytest.raises(Conflict, match="reservation_lost"):
        held.__exit__(None, None, None)
    with pytest.raises(NotFound, match="reservation_not_found"):
        app.reservations.release(held.id)


@pytest.mark.req("SC-16", "DP-22")
def test_a_kind_is_accepted_where_its_name_is_expected(app: App) -> None:
    @app.job
    def fetch(page: int) -> None: ...

    assert app.limits.set(kind=fetch, concurrency=2).name == "fetch"
    assert app.limits.get(kind=fetch).concurrency == 2
    app.limits.remove(kind=fetch)
    assert app.pauses.set(kind=fetch, reason="a test").name == "fetch"
    app.pauses.remove(kind=fetch)
    job = app.enqueue(fetch, {"page": 1})
    assert [found.id for found in app.jobs.list(kind=fetch)] == [job.id]
    assert app.schedules.add("often", "every 1h", kind=fetch, payload={"page": 1}).kind == "fetch"
    assert [schedule.name for schedule in app.schedules.list(kind=fetch)] == ["often"]
    assert app.retention.set(kind=fetch, purge_after="1d").kind == "fetch"
    app.retention.remove(kind=fetch)
    assert [usage.enqueued for usage in app.usage.list(kind=fetch)] == [1]
    assert app.agents.list(kind=fetch) == []
    app.on("job.succeeded", kind=fetch)(app.job("index")(lambda event: None))


@pytest.mark.req("SC-16", "DP-22")
def test_unknown_options_of_limits_and_pauses_are_refused(app: App) -> None:
    for call in (
        lambda: app.limits.set(task="call", rate="10/m"),  # type: ignore[call-arg]
        lambda: app.limits.remove(task="call"),  # type: ignore[call-arg]
        lambda: app.limits.get(task="call"),  # type: ignore[call-arg]
        lambda: app.pauses.set(task="call", reason="a test"),  # type: ignore[call-arg]
        lambda: app.pauses.remove(task="call"),  # type: ignore[call-arg]
    ):
        with pytest.raises(InvalidSetting, match="For task use kind") as refused:
            call()
        assert refused.value.code == "unknown_option"
    with pytest.raises(InvalidSetting, match="Did you mean resource"):
        app.reservations.set("01a1de74-eb8c-70f1-843b-cac5f6817387", resourse="gpu-0")  # type: ignore[call-arg]

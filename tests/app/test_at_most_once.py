"""Kinds with `at_most_once`: no worker starts such a job a second time; only an operator can (SC-7)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from holdfast import App, Retry, State, SyncContext
from holdfast.app.internals import session_of
from holdfast.engine.job import Exchange
from holdfast.errors import InvalidSetting
from holdfast.stores.flow import Flow
from tests.app.conftest import NewApp
from tests.support.stores import claim, forward, open_lease
from tests.support.waiting import until
from tests.support.workers import QUICK, work_off, working

pytestmark = pytest.mark.req("SC-7")


def declare(app: App, runs: list[int], fails: bool = True) -> Any:
    @app.job("charge", at_most_once=True)
    def charge(ctx: SyncContext) -> None:
        runs.append(ctx.attempt)
        if fails:
            raise ConnectionError("did it go through?")

    return charge


def test_failure_is_final(app: App) -> None:
    runs: list[int] = []
    handle = declare(app, runs).enqueue()
    work_off(app)
    job = handle.get()
    assert (job.state, job.max_attempts, job.max_crashes, runs) == (State.DEAD_LETTER, 1, 0, [1])


def test_lost_worker_is_final(app: App) -> None:
    runs: list[int] = []
    handle = declare(app, runs).enqueue()
    (lost,) = claim(session_of(app).store, open_lease(session_of(app).store, ttl=1.0))
    assert lost.id == handle.id
    forward(session_of(app).store, 2.0)
    session_of(app).run(session_of(app).store.leases.recover())
    work_off(app)
    job = handle.get()
    assert (job.state, job.error_code, runs) == (State.DEAD_LETTER, "worker_lost", [])


@pytest.mark.slow
@pytest.mark.parametrize("by_name", [False, True])
def test_tick_timeout_dead_letters_the_job(app: App, new_app: NewApp, by_name: bool) -> None:
    worker_app, runs = new_app(), []

    @worker_app.job(at_most_once=True)
    async def charge() -> None:
        runs.append(1)
        await asyncio.sleep(60)

    handle = app.enqueue("charge") if by_name else charge.enqueue()
    while not (done := worker_app.tick(timeout=0.3)).taken:
        pass  # on a busy machine the timeout passes before the first claim
    assert (done.taken, done.dead, done.handed_back) == (1, 1, 0)
    worker_app.tick(timeout=0.3)
    job = handle.get()
    assert (job.state, job.error_code, runs) == (State.DEAD_LETTER, "interrupted", [1])


@pytest.mark.parametrize("by_name", [False, True])
def test_stopping_worker_dead_letters_the_job(app: App, new_app: NewApp, by_name: bool) -> None:
    """This holds even if the producer did not know the kind and stored the default policy."""
    worker_app, started, release = new_app(), threading.Event(), threading.Event()

    @worker_app.job(at_most_once=True)
    def charge() -> None:
        started.set()
        release.wait(30)

    try:
        with working(worker_app) as background:
            handle = app.enqueue("charge") if by_name else charge.enqueue()
            assert started.wait(20)
            background.ask_to_stop(now=True)
            until(lambda: not background.alive, "the worker has left")
    finally:
        release.set()
    job = handle.get()
    assert (job.state, job.error_code) == (State.DEAD_LETTER, "interrupted")
    # An operator can redrive it.
    app.jobs.redrive(handle.id, reason="it did not go through")
    assert handle.state() is State.QUEUED


def test_ordinary_job_is_handed_back_by_a_stopping_worker(app: App, new_app: NewApp) -> None:
    worker_app, started, release = new_app(), threading.Event(), threading.Event()

    @worker_app.job()
    def charge() -> None:
        started.set()
        release.wait(30)

    try:
        with working(worker_app) as background:
            handle = app.enqueue("charge")
            assert started.wait(20)
            background.ask_to_stop(now=True)
            until(lambda: not background.alive, "the worker has left")
    finally:
        release.set()
    assert handle.history()[-1].type in ("snooze", "due")


def test_job_stored_with_another_policy_still_starts_once(app: App, new_app: NewApp) -> None:
    runs: list[int] = []
    worker_app = new_app()
    failing = worker_app.enqueue("charge", retry=Retry(max_attempts=5))
    declare(app, runs)
    work_off(app)
    assert (failing.get().state, runs) == (State.DEAD_LETTER, [1])

    lost = worker_app.enqueue("charge", retry=Retry(max_attempts=5))
    claim(session_of(app).store, open_lease(session_of(app).store, ttl=1.0))
    forward(session_of(app).store, 2.0)
    session_of(app).run(session_of(app).store.leases.recover())
    session_of(app).run(session_of(app).store.leases.promote())
    work_off(app)
    job = lost.get()
    assert (job.state, job.error_code, runs) == (State.DEAD_LETTER, "interrupted", [1])


def test_redrive_starts_the_job_again(app: App) -> None:
    runs: list[int] = []
    handle = declare(app, runs).enqueue()
    work_off(app)
    app.jobs.redrive(handle.id, reason="the bank says no")
    work_off(app)
    assert runs == [1, 2]


def test_retry_policy_conflicts_with_at_most_once(app: App) -> None:
    charge = declare(app, [])
    with pytest.raises(InvalidSetting) as caught:
        app.job(at_most_once=True, retry=Retry())
    assert caught.value.code == "conflicting_options"
    for attempt in (lambda: charge.using(retry=Retry()), lambda: app.enqueue("charge", retry=Retry())):
        with pytest.raises(InvalidSetting) as caught:
            attempt()
        assert caught.value.code == "conflicting_options"


def test_job_claimed_while_the_worker_stops_is_not_started(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last exchange was in flight: started now, the job would be interrupted at once and never run."""
    runs: list[int] = []
    handle = declare(app, runs, fails=False).enqueue()
    usual = session_of(app).store.arun

    async def stopped_meanwhile() -> None:
        worker = app.worker(**QUICK)

        async def arun(flow: Flow[Any]) -> Any:
            answer = await usual(flow)
            if isinstance(answer, Exchange) and answer.claims:
                worker.stop_now()
            return answer

        monkeypatch.setattr(session_of(app).store, "arun", arun)
        await worker.run()
        monkeypatch.undo()
        await session_of(app).store.leave_loop()

    asyncio.run(stopped_meanwhile())
    assert "never_begun" in [event.meta.get("reason") for event in handle.history()]
    assert runs == []
    work_off(app)
    assert (handle.state(), runs) == (State.SUCCEEDED, [2])

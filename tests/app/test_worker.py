"""The worker: which jobs it claims, their outcomes, and how it stops."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from itertools import pairwise
from typing import Any

import pytest

from holdfast import App, Backoff, Handle, Retry, State
from holdfast.app.internals import session_of
from holdfast.engine.job import Attempt
from tests.app.conftest import NewApp
from tests.support.stores import claim, open_lease
from tests.support.waiting import until
from tests.support.workers import work_off, working

ONCE = Retry(max_attempts=1)
AGAIN = Retry(max_attempts=3, backoff=Backoff(base=0.05, factor=2, jitter=False))


def attempts(app: App, handle: Handle[Any]) -> list[Attempt]:
    return session_of(app).run(session_of(app).store.jobs.attempts(handle.id, handle.tenant))


@pytest.mark.req("JF-7", "SC-4")
def test_async_and_sync_handlers_run_concurrently(app: App, new_app: NewApp) -> None:
    worker_app = new_app()
    meeting = threading.Barrier(3)

    @worker_app.job()
    async def awaits() -> str:
        await asyncio.to_thread(meeting.wait, 20)
        return threading.current_thread().name

    @worker_app.job()
    def blocks() -> str:
        meeting.wait(20)
        return threading.current_thread().name

    with working(worker_app):
        handles = [app.enqueue("awaits"), app.enqueue("blocks")]
        meeting.wait(20)  # both are running now
        names = [handle.result(timeout=20) for handle in handles]
    assert names[0] == "test-worker"
    assert names[1].startswith("holdfast-job")


@pytest.mark.req("JF-7", "SC-4", "CX-1")
def test_burst_runs_the_jobs_of_a_lost_worker(app: App) -> None:
    @app.job()
    def work() -> str:
        return "done"

    handles = [work.enqueue() for _ in range(3)]
    store = session_of(app).store
    lease = open_lease(store)
    assert len(claim(store, lease, 2)) == 2
    store.run(store.leases.end(lease, "crashed in a test", "*"))
    work_off(app, promote_every=1000.0, sweep_every=1000.0)  # each maintenance task runs once
    assert [handle.result(timeout=1) for handle in handles] == ["done"] * 3


@pytest.mark.req("CX-9", "JF-5", "SC-5", "DP-22")
def test_failure_is_retried_after_its_backoff_and_then_dead_lettered(app: App, new_app: NewApp) -> None:
    worker_app = new_app()

    @worker_app.job("flaky")
    def fails() -> None:
        raise ConnectionError("the line is busy")

    with working(worker_app):
        handle = app.enqueue("flaky", retry=AGAIN)
        job = handle.wait(timeout=20)
    assert (job.state, job.attempt, job.retries) == (State.DEAD_LETTER, 3, 2)
    assert (job.error_code, job.error_message) == ("ConnectionError", "the line is busy")
    event_types = [event.type for event in handle.history()]
    assert event_types == ["enqueue", *["take", "fail", "retry", "due"] * 2, "take", "fail", "dead_letter"]
    tries = attempts(app, handle)
    assert [each.outcome for each in tries] == ["failed"] * 3
    waits = [(two.started_at - one.ended_at).total_seconds() for one, two in pairwise(tries) if one.ended_at]
    assert waits[0] >= 0.05
    assert waits[1] >= 0.1
    for each in tries:
        assert (each.error_code, each.error_message) == ("ConnectionError", "the line is busy")
        assert each.traceback is not None
        assert "in fails" in each.traceback
        assert "raise ConnectionError" in each.traceback


@pytest.mark.req("CX-9", "JF-5")
def test_success_after_failures_clears_the_error(app: App, new_app: NewApp) -> None:
    worker_app = new_app()
    calls: list[int] = []

    @worker_app.job()
    async def flaky() -> int:
        calls.append(1)
        if len(calls) < 3:
            raise ValueError("not yet")
        return len(calls)

    with working(worker_app):
        handle = app.enqueue("flaky", retry=AGAIN)
        assert handle.result(timeout=20) == 3
    job = handle.get()
    assert (job.error_code, job.error_message, job.retries) == (None, None, 2)


@pytest.mark.req("DP-22", "SC-5")
def test_timeout_ends_the_attempt(app: App, new_app: NewApp) -> None:
    worker_app = new_app()
    ended: list[str] = []
    release = threading.Event()

    @worker_app.job(timeout=0.1)
    async def sleeps() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    @worker_app.job(timeout="100ms")
    def blocks() -> None:
        release.wait(20)  # a thread cannot be stopped: it continues although its job has failed

    with working(worker_app):
        handles = [app.enqueue(kind, retry=ONCE) for kind in ("sleeps", "blocks")]
        jobs = [handle.wait(timeout=20) for handle in handles]
        release.set()
    assert [(job.state, job.error_code) for job in jobs] == [(State.DEAD_LETTER, "timeout")] * 2
    assert ended == ["cancelled"]
    assert [attempts(app, handle)[0].outcome for handle in handles] == ["failed", "failed"]


@pytest.mark.req("JF-7")
def test_unknown_kinds_stay_in_the_queue(app: App) -> None:
    @app.job()
    def known() -> int:
        return 1

    unknown, handle = app.enqueue("unknown", priority=9), known.enqueue()
    work_off(app)
    assert (handle.result(timeout=5), unknown.state(), unknown.get().attempt) == (1, State.QUEUED, 0)
    assert app.health.get().waiting_kinds == ("unknown",)


@pytest.mark.req("DP-9")
def test_queues_priorities_and_deadlines_are_respected(app: App) -> None:
    order: list[str] = []

    @app.job()
    def note(name: str) -> None:
        order.append(name)

    now = session_of(app).run(session_of(app).store.clock.now())
    late = note.using(deadline=now).enqueue("late")
    note.enqueue("second")
    note.using(priority=5).enqueue("first")
    note.using(queue="other").enqueue("other")
    work_off(app, concurrency=1)
    assert order == ["first", "second"]
    assert (late.wait(timeout=5).state, late.get().error_code) == (State.FAILED, "deadline_passed")
    work_off(app, concurrency=1, queues=("other",))
    assert order == ["first", "second", "other"]


@pytest.mark.req("JF-1")
def test_worker_for_one_tenant_skips_other_tenants(app: App) -> None:
    @app.job()
    def quick() -> None: ...

    mine, theirs = quick.enqueue(), quick.using(tenant="acme").enqueue()
    work_off(app, tenant="acme")
    assert (theirs.state(), mine.state()) == (State.SUCCEEDED, State.QUEUED)
    work_off(app)
    assert mine.state() is State.SUCCEEDED


@pytest.mark.req("SC-4")
def test_worker_runs_no_more_jobs_than_slots(app: App, new_app: NewApp) -> None:
    worker_app = new_app()
    lock, running, most = threading.Lock(), 0, 0
    full = threading.Event()

    @worker_app.job()
    def busy() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running == 3:
                full.set()
        full.wait(20)  # the first jobs wait until all slots are in use
        time.sleep(0.002)
        with lock:
            running -= 1

    handles = app.enqueue_many([app.prepare("busy") for _ in range(60)])
    with working(worker_app, concurrency=3):
        for handle in handles:
            handle.wait(timeout=30)
    assert most == 3
    assert all(handle.get().attempt == 1 for handle in handles)


@pytest.mark.req("SC-4")
def test_max_jobs_ends_the_worker(app: App) -> None:
    @app.job()
    def quick() -> None: ...

    handles = app.enqueue_many([quick.prepare() for _ in range(5)])
    work_off(app, max_jobs=2)
    assert [handle.state() for handle in handles].count(State.SUCCEEDED) == 2


@pytest.mark.req("SC-13", "CX-15")
def test_stopping_worker_lets_its_jobs_finish(app: App, new_app: NewApp) -> None:
    worker_app = new_app()
    started, release = threading.Event(), threading.Event()

    @worker_app.job()
    def slow() -> str:
        started.set()
        assert release.wait(20)
        return "done"

    with working(worker_app) as background:
        handle = app.enqueue("slow")
        assert started.wait(20)
        background.ask_to_stop()
        until(
            # An exchange that was in flight may still return jobs.
            lambda: background.worker and background.worker._grace.begun and not background.worker._exchanges,
            "the worker waits for its running job and claims no more",
        )
        waiting = app.enqueue("slow")
        release.set()
        until(lambda: not background.alive, "the worker has ended")
    assert (handle.result(timeout=5), waiting.state()) == ("done", State.QUEUED)
    assert app.health.get().lease_active == 0


@pytest.mark.req("SC-13", "CX-15")
def test_job_that_outlasts_the_grace_period_is_handed_back_at_no_cost(app: App, new_app: NewApp) -> None:
    worker_app = new_app()
    started = threading.Event()

    @worker_app.job()
    async def slow() -> None:
        started.set()
        await asyncio.sleep(60)

    with working(worker_app, grace=0.1) as background:
        handle = app.enqueue("slow", retry=ONCE)
        assert started.wait(20)
        background.ask_to_stop()
        until(lambda: not background.alive, "the worker has ended")
    job = handle.get()
    assert job.state in (State.RETRY_WAITING, State.QUEUED)  # the worker may have promoted it before it ended
    assert (job.retries, job.crashes) == (0, 0)
    (handed_back,) = [event for event in handle.history() if event.type == "snooze"]
    assert handed_back.meta["reason"] == "worker_stopped"


@pytest.mark.req("DP-22")
def test_failure_is_logged_with_its_job(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.job(retry=ONCE)
    def fails() -> None:
        raise ValueError("no")

    handle = fails.enqueue()
    with caplog.at_level(logging.WARNING, logger="holdfast.worker"):
        work_off(app)
    assert any(handle.id in record.message and "ValueError: no" in record.message for record in caplog.records)


@pytest.mark.req("HF-5")
def test_run_worker_runs_in_this_thread(new_sqlite_url: str) -> None:
    app = App(new_sqlite_url)

    @app.job()
    def where() -> str:
        return "here"

    handle = where.enqueue()
    app.run_worker(burst=True)
    assert handle.result() == "here"
    app.close()

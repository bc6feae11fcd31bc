"""A worker that lost its lease abandons its running jobs, and nothing it does to them is recorded."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from typing import Any

import pytest

from holdfast import App, Context, State, SyncContext
from holdfast.app.internals import session_of
from holdfast.errors import StaleLease
from tests.app.conftest import NewApp
from tests.support.direct_sql import open_by_hand
from tests.support.waiting import until
from tests.support.workers import working


def end_lease(app: App, lease: str) -> None:
    assert session_of(app).run(session_of(app).store.leases.end(lease, "ended by a test", "*"))


def sweep(app: App) -> Any:
    return session_of(app).run(session_of(app).store.leases.recover(tenant="*"))


@pytest.mark.req("DP-7", "CX-15", "SC-19")
def test_worker_with_an_ended_lease_settles_nothing(app: App, new_app: NewApp) -> None:
    worker_app = new_app()
    started: list[int] = []
    stopped, first_may_end = threading.Event(), threading.Event()

    @worker_app.job()
    async def careful(ctx: Context) -> str:
        started.append(ctx.attempt)
        try:
            if ctx.attempt == 1:
                await asyncio.Event().wait()  # for ever
        except asyncio.CancelledError:
            stopped.set()
            raise
        return f"attempt {ctx.attempt}"

    @worker_app.job()
    def stubborn(ctx: SyncContext) -> str:
        started.append(ctx.attempt)
        if ctx.attempt == 1:
            assert first_may_end.wait(20)  # a thread cannot be stopped
        return f"attempt {ctx.attempt}"

    # The worker does not sweep: the test decides what happens to the jobs.
    with working(worker_app, beat=0.3, sweep_every=1000, concurrency=2) as background:
        handles = [app.enqueue("careful"), app.enqueue("stubborn")]
        until(lambda: len(started) == 2, "both are running")
        lost = background.lease
        end_lease(app, lost)
        assert stopped.wait(20), "the handler was not interrupted"
        until(lambda: background.lease != lost, "the worker has a new lease")
        first_may_end.set()
        until(lambda: sweep(app).crashed or all(h.get().crashes for h in handles), "the jobs were freed")
        assert [handle.result(timeout=20) for handle in handles] == ["attempt 2", "attempt 2"]
    for handle in handles:
        job = handle.get()
        assert (job.state, job.attempt, job.crashes) == (State.SUCCEEDED, 2, 1)
        assert [event.type for event in handle.history()][-5:] == ["lease_expired", "retry", "due", "take", "succeed"]


@pytest.mark.req("DP-7", "SC-19")
def test_checkpoint_of_a_job_taken_by_another_worker_is_refused(app: App, new_app: NewApp) -> None:
    worker_app = new_app()
    started, freed = threading.Event(), threading.Event()
    refused: list[str] = []

    @worker_app.job()
    def saves(ctx: SyncContext) -> None:
        if ctx.attempt > 1:
            return
        ctx.checkpoint.save("mine")
        started.set()
        assert freed.wait(20)
        try:
            ctx.checkpoint.save("stale")
        except StaleLease as error:
            refused.append(error.code)

    with working(worker_app, lease_ttl=1000, sweep_every=1000, concurrency=2) as background:
        handle = app.enqueue("saves")
        assert started.wait(20)
        end_lease(app, background.lease)
        # Freed by this sweep, or by the worker's first sweep, which may come late.
        until(lambda: sweep(app).crashed or handle.get().crashes, "the job was freed")
        freed.set()
        until(lambda: refused, "the handler was refused")
    assert refused == ["stale_lease"]
    assert session_of(app).run(session_of(app).store.jobs.checkpoints(handle.id, "default")) == {"progress": "mine"}


@pytest.mark.req("DP-7", "SC-19")
def test_late_result_is_not_recorded(app: App, new_app: NewApp) -> None:
    """The heartbeat has not noticed yet (the lease is long): the settlement itself is refused."""
    worker_app = new_app()
    started, freed = threading.Event(), threading.Event()

    @worker_app.job()
    def late(ctx: SyncContext) -> str:
        if ctx.attempt == 1:
            started.set()
            assert freed.wait(20)
        return f"attempt {ctx.attempt}"

    with working(worker_app, lease_ttl=1000, sweep_every=1000, concurrency=2) as background:
        handle = app.enqueue("late")
        assert started.wait(20)
        with closing(
            open_by_hand(session_of(app).store.url)
        ) as by_hand:  # as if it had expired long ago and been swept
            by_hand.execute(
                "update lease set ended_at = until, ended_why = 'expired' where id = :id", {"id": background.lease}
            )
        # Freed by this sweep, or by the worker's first sweep, which may come late.
        until(lambda: sweep(app).crashed or handle.get().crashes, "the job was freed")
        freed.set()
        assert handle.result(timeout=20) == "attempt 2"
    assert [event.type for event in handle.history()].count("succeed") == 1

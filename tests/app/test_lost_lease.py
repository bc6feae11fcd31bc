"""A worker that has lost its lease: what it was running is abandoned, and nothing of it is recorded."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from typing import Any

import pytest

from holdfast import App, Context, State, SyncContext
from holdfast.errors import StaleLease
from tests.app.conftest import NewApp
from tests.support.direct_sql import open_by_hand
from tests.support.waiting import until
from tests.support.workers import working


def end_lease(app: App, lease: str) -> None:
    assert app._session.run(app._session.store.leases.end(lease, "ended by a test", "*"))


def sweep(app: App) -> Any:
    return app._session.run(app._session.store.leases.reap(tenant="*"))


@pytest.mark.req("DP-7", "CX-15", "SC-19")
def test_a_worker_whose_lease_was_ended_settles_nothing(app: App, new_app: NewApp) -> None:
    elsewhere = new_app()
    begun: list[int] = []
    stopped, first_may_end = threading.Event(), threading.Event()

    @elsewhere.job()
    async def careful(ctx: Context) -> str:
        begun.append(ctx.attempt)
        try:
            if ctx.attempt == 1:
                await asyncio.Event().wait()  # for ever
        except asyncio.CancelledError:
            stopped.set()
            raise
        return f"attempt {ctx.attempt}"

    @elsewhere.job()
    def stubborn(ctx: SyncContext) -> str:
        begun.append(ctx.attempt)
        if ctx.attempt == 1:
            assert first_may_end.wait(20)  # a thread cannot be stopped
        return f"attempt {ctx.attempt}"

    # It does not sweep itself: what happens to the jobs is the test's to say.
    with working(elsewhere, beat=0.3, sweep_every=1000, concurrency=2) as beside:
        handles = [app.enqueue("careful"), app.enqueue("stubborn")]
        until(lambda: len(begun) == 2, "both are running")
        lost = beside.lease
        end_lease(app, lost)
        assert stopped.wait(20), "the handler was not told"
        until(lambda: beside.lease != lost, "the worker has a new lease")
        first_may_end.set()
        until(lambda: sweep(app).crashed or all(h.get().crashes for h in handles), "the jobs were freed")
        assert [handle.result(timeout=20) for handle in handles] == ["attempt 2", "attempt 2"]
    for handle in handles:
        job = handle.get()
        assert (job.state, job.attempt, job.crashes) == (State.SUCCEEDED, 2, 1)
        assert [event.type for event in handle.history()][-5:] == ["lapse", "retry", "due", "take", "succeed"]


@pytest.mark.req("DP-7", "SC-19")
def test_progress_of_a_job_that_is_somebody_elses_is_refused(app: App, new_app: NewApp) -> None:
    elsewhere = new_app()
    begun, freed = threading.Event(), threading.Event()
    refused: list[str] = []

    @elsewhere.job()
    def saves(ctx: SyncContext) -> None:
        if ctx.attempt > 1:
            return
        ctx.checkpoint.save("mine")
        begun.set()
        assert freed.wait(20)
        try:
            ctx.checkpoint.save("stale")
        except StaleLease as error:
            refused.append(error.code)

    with working(elsewhere, lease_ttl=1000, sweep_every=1000, concurrency=2) as beside:
        handle = app.enqueue("saves")
        assert begun.wait(20)
        end_lease(app, beside.lease)
        # By this sweep, or by the worker's first look, which may come late.
        until(lambda: sweep(app).crashed or handle.get().crashes, "the job was freed")
        freed.set()
        until(lambda: refused, "the handler was refused")
    assert refused == ["stale_lease"]
    assert app._session.run(app._session.store.jobs.checkpoints(handle.id, "default")) == {"progress": "mine"}


@pytest.mark.req("DP-7", "SC-19")
def test_a_result_that_comes_too_late_is_not_recorded(app: App, new_app: NewApp) -> None:
    """The heartbeat has not noticed yet (the lease is long): the settlement itself is refused."""
    elsewhere = new_app()
    begun, freed = threading.Event(), threading.Event()

    @elsewhere.job()
    def late(ctx: SyncContext) -> str:
        if ctx.attempt == 1:
            begun.set()
            assert freed.wait(20)
        return f"attempt {ctx.attempt}"

    with working(elsewhere, lease_ttl=1000, sweep_every=1000, concurrency=2) as beside:
        handle = app.enqueue("late")
        assert begun.wait(20)
        with closing(open_by_hand(app._store.url)) as by_hand:  # as if it had lapsed long ago, and been swept
            by_hand.execute(
                "update lease set ended_at = until, ended_why = 'lapsed' where id = :id", {"id": beside.lease}
            )
        # By this sweep, or by the worker's first look, which may come late.
        until(lambda: sweep(app).crashed or handle.get().crashes, "the job was freed")
        freed.set()
        assert handle.result(timeout=20) == "attempt 2"
    assert [event.type for event in handle.history()].count("succeed") == 1

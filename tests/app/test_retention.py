"""Retention and usage through the public API: declared with a kind, applied by a worker, reported by the app."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest

from holdfast import App, Context, Retry, State, SyncContext
from holdfast.app.internals import session_of
from holdfast.errors import InvalidSetting, NotFound
from tests.app.conftest import NewApp
from tests.support.stores import forward
from tests.support.waiting import until
from tests.support.workers import work_off, working


@pytest.mark.slow
@pytest.mark.req("DP-16", "HK-5")
def test_worker_purges_jobs_by_the_policy_of_their_kind(new_app: NewApp) -> None:
    """It stores the declared policy, cleans and purges in the background, and usage is still counted."""
    app = new_app()

    @app.job(keep="1h", cost=2)
    async def brief(ctx: Context) -> None:
        ctx.cost(0.25)

    @app.job()
    def lasting(ctx: SyncContext) -> None:
        ctx.cost(1)
        ctx.cost(0.5)

    ids = [brief.enqueue().id for _ in range(3)]
    lasts = lasting.enqueue()
    work_off(app)
    assert [(each.tenant, each.kind, each.purge_after, each.declared) for each in app.retention.list(tenant="*")] == [
        ("*", "brief", 3600, True)
    ]
    # The clock runs on: a purge that meets events not yet counted or sealed is retried ten seconds later.
    session_of(app).store.run(session_of(app).store.clock.set(timedelta(seconds=4000), None))
    with working(new_app(), queues=("idle",)):
        until(lambda: sum(each.id in ids for each in app.jobs.list()) <= 1, "all but the newest event's job is purged")
    assert app.jobs.get(lasts.id).state is State.SUCCEEDED
    assert [(each.kind, each.succeeded, each.cost) for each in app.usage.list(by="kind")] == [
        ("brief", 3, 6.75),
        ("lasting", 1, 1.5),
    ]
    by_day = app.usage.list(since=7)  # one day, or two if it is late
    assert {each.kind for each in by_day} == {"brief", "lasting"}
    assert all(each.day is not None for each in by_day)
    assert app.usage.list(by=(), kind="nothing") == []


@pytest.mark.req("HK-5")
def test_cost_is_recorded_for_every_outcome_of_an_attempt(app: App) -> None:
    @app.job(retry=Retry(max_attempts=1))
    async def fails(ctx: Context) -> None:
        ctx.cost(1)
        raise ValueError("no")

    @app.job()
    async def waits(ctx: Context) -> None:
        ctx.cost(0.1)
        await ctx.sleep("1h")

    @app.job()
    async def done(ctx: Context) -> None:
        ctx.cost(0.01)
        async with ctx.transaction():
            ctx.cost(0.001)

    @app.job(timeout=0.05, cost=0.0001, retry=Retry(max_attempts=1))
    async def late() -> None:
        await asyncio.sleep(30)

    for kind in (fails, waits, done, late):
        kind.enqueue()
    work_off(app)
    costs = {each.kind: each.cost for each in app.usage.list(by="kind")}
    assert costs == {"fails": 1, "waits": 0.1, "done": 0.011, "late": 0.0001}
    with pytest.raises(InvalidSetting, match="invalid_cost"):
        app.job(cost=-1)


@pytest.mark.slow
@pytest.mark.req("DP-16", "DP-12")
def test_consumer_that_is_behind_is_reported(app: App, new_app: NewApp, caplog: pytest.LogCaptureFixture) -> None:
    @app.job()
    async def work() -> None: ...

    work.enqueue()
    work_off(app)
    (first,) = session_of(app).store.run(session_of(app).store.ledger.read(None, 1, "default"))
    assert session_of(app).store.run(session_of(app).store.ledger.save_cursor("billing", first.cursor, None, "default"))
    app.retention.set(purge_after="1h")
    forward(session_of(app).store, 4000)
    with caplog.at_level(logging.WARNING, "holdfast.worker"), working(new_app(), queues=("idle",)):
        until(lambda: "consumer billing has not read" in caplog.text, "the worker names the consumer")
    (preview,) = [each for each in app.retention.preview() if each.action == "purge"]
    assert (preview.due, preview.held_by) == (1, "consumer billing")
    app.retention.remove()
    with pytest.raises(NotFound, match="retention_not_found"):
        app.retention.remove()


@pytest.mark.req("DP-16")
def test_sweep_cleans_due_jobs_immediately(app: App) -> None:
    session_of(app).make_ready()
    handles = [app.enqueue("work") for _ in range(3)]
    app.jobs.cancel(*(handle.id for handle in handles))
    app.retention.set(clean_after="1h", state="cancelled")
    forward(session_of(app).store, 3599)
    assert app.retention.sweep() == {"clean": 0, "purge": 0, "prune": 0, "delete": 0}
    session_of(app).store.run(session_of(app).store.clock.set(timedelta(hours=2), None))
    assert app.retention.sweep(tenant="*", limit=2)["clean"] == 3
    assert {job.state for job in app.jobs.list()} == {State.CLEANED}

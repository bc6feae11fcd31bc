"""A claimed job without a worker, to be completed or lost."""

from __future__ import annotations

import logging

from holdfast import App, State, SyncContext
from holdfast.app.internals import session_of
from holdfast.context import AnyContext
from holdfast.steps.handler_run import HandlerRun
from holdfast.stores.session import Session
from tests.support.stores import claim, open_lease


def claimed_job(app: App) -> SyncContext:
    """Claim a new job and return its context; ``Context(ctx._run)`` is its async form."""
    handle = app.enqueue("by_hand")
    claimed = claim(session_of(app).store, open_lease(session_of(app).store))[0]
    assert claimed.id == handle.id
    client = Session(session_of(app).store, tenant="*", name="tests", actor="tester")
    return SyncContext(HandlerRun(claimed, client, logging.getLogger("holdfast.job.by_hand")))


def lose(app: App, ctx: AnyContext) -> None:
    """End the lease and free the job."""
    session_of(app).store.run(session_of(app).store.leases.end(ctx._run.claim.lease, "gone", "*"))
    session_of(app).store.run(session_of(app).store.leases.recover())


def state_of(app: App, ctx: AnyContext) -> State:
    job = app.jobs.get(ctx.job_id)
    return job.state

"""``ctx.complete(connection=…)``: the job succeeds exactly if the handler's own transaction commits (HF-3)."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from typing import Any

import psycopg
import pytest

from holdfast import App, Context, Retry, State, SyncContext
from holdfast.app.internals import session_of
from holdfast.errors import Conflict, StaleLease
from tests.app.borrowed.conftest import BORROWERS
from tests.app.claimed_job import claimed_job, lose, state_of
from tests.app.notes import notes
from tests.support.caller_connections import AsyncBorrower, Borrower
from tests.support.workers import work_off

pytestmark = [pytest.mark.req("HF-3"), pytest.mark.sample(1)]


def complete(ctx: SyncContext, borrower: Borrower, result: Any = None) -> None:
    if isinstance(borrower, AsyncBorrower):
        borrower.do(Context(ctx._run).complete(connection=borrower.connection, result=result))
    else:
        ctx.complete(connection=borrower.connection, result=result)


def concluded(ctx: SyncContext) -> bool:
    """The worker's check, on a separate event loop."""

    async def check() -> bool:
        try:
            return await ctx._run.ending.concluded()
        finally:
            await ctx._run.session.store.leave_loop()

    return asyncio.run(check())


def test_success_is_visible_after_commit_and_not_before(app: App, url: str, borrower: Borrower) -> None:
    ctx = claimed_job(app)
    borrower.begin()
    borrower.execute("insert into note values ('mine')")
    complete(ctx, borrower, {"n": 7})
    assert (state_of(app, ctx), concluded(ctx), notes(url)) == (State.IN_PROGRESS, False, [])
    borrower.commit()
    assert (state_of(app, ctx), concluded(ctx), notes(url)) == (State.SUCCEEDED, True, ["mine"])
    assert session_of(app).run(session_of(app).store.jobs.result(ctx.job_id, "default")).value == {"n": 7}  # type: ignore[union-attr]


@pytest.mark.slow
def test_rollback_undoes_the_success(app: App, url: str, borrower: Borrower) -> None:
    ctx = claimed_job(app)
    borrower.begin()
    complete(ctx, borrower)
    borrower.execute("insert into note values ('mine')")
    borrower.rollback()
    assert (state_of(app, ctx), concluded(ctx), notes(url)) == (State.IN_PROGRESS, False, [])
    borrower.begin()
    complete(ctx, borrower)  # and it can be repeated
    borrower.commit()
    assert (state_of(app, ctx), concluded(ctx)) == (State.SUCCEEDED, True)


@pytest.mark.req("DP-7")
def test_stale_completion_raises_and_leaves_the_transaction_usable(app: App, url: str, borrower: Borrower) -> None:
    ctx = claimed_job(app)
    lose(app, ctx)
    borrower.begin()
    borrower.execute("insert into note values ('one')")
    with pytest.raises(StaleLease):
        complete(ctx, borrower)
    borrower.execute("insert into note values ('two')")
    borrower.commit()
    assert (state_of(app, ctx), notes(url)) == (State.RETRY_WAITING, ["one", "two"])


def test_second_completion_in_one_transaction_raises(app: App, borrower: Borrower) -> None:
    ctx = claimed_job(app)
    borrower.begin()
    complete(ctx, borrower)
    with pytest.raises(Conflict) as caught:
        complete(ctx, borrower)
    assert caught.value.code == "already_completed"
    borrower.commit()
    assert state_of(app, ctx) == State.SUCCEEDED


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["commit", "commit and raise", "rollback", "rollback and raise"])
@pytest.mark.parametrize("case", [BORROWERS[0], BORROWERS[5]], ids=["psycopg", "sqlalchemy"])
def test_worker_records_how_the_transaction_ended(app: App, url: str, case: Any, ends: str) -> None:
    @app.job(retry=Retry(max_attempts=1))
    def pay(ctx: SyncContext) -> str:
        with closing(case[1](url)) as borrower:
            borrower.begin()
            borrower.execute("insert into note values ('mine')")
            complete(ctx, borrower, "paid")
            borrower.commit() if ends.startswith("commit") else borrower.rollback()
        if ends.endswith("raise"):
            raise ArithmeticError
        return "returned"

    handle = pay.enqueue()
    work_off(app)
    job = handle.get()
    if ends.startswith("commit"):
        assert (handle.result(timeout=5), notes(url), job.attempt) == ("paid", ["mine"], 1)
    else:
        code = "ArithmeticError" if ends.endswith("raise") else "not_committed"
        assert (job.state, job.error_code, notes(url)) == (State.DEAD_LETTER, code, [])


@pytest.mark.req("JF-2")
@pytest.mark.parametrize("case", [BORROWERS[0]], ids=["psycopg"])
def test_tenant_and_actor_are_restored(app: App, url: str, case: Any) -> None:
    ctx = claimed_job(app)
    with psycopg.connect(url) as connection:
        connection.execute(
            "select set_config('holdfast.tenant', 'mine', true), set_config('holdfast.actor', 'me', true)"
        )
        ctx.complete(connection=connection)
        settings = connection.execute("select current_setting('holdfast.tenant'), current_setting('holdfast.actor')")
        assert settings.fetchone() == ("mine", "me")
    assert [event.actor for event in session_of(app).run(session_of(app).store.jobs.history(ctx.job_id, "default"))][
        -1
    ] == "worker-1"


@pytest.mark.parametrize("case", [BORROWERS[0]], ids=["psycopg"])
def test_sweep_does_not_free_a_job_with_an_uncommitted_completion(app: App, url: str, case: Any) -> None:
    """The lease expired, but an open transaction completed the job: the first to commit decides, and only one wins."""
    ctx = claimed_job(app)
    with psycopg.connect(url) as connection:
        ctx.complete(connection=connection)
        session_of(app).store.run(session_of(app).store.leases.end(ctx._run.claim.lease, "gone", "*"))
        sweeper = threading.Thread(target=lambda: session_of(app).store.run(session_of(app).store.leases.recover()))
        sweeper.start()
        connection.commit()
        sweeper.join(20)
    assert state_of(app, ctx) == State.SUCCEEDED

"""A handler's writes and the success of its job commit together or not at all (HF-3)."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from holdfast import App, Context, Retry, State, SyncContext
from holdfast.app.internals import session_of
from holdfast.errors import Conflict, HoldfastError, InvalidPayload, StaleLease
from holdfast.steps.handler_run import HandlerRun
from holdfast.steps.transaction import Stage
from tests.app.claimed_job import claimed_job, lose, state_of
from tests.app.notes import notes, prepare_notes
from tests.support.workers import work_off

pytestmark = pytest.mark.req("HF-3")

WRITE = "insert into note values ('mine')"


@pytest.fixture(autouse=True)
def table(app: App, url: str) -> None:
    session_of(app).make_ready()
    prepare_notes(url)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], str]]:
    with caplog.at_level(logging.WARNING, "holdfast"):
        # Ignores messages about the role that the tests use, from libraries, and from a listener that another test of
        # this process left behind and whose database is gone.
        yield lambda: "\n".join(
            each.message
            for each in caplog.records
            if each.name.startswith("holdfast")
            and "row-level security" not in each.message
            and "does not exist" not in each.message
        )


@dataclass
class Receipt:
    number: int
    paid: bool


@pytest.mark.parametrize("form", ["sync", "async"])
def test_writes_and_success_commit_together(app: App, url: str, form: str, log: Callable[[], str]) -> None:
    @app.job("sync")
    def pay(ctx: SyncContext, number: int) -> Receipt:
        with (block := ctx.transaction()) as connection:
            connection.execute(WRITE)
            assert (notes(url), ctx._run.completion.stage) == ([], Stage.OPEN)
            block.result(Receipt(number, True))
        assert (notes(url), state_of(app, ctx)) == (["mine"], State.SUCCEEDED)
        return Receipt(0, False)  # too late to change anything

    @app.job("async")
    async def apay(ctx: Context, number: int) -> Receipt:
        async with (block := ctx.transaction(result=Receipt(-1, False))) as connection:
            await done(connection.execute(WRITE))
            block.result(Receipt(number, True))
        assert await ctx._run.session.arun(ctx._run.session.store.jobs.get(ctx.job_id, "default")) is not None
        return Receipt(0, False)

    kind = {"sync": pay, "async": apay}[form]
    handle = kind.enqueue(7)
    work_off(app)
    assert (handle.result(timeout=5), notes(url)) == (Receipt(7, True), ["mine"])
    assert [event.type for event in handle.history()] == ["enqueue", "take", "succeed"]
    assert log() == ""


async def done(result: Any) -> Any:
    """Await the result of an async connection; SQLite has only a sync one."""
    return await result if hasattr(result, "__await__") else result


@pytest.mark.parametrize("form", ["sync", "async"])
def test_error_in_the_block_rolls_everything_back(app: App, url: str, form: str) -> None:
    @app.job("sync", retry=Retry(max_attempts=1))
    def pay(ctx: SyncContext) -> None:
        with ctx.transaction() as connection:
            connection.execute(WRITE)
            raise ArithmeticError("no money")

    @app.job("async", retry=Retry(max_attempts=1))
    async def apay(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await done(connection.execute(WRITE))
            raise ArithmeticError("no money")

    handle = {"sync": pay, "async": apay}[form].enqueue()
    work_off(app)
    assert (handle.get().state, handle.get().error_code, notes(url)) == (State.DEAD_LETTER, "ArithmeticError", [])


@pytest.mark.slow
@pytest.mark.parametrize("form", ["sync", "async"])
def test_error_after_the_block_changes_nothing(app: App, url: str, form: str, log: Callable[[], str]) -> None:
    @app.job("sync")
    def pay(ctx: SyncContext) -> None:
        with ctx.transaction(result="paid") as connection:
            connection.execute(WRITE)
        raise ArithmeticError("too late")

    @app.job("async", timeout=3)
    async def apay(ctx: Context) -> None:
        async with ctx.transaction(result="paid") as connection:
            await done(connection.execute(WRITE))
        await asyncio.sleep(30)

    handle = {"sync": pay, "async": apay}[form].enqueue()
    work_off(app)
    assert (handle.get().state, handle.get().attempt, notes(url)) == (State.SUCCEEDED, 1, ["mine"])
    assert [event.type for event in handle.history()] == ["enqueue", "take", "succeed"]
    assert "its handler failed afterwards" in log()
    assert "no longer claimed by this worker" not in log()


@pytest.mark.req("DP-7")
def test_stale_job_rolls_the_writes_back(app: App, url: str) -> None:
    ctx = claimed_job(app)
    lose(app, ctx)
    with pytest.raises(StaleLease), ctx.transaction() as connection:
        connection.execute(WRITE)
    assert (notes(url), state_of(app, ctx)) == ([], State.RETRY_WAITING)


@pytest.mark.req("DP-7")
async def test_stale_job_rolls_the_writes_back_in_async_code(app: App, url: str) -> None:
    ctx = Context(claimed_job(app)._run)
    lose(app, ctx)
    with pytest.raises(StaleLease):
        async with ctx.transaction() as connection:
            await done(connection.execute(WRITE))
    assert (notes(url), state_of(app, ctx)) == ([], State.RETRY_WAITING)
    await app.aclose()


@pytest.mark.req("DP-7")
def test_completion_checks_the_attempt_and_not_only_the_lease(app: App, url: str) -> None:
    """Claimed, expired and claimed again by the same worker: the first attempt is still stale."""
    ctx = claimed_job(app)
    run = ctx._run
    earlier = SyncContext(HandlerRun(replace(run.claim, attempt=ctx.attempt - 1), run.session, run.logger))
    with pytest.raises(StaleLease), earlier.transaction() as connection:
        connection.execute(WRITE)
    assert (notes(url), state_of(app, ctx)) == ([], State.IN_PROGRESS)


def test_attempt_completes_only_once(app: App, url: str) -> None:
    ctx = claimed_job(app)

    def give_up() -> None:
        with ctx.transaction() as connection:
            connection.execute(WRITE)
            with pytest.raises(Conflict) as caught, ctx.transaction():
                pass
            assert caught.value.code == "transaction_open"
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        give_up()
    with ctx.transaction() as connection:  # the rolled-back block completed nothing
        connection.execute(WRITE)
    for again in (lambda: ctx.transaction().__enter__(), lambda: ctx.complete(connection=None)):
        with pytest.raises(Conflict) as caught:
            again()
        assert caught.value.code == "already_completed"
    assert (notes(url), state_of(app, ctx)) == (["mine"], State.SUCCEEDED)


def test_handler_cannot_end_the_transaction_itself(app: App, url: str) -> None:
    ctx = claimed_job(app)
    with ctx.transaction() as connection:
        connection.execute(WRITE)
        for end in (connection.commit, connection.rollback):
            with pytest.raises((sqlite3.ProgrammingError, psycopg.ProgrammingError)):
                end()
    assert (notes(url), state_of(app, ctx)) == (["mine"], State.SUCCEEDED)
    ctx = claimed_job(app)
    with pytest.raises(HoldfastError) as caught, ctx.transaction() as connection:
        connection.execute("ROLLBACK")  # by force
    assert caught.value.code == "transaction_ended"
    assert state_of(app, ctx) == State.IN_PROGRESS


def test_result_that_cannot_be_stored_is_refused_inside_the_block(app: App, url: str) -> None:
    ctx = claimed_job(app)
    with pytest.raises(InvalidPayload), (block := ctx.transaction()):
        block.result(float("nan"))
    assert state_of(app, ctx) == State.IN_PROGRESS


def test_jobs_can_be_enqueued_in_the_transaction(app: App, url: str) -> None:
    @app.job()
    def follow(n: int) -> None: ...

    @app.job(retry=Retry(max_attempts=2))
    def lead(ctx: SyncContext) -> None:
        with ctx.transaction() as connection:
            if session_of(app).store.embedded:
                with pytest.raises(HoldfastError) as caught:
                    follow.enqueue(0)  # would wait for the lock that this block holds
                assert caught.value.code == "connection_required"
            follow.using(connection=connection).enqueue(ctx.attempt)
            if ctx.attempt == 1:
                raise ArithmeticError

    handle = lead.using(retry=Retry(max_attempts=2)).enqueue()
    work_off(app, queues=("default",), max_jobs=1)
    assert [job.kind for job in app.jobs.list()] == ["lead"]
    session_of(app).run(session_of(app).store.clock.set(timedelta(hours=1), None))
    session_of(app).run(session_of(app).store.leases.promote())
    work_off(app, max_jobs=1)
    children = app.jobs.list(parent_id=handle.id)
    assert [(job.kind, job.payload) for job in children] == [("follow", {"n": 2})]


def test_handler_connection_has_default_settings(app: App, url: str) -> None:
    ctx = claimed_job(app)
    with ctx.transaction() as connection:
        if session_of(app).store.embedded:
            assert isinstance(connection, sqlite3.Connection)
            connection.row_factory = sqlite3.Row
        else:
            assert isinstance(connection, psycopg.Connection)
            made = connection.execute("select gen_random_uuid()").fetchone()
            assert made is not None
            assert isinstance(made[0], uuid.UUID)
            assert connection.execute("show search_path").fetchone() == ('"$user", public',)
            connection.execute("set search_path = nowhere")
            assert connection.execute("select current_setting('holdfast.tenant', true)").fetchone() == (None,)
            connection.execute("insert into public.note values ('mine')")
    assert state_of(app, ctx) == State.SUCCEEDED


def test_in_memory_database_lends_its_only_connection() -> None:
    with closing(App("sqlite:///:memory:", name="tests", enqueued_by="tester")) as app:
        session_of(app).make_ready()
        for _ in range(2):
            ctx = claimed_job(app)
            with ctx.transaction(result=1) as connection:
                connection.row_factory = sqlite3.Row
                connection.execute("create table if not exists note (says text)")
                connection.execute(WRITE)
            assert state_of(app, ctx) == State.SUCCEEDED

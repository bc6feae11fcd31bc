"""``ctx.continue_as(…)``: a loop of years in runs with short histories."""

from __future__ import annotations

import signal
from itertools import pairwise
from pathlib import Path

import pytest

from holdfast import App, Context, Retry, State, SyncContext
from holdfast.app.internals import session_of
from holdfast.engine.job import Job
from holdfast.errors import StaleLease
from tests.app.worker_process import worker_process
from tests.support.waiting import until
from tests.support.workers import work_off, working

pytestmark = pytest.mark.req("HF-18")


def add(total: int, page: int) -> int:
    return total + page


def runs(app: App, kind: str) -> list[Job]:
    """The runs, oldest first."""
    return [*app.jobs.list(kind=kind)][::-1]


def check_chain(app: App, jobs: list[Job]) -> None:
    for before, after in pairwise(jobs):
        assert app.jobs.details(before.id).continued_as == after.id
        assert app.jobs.details(after.id).continues == before.id
    assert app.jobs.details(jobs[0].id).continues is None
    assert app.jobs.details(jobs[-1].id).continued_as is None


def test_runs_follow_one_another_under_one_key(app: App) -> None:
    @app.job(retry=Retry(max_attempts=3), priority=4)
    async def pages(ctx: Context, page: int, total: int = 0) -> int:
        total = await ctx.step("add", add, total, page)
        if page < 4:
            await ctx.continue_as(page + 1, total=total)
        return total

    first = pages.using(key="the pages", tags=("a:b",)).enqueue(1)
    work_off(app)
    jobs = runs(app, "pages")
    assert [(job.state, job.payload, job.attempt) for job in jobs] == [
        (State.SUCCEEDED, {"page": n, "total": total} if n > 1 else {"page": 1}, 1)
        for n, total in [(1, 0), (2, 1), (3, 3), (4, 6)]
    ]
    check_chain(app, jobs)
    assert {(job.correlation_id, job.priority, job.max_attempts) for job in jobs[1:]} == {(first.id, 4, 3)}
    assert all("a:b" in job.tags for job in jobs)
    again = pages.using(key="the pages").enqueue(1)
    assert (again.id, again.result(timeout=5)) == (jobs[-1].id, 10), "the key leads to the newest run"
    assert all(len(app.jobs.steps(job.id)) == 1 for job in jobs)


def test_sync_handler_continues(app: App) -> None:
    @app.job
    def count(ctx: SyncContext, n: int) -> int:
        try:
            if n < 3:
                ctx.continue_as(n + 1)
        except Exception:
            raise AssertionError("it is no error") from None
        return n

    count.enqueue(1)
    work_off(app)
    jobs = runs(app, "count")
    assert [(job.state, job.payload["n"]) for job in jobs] == [(State.SUCCEEDED, n) for n in (1, 2, 3)]
    check_chain(app, jobs)


def test_run_whose_next_is_refused_does_not_end(app: App) -> None:
    @app.job(retry=Retry(max_attempts=1))
    async def pages(ctx: Context, page: int) -> None:
        app.pauses.set(kind="pages", reason="no more", refuse_enqueue=True)
        await ctx.continue_as(page + 1)

    job = pages.using(key="k").enqueue(1)
    work_off(app)
    (only,) = runs(app, "pages")
    assert (only.state, only.error_code) == (State.DEAD_LETTER, "paused")
    app.pauses.remove(kind="pages")
    assert pages.using(key="k").enqueue(1).id == job.id, "it still has its key"


def test_wrong_arguments_of_the_next_run_fail_this_one(app: App) -> None:
    @app.job(retry=Retry(max_attempts=1))
    async def pages(ctx: Context, page: int) -> None:
        await ctx.continue_as("no number")

    pages.enqueue(1)
    work_off(app)
    (only,) = runs(app, "pages")
    assert (only.state, only.error_code) == (State.DEAD_LETTER, "invalid_arguments")


@pytest.mark.every_case
@pytest.mark.parametrize("form", ["gather", "branch"])
def test_run_does_not_continue_beside_other_calls(app: App, form: str) -> None:
    @app.job(retry=Retry(max_attempts=1))
    async def pages(ctx: Context, page: int) -> None:
        if page == 2:
            return
        if form == "gather":
            await ctx.gather(ctx.step("add", add, 1, page), ctx.continue_as(page + 1))
        async with ctx.branch("next"):
            await ctx.continue_as(page + 1)

    pages.enqueue(1)
    work_off(app)
    (only,) = runs(app, "pages")
    assert (only.state, only.error_code) == (State.DEAD_LETTER, "in_a_branch")


@pytest.mark.slow
@pytest.mark.req("CX-15", "DP-8")
@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_worker_leaves_exactly_one_next_run(app: App, url: str, tmp_path: Path, moment: str) -> None:
    """Killed before the transaction, the run is repeated; killed after its commit, it has ended."""
    session_of(app).make_ready()
    app.enqueue("pages", {"page": 1}, key="loop")
    with worker_process("tests.app.continuing_jobs", url, tmp_path, lease=1.0, HOLDFAST_TEST_KILL=moment) as victim:
        assert victim.wait(timeout=60) == -signal.SIGKILL
    with worker_process("tests.app.continuing_jobs", url, tmp_path, lease=30.0):
        until(lambda: len(runs(app, "pages")) >= 3 and runs(app, "pages")[-1].state.finished, "the last run ends")
    jobs = runs(app, "pages")
    assert [(job.state, job.payload["page"]) for job in jobs] == [(State.SUCCEEDED, n) for n in (1, 2, 3)]
    assert jobs[0].crashes == (1 if moment == "before" else 0)
    check_chain(app, jobs)
    assert app.enqueue("pages", {"page": 1}, key="loop").id == jobs[-1].id


@pytest.mark.slow
def test_handler_in_a_process_continues(app: App, url: str, tmp_path: Path) -> None:
    session_of(app).make_ready()
    app.enqueue("in_process", {"n": 1})
    with worker_process("tests.app.continuing_jobs", url, tmp_path, lease=30.0):
        until(lambda: len(runs(app, "in_process")) >= 2 and runs(app, "in_process")[-1].state.finished, "it ends")
    jobs = runs(app, "in_process")
    assert [(job.state, job.payload["n"]) for job in jobs] == [(State.SUCCEEDED, 1), (State.SUCCEEDED, 2)]
    check_chain(app, jobs)


@pytest.mark.req("DP-7", "DP-8")
def test_worker_that_lost_its_lease_cannot_continue_the_run(app: App) -> None:
    """In a thread, which the worker cannot interrupt."""
    store, refused = session_of(app).store, list[str]()

    @app.job
    def pages(ctx: SyncContext, page: int) -> None:
        if page == 1 and ctx.attempt == 1:
            store.run(store.leases.end(ctx._run.claim.lease, "lost", "*"))
            store.run(store.leases.recover())
            try:
                ctx.continue_as(2)
            except StaleLease:
                refused.append("stale")
                raise
        if page < 2:
            ctx.continue_as(2)

    with working(app):
        pages.enqueue(1)
        until(lambda: len(runs(app, "pages")) == 2 and runs(app, "pages")[1].state.finished, "the second run ends")
    jobs = runs(app, "pages")
    assert (refused, [job.state for job in jobs], jobs[0].attempt) == (["stale"], [State.SUCCEEDED] * 2, 2)
    check_chain(app, jobs)


def test_cancelled_run_does_not_continue(app: App) -> None:
    begun: list[str] = []

    @app.job
    async def loop(ctx: Context, n: int) -> None:
        begun.append(ctx.job_id)
        if n == 2:
            app.jobs.cancel(ctx.job_id, reason="enough")
        await ctx.continue_as(n + 1)

    with working(app):
        loop.enqueue(1)
        until(lambda: len(begun) == 2 and app.jobs.get(begun[1]).state.finished, "the second is cancelled")
    assert [job.state for job in runs(app, "loop")] == [State.SUCCEEDED, State.CANCELLED]

"""Children and artifacts: what an attempt produces besides its result (DP-10, SC-5)."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast import App, Backoff, Context, Retry, State, SyncContext
from holdfast.app.internals import session_of
from holdfast.engine.trace import plain_tags
from tests.app.conftest import NewApp
from tests.support.workers import work_off

AGAIN = Retry(max_attempts=3, backoff=Backoff(base=0.0, jitter=False))


def finish(app: App, *handles: Any) -> None:
    for _ in range(5):
        work_off(app)
        session_of(app).run(session_of(app).store.leases.promote())
    assert all(handle.get().state.finished for handle in handles)


@pytest.mark.req("DP-10")
@pytest.mark.parametrize("form", ["sync", "async"])
def test_spawn_with_a_key_creates_each_child_once(app: App, form: str) -> None:
    made: list[Any] = []

    @app.job()
    def leaf(page: int) -> int:
        return page

    def sync_parent(ctx: SyncContext) -> None:
        made.append([ctx.spawn(leaf, n, key=f"page-{n}", tags=("leaf",)) for n in range(3)])
        if ctx.attempt < 3:
            raise ConnectionError("half-way")

    async def async_parent(ctx: Context) -> None:
        made.append([await ctx.spawn(leaf, n, key=f"page-{n}", tags=("leaf",)) for n in range(3)])
        if ctx.attempt < 3:
            raise ConnectionError("half-way")

    app.job("parent", retry=AGAIN)(sync_parent if form == "sync" else async_parent)
    workflow = app.enqueue("workflow", queue="parked").id
    parent = app.enqueue("parent", tenant="acme", correlation_id="c-1", workflow_id=workflow)
    finish(app, parent)
    assert parent.get().attempt == 3
    assert len({tuple(handle.id for handle in attempt) for attempt in made}) == 1
    assert [handle.created for handle in made[0]] == [True] * 3
    assert [handle.reason for handle in made[2]] == ["duplicate_key"] * 3
    for number, handle in enumerate(made[2]):
        job = handle.get()
        assert (job.tenant, job.parent_id, job.correlation_id, job.workflow_id) == ("acme", parent.id, "c-1", workflow)
        assert (job.enqueued_by, plain_tags(job.tags)) == (f"job {parent.id}", ("leaf",))
        assert handle.result(timeout=5) == number


@pytest.mark.req("DP-10")
def test_child_key_is_scoped_to_its_parent(app: App) -> None:
    ids: list[str] = []

    @app.job()
    def parent(ctx: SyncContext) -> None:
        ids.append(ctx.spawn("leaf", {"n": 1}, key="only").id)

    finish(app, parent.enqueue(), parent.enqueue())
    assert len(set(ids)) == 2


@pytest.mark.req("DP-10")
def test_child_of_another_tenant_has_no_parent(app: App) -> None:
    ids: list[str] = []

    @app.job()
    def parent(ctx: SyncContext) -> None:
        ids.append(ctx.spawn("leaf", tenant="other", delay=60).id)

    finish(app, parent.enqueue())
    job = app.jobs.get(ids[0], tenant="*")
    assert (job.tenant, job.parent_id, job.due_at is not None) == ("other", None, True)


@pytest.mark.req("SC-5")
def test_artifacts_belong_to_an_attempt(app: App) -> None:
    @app.job(retry=AGAIN)
    def renders(ctx: SyncContext) -> None:
        ctx.artifact("report.pdf", f"s3://bucket/{ctx.attempt}.pdf", {"pages": 3})
        if ctx.attempt == 1:
            raise ConnectionError("again")

    @app.job(retry=Retry(max_attempts=1))
    async def arenders(ctx: Context) -> None:
        await ctx.artifact("a", "file:///x")
        await ctx.artifact("a", "file:///y")

    one, two = renders.enqueue(), arenders.enqueue()
    finish(app, one, two)
    artifacts = session_of(app).run(session_of(app).store.jobs.artifacts(one.id, one.tenant))
    assert [(each.attempt, each.name, each.ref, each.meta) for each in artifacts] == [
        (1, "report.pdf", "s3://bucket/1.pdf", {"pages": 3}),
        (2, "report.pdf", "s3://bucket/2.pdf", {"pages": 3}),
    ]
    assert two.get().error_code == "already_exists"


@pytest.mark.req("CX-15", "DP-10")
def test_context_exposes_the_facts_of_its_job(app: App, new_app: NewApp) -> None:
    seen: list[Any] = []

    @app.job(
        queue="mail", priority=7, tags=("a", "b"), retry=Retry(max_attempts=2, backoff=Backoff(base=0, jitter=False))
    )
    def looks(ctx: SyncContext) -> None:
        assert holdfast.current() is ctx
        seen.append((ctx.attempt, ctx.retries, ctx.crashes, ctx.max_attempts, ctx.is_last_attempt))
        seen.append((ctx.queue, ctx.priority, ctx.tags, ctx.agent, ctx.parent_id, ctx.workflow_id))
        seen.append(ctx.created_at)
        if ctx.attempt == 1:
            raise ConnectionError("again")

    handle = looks.using(agent="planner").enqueue()
    for _ in range(3):
        work_off(app, queues=("mail",))
        session_of(app).run(session_of(app).store.leases.promote())
    assert handle.get().state is State.SUCCEEDED
    facts = ("mail", 7, ("a", "b"), "planner", None, None)
    assert seen == [
        (1, 0, 0, 2, False),
        facts,
        handle.get().created_at,
        (2, 1, 0, 2, True),
        facts,
        handle.get().created_at,
    ]
    assert holdfast.current() is None

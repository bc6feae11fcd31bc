"""The context of a running handler: facts about its job, checkpoints, children."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

import holdfast
from holdfast import App, Backoff, Context, Retry, State, SyncContext
from holdfast.app.internals import session_of
from holdfast.engine.steps import Progress
from holdfast.errors import InvalidPayload
from holdfast.features.jobs.store import story
from tests.app.conftest import NewApp
from tests.support.workers import work_off, working

AGAIN = Retry(max_attempts=3, backoff=Backoff(base=0.01, jitter=False))


@pytest.mark.req("CX-15", "DP-10")
def test_handler_knows_its_job(app: App, new_app: NewApp) -> None:
    seen: list[Any] = []
    worker_app = new_app()

    @worker_app.job()
    async def look(ctx: Context) -> None:
        seen.append((ctx.job_id, ctx.tenant, ctx.kind, ctx.attempt, ctx.correlation_id, ctx.deadline_at))
        ctx.log.info("looking")

    @worker_app.job()
    def peek(ctx) -> None:  # type: ignore[no-untyped-def]
        seen.append(ctx.job_id)

    with working(worker_app):
        handle = app.enqueue("look", tenant="acme", correlation_id="c-1")
        handle.wait(timeout=20)
        other = app.enqueue("peek")
        other.wait(timeout=20)
    assert seen == [(handle.id, "acme", "look", 1, "c-1", None), other.id]


@pytest.mark.req("CX-15", "SC-5")
def test_idempotency_key_is_the_same_in_every_attempt(app: App, new_app: NewApp) -> None:
    keys: list[str] = []
    worker_app = new_app()

    @worker_app.job(retry=AGAIN)
    def flaky(ctx: SyncContext) -> int:
        keys.append(ctx.idempotency_key)
        if ctx.attempt < 3:
            raise ConnectionError("busy")
        return ctx.attempt

    with working(worker_app):
        one, two = (app.enqueue("flaky", retry=AGAIN) for _ in range(2))
        assert (one.result(timeout=20), two.result(timeout=20)) == (3, 3)
    assert len(keys) == 6
    assert sorted(keys.count(key) for key in set(keys)) == [3, 3]


@pytest.mark.req("CX-15")
def test_checkpoint_survives_into_the_next_attempt(app: App, new_app: NewApp) -> None:
    worker_app = new_app()

    @worker_app.job(retry=AGAIN)
    def pages(ctx: SyncContext) -> list[int]:
        done: list[int] = ctx.checkpoint.load(default=[])
        ctx.checkpoint.save([*done, ctx.attempt])
        if ctx.attempt < 3:
            raise ConnectionError("busy")
        loaded: list[int] = ctx.checkpoint.load()
        return loaded

    @worker_app.job(retry=AGAIN)
    async def apages(ctx: Context) -> Any:
        await ctx.checkpoint.save({"page": ctx.attempt}, "position")
        if ctx.attempt < 2:
            raise ConnectionError("busy")
        return [await ctx.checkpoint.load("position"), await ctx.checkpoint.load("nothing", "default")]

    with working(worker_app):
        assert app.enqueue("pages", retry=AGAIN).result(timeout=20) == [1, 2, 3]
        assert app.enqueue("apages", retry=AGAIN).result(timeout=20) == [{"page": 2}, "default"]


@pytest.mark.req("CX-15")
def test_checkpoint_that_is_not_json_is_refused(app: App, new_app: NewApp) -> None:
    caught: list[str] = []
    worker_app = new_app()

    @worker_app.job()
    def save(ctx: SyncContext) -> None:
        for value in (object(), float("nan"), "\x00"):
            try:
                ctx.checkpoint.save(value)
            except InvalidPayload as error:
                caught.append(error.code)

    with working(worker_app):
        app.enqueue("save").wait(timeout=20)
    assert caught == ["payload_not_json", "payload_not_finite", "payload_bad_text"]


@pytest.mark.req("DP-10", "DP-11")
def test_job_enqueued_by_a_handler_is_its_child(app: App, new_app: NewApp) -> None:
    worker_app = new_app()
    ids: dict[str, str] = {}

    @worker_app.job()
    def leaf(name: str) -> None: ...

    @worker_app.job()
    def parent() -> None:
        ids["sync"] = leaf.enqueue("sync").id
        ids["own"] = leaf.using(correlation_id="own", enqueued_by="ada").enqueue("own").id
        ids["foreign"] = leaf.using(tenant="other").enqueue("foreign").id
        ids["many"] = worker_app.enqueue_many([leaf.prepare("many")])[0].id

    @worker_app.job()
    async def aparent() -> None:
        ids["async"] = (await leaf.aenqueue("async")).id
        ids["named"] = (await worker_app.aenqueue("leaf", {"name": "named"})).id

    workflow = app.enqueue("workflow", queue="parked").id
    with working(worker_app):
        one = app.enqueue("parent", tenant="acme", correlation_id="c-1", workflow_id=workflow)
        two = app.enqueue("aparent", tenant="acme")
        for handle in (one, two):
            assert handle.wait(timeout=20).state is State.SUCCEEDED

    def facts(name: str) -> tuple[Any, ...]:
        job = app.jobs.get(ids[name], tenant="*")
        return (job.tenant, job.parent_id, job.correlation_id, job.workflow_id, job.enqueued_by, job.source_system)

    assert facts("sync") == ("acme", one.id, "c-1", workflow, f"job {one.id}", "tests")
    assert facts("many") == facts("sync")
    assert facts("own") == ("acme", one.id, "own", workflow, "ada", "tests")
    assert facts("foreign") == ("other", None, None, None, f"job {one.id}", "tests")
    assert facts("async") == ("acme", two.id, two.id, None, f"job {two.id}", "tests")
    assert facts("named") == facts("async")
    assert {job.id for job in app.jobs.list(tenant="acme", parent_id=one.id)} == {
        ids[n] for n in ("sync", "own", "many")
    }


@pytest.mark.req("DP-10")
def test_job_enqueued_outside_a_handler_has_no_parent(app: App, new_app: NewApp) -> None:
    worker_app = new_app()

    @worker_app.job()
    def quick() -> None: ...

    with working(worker_app):
        app.enqueue("quick").wait(timeout=20)
        assert app.enqueue("quick").wait(timeout=20).parent_id is None


@pytest.mark.req("CX-15", "HF-3")
def test_handler_without_a_context_parameter_can_get_the_context(app: App, new_app: NewApp) -> None:
    worker_app = new_app()

    @worker_app.job()
    async def reports() -> None:
        context = holdfast.current()
        assert isinstance(context, Context)
        await context.progress(0.5, "half")

    @worker_app.job(retry=AGAIN)
    async def ends_it() -> None:
        context = holdfast.current()
        assert isinstance(context, Context)
        async with context.transaction():
            pass
        raise ValueError("after the job has ended; this changes nothing")

    @worker_app.job()
    async def refers() -> int:
        context = holdfast.current()
        assert isinstance(context, Context)
        context.result_ref = "file:///x"
        return 7

    with working(worker_app):
        handles = [app.enqueue(name) for name in ("reports", "ends_it", "refers")]
        for handle in handles:
            handle.wait(timeout=20)
    jobs = [handle.get() for handle in handles]
    assert [(job.state, job.attempt) for job in jobs] == [(State.SUCCEEDED, 1)] * 3
    assert handles[0].progress() == Progress(0.5, "half", 1)
    details = session_of(app).run(story(session_of(app).store, handles[2].id, "default"))
    assert details is not None
    assert details.result is not None
    assert details.result.ref == "file:///x"


@pytest.mark.req("CX-15")
def test_unawaited_context_call_warns_and_is_an_error_in_tests(app: App, pytestconfig: pytest.Config) -> None:
    @app.job()
    async def forgets(ctx: Context) -> None:
        ctx.progress(0.5, "half")  # type: ignore[unused-coroutine]

    handle = forgets.enqueue()
    with pytest.warns(RuntimeWarning, match=r"'Context\.progress' was never awaited"):
        work_off(app)
    assert (handle.state(), handle.progress()) == (State.SUCCEEDED, None)
    filters = pytestconfig.getini("filterwarnings")
    assert filters[0] == "error"
    left = [each for each in filters[1:] if not re.search("unclosed database|ResourceWarning", each)]
    assert left == [], "only warnings about unclosed resources are allowed"


@pytest.mark.req("CX-15", "HF-3")
def test_thread_of_an_async_handler_has_a_sync_context(app: App) -> None:
    seen: list[Any] = []

    def reads() -> str:
        context = holdfast.current()
        assert isinstance(context, SyncContext)
        context.progress(0.5, "half")
        seen.append(context.job_id)
        return "read"

    @app.job()
    async def imports(ctx: Context) -> list[str]:
        assert holdfast.current() is ctx
        return [await ctx.step("read", reads), await asyncio.to_thread(reads)]

    handle = imports.enqueue()
    work_off(app)
    assert (handle.result(timeout=5), seen) == (["read", "read"], [handle.id] * 2)
    assert handle.progress() == Progress(0.5, "half", 1)

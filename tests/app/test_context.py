"""What a handler knows and does while it runs: its context, its progress, its children."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

import holdfast
from holdfast import App, Backoff, Context, Retry, State, SyncContext
from holdfast.engine.steps import Progress
from holdfast.errors import InvalidPayload, InvalidSetting
from holdfast.features.jobs.views import story
from tests.app.conftest import NewApp
from tests.support.workers import work_off, working

AGAIN = Retry(max_attempts=3, backoff=Backoff(base=0.01, jitter=False))


@pytest.mark.req("CX-15", "DP-10")
def test_a_handler_knows_its_job(app: App, new_app: NewApp) -> None:
    seen: list[Any] = []
    elsewhere = new_app()

    @elsewhere.job()
    async def look(ctx: Context) -> None:
        seen.append((ctx.job_id, ctx.tenant, ctx.kind, ctx.attempt, ctx.correlation_id, ctx.deadline_at))
        ctx.log.info("looking")

    @elsewhere.job()
    def peek(ctx) -> None:  # type: ignore[no-untyped-def]
        seen.append(ctx.job_id)

    with working(elsewhere):
        handle = app.enqueue("look", tenant="acme", correlation_id="c-1")
        handle.wait(timeout=20)
        other = app.enqueue("peek")
        other.wait(timeout=20)
    assert seen == [(handle.id, "acme", "look", 1, "c-1", None), other.id]


@pytest.mark.req("CX-15", "SC-5")
def test_the_idempotency_key_is_the_same_in_every_attempt(app: App, new_app: NewApp) -> None:
    keys: list[str] = []
    elsewhere = new_app()

    @elsewhere.job(retry=AGAIN)
    def flaky(ctx: SyncContext) -> int:
        keys.append(ctx.idempotency_key)
        if ctx.attempt < 3:
            raise ConnectionError("busy")
        return ctx.attempt

    with working(elsewhere):
        one, two = (app.enqueue("flaky", retry=AGAIN) for _ in range(2))
        assert (one.result(timeout=20), two.result(timeout=20)) == (3, 3)
    assert len(keys) == 6
    assert sorted(keys.count(key) for key in set(keys)) == [3, 3]


@pytest.mark.req("CX-15")
def test_progress_is_there_in_the_next_attempt(app: App, new_app: NewApp) -> None:
    elsewhere = new_app()

    @elsewhere.job(retry=AGAIN)
    def pages(ctx: SyncContext) -> list[int]:
        done: list[int] = ctx.checkpoint.load(default=[])
        ctx.checkpoint.save([*done, ctx.attempt])
        if ctx.attempt < 3:
            raise ConnectionError("busy")
        loaded: list[int] = ctx.checkpoint.load()
        return loaded

    @elsewhere.job(retry=AGAIN)
    async def apages(ctx: Context) -> Any:
        await ctx.checkpoint.save({"page": ctx.attempt}, "place")
        if ctx.attempt < 2:
            raise ConnectionError("busy")
        return [await ctx.checkpoint.load("place"), await ctx.checkpoint.load("nothing", "default")]

    with working(elsewhere):
        assert app.enqueue("pages", retry=AGAIN).result(timeout=20) == [1, 2, 3]
        assert app.enqueue("apages", retry=AGAIN).result(timeout=20) == [{"page": 2}, "default"]


@pytest.mark.req("CX-15")
def test_progress_that_is_no_json_is_refused(app: App, new_app: NewApp) -> None:
    caught: list[str] = []
    elsewhere = new_app()

    @elsewhere.job()
    def save(ctx: SyncContext) -> None:
        for value in (object(), float("nan"), "x" * 1_048_577, "\x00"):
            try:
                ctx.checkpoint.save(value)
            except (InvalidPayload, InvalidSetting) as error:
                caught.append(error.code)

    with working(elsewhere):
        app.enqueue("save").wait(timeout=20)
    assert caught == ["payload_not_json", "payload_not_finite", "no_artifact_store", "payload_bad_text"]


@pytest.mark.req("DP-10", "DP-11")
def test_what_a_handler_enqueues_is_its_child(app: App, new_app: NewApp) -> None:
    elsewhere = new_app()
    ids: dict[str, str] = {}

    @elsewhere.job()
    def leaf(name: str) -> None: ...

    @elsewhere.job()
    def parent() -> None:
        ids["sync"] = leaf.enqueue("sync").id
        ids["own"] = leaf.using(correlation_id="own", enqueued_by="ada").enqueue("own").id
        ids["foreign"] = leaf.using(tenant="other").enqueue("foreign").id
        ids["many"] = elsewhere.enqueue_many([leaf.prepare("many")])[0].id

    @elsewhere.job()
    async def aparent() -> None:
        ids["async"] = (await leaf.aenqueue("async")).id
        ids["named"] = (await elsewhere.aenqueue("leaf", {"name": "named"})).id

    workflow = app.enqueue("workflow", queue="parked").id
    with working(elsewhere):
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
def test_outside_of_a_handler_there_is_no_parent(app: App, new_app: NewApp) -> None:
    elsewhere = new_app()

    @elsewhere.job()
    def quick() -> None: ...

    with working(elsewhere):
        app.enqueue("quick").wait(timeout=20)
        assert app.enqueue("quick").wait(timeout=20).parent_id is None


@pytest.mark.req("CX-15", "HF-3")
def test_a_handler_that_takes_no_context_may_ask_for_it(app: App, new_app: NewApp) -> None:
    elsewhere = new_app()

    @elsewhere.job()
    async def reports() -> None:
        context = holdfast.current()
        assert isinstance(context, Context)
        await context.progress(0.5, "half")

    @elsewhere.job(retry=AGAIN)
    async def ends_it() -> None:
        context = holdfast.current()
        assert isinstance(context, Context)
        async with context.transaction():
            pass
        raise ValueError("after the job has ended, which nothing changes any more")

    @elsewhere.job()
    async def refers() -> int:
        context = holdfast.current()
        assert isinstance(context, Context)
        context.result_ref = "file:///x"
        return 7

    with working(elsewhere):
        handles = [app.enqueue(name) for name in ("reports", "ends_it", "refers")]
        for handle in handles:
            handle.wait(timeout=20)
    jobs = [handle.get() for handle in handles]
    assert [(job.state, job.attempt) for job in jobs] == [(State.SUCCEEDED, 1)] * 3
    assert handles[0].progress() == Progress(0.5, "half", 1)
    found = app._session.run(story(app._session.store, handles[2].id, "default"))
    assert found is not None
    assert found.result is not None
    assert found.result.ref == "file:///x"


@pytest.mark.req("CX-15")
def test_a_call_that_is_not_awaited_is_warned_about_and_an_error_in_tests(
    app: App, pytestconfig: pytest.Config
) -> None:
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
    assert left == [], "nothing but what was left open is let through"


@pytest.mark.req("CX-15", "HF-3")
def test_a_thread_of_an_async_handler_has_a_sync_context(app: App) -> None:
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

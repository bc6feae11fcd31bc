"""Tenants through the public API: the tenant of a call, quotas, and why a job waits for other tenants."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast import App, Context, State
from holdfast.app.internals import session_of
from holdfast.errors import InvalidSetting, NotFound, Refused
from tests.app.conftest import NewApp
from tests.support.workers import work_off


@pytest.mark.req("JF-1")
def test_tenant_block_applies_until_it_ends(app: App, new_app: NewApp) -> None:
    other = new_app()

    @app.job()
    def note(text: str = "") -> str:
        return text

    with app.tenant("acme"):
        mine = note.enqueue("a")
        app.templates.set("t", "note", {"text": "b"})
        made = app.templates.enqueue("t")
        app.enqueue("elsewhere", {})
        assert [job.tenant for job in app.jobs.list()] == ["acme"] * 3
        assert other.jobs.list() == [], "another app keeps its own tenant"
        with app.tenant("umbrella"):
            with pytest.raises(NotFound):
                app.jobs.get(mine.id)
            with contextlib.suppress(ZeroDivisionError), app.tenant("third"):
                note.using(key=f"{1 / 0}").enqueue()
            assert session_of(app).tenant == "umbrella"
            assert [each.tenant for each in app.enqueue_many([note.prepare(), note.prepare()])] == ["umbrella"] * 2
        assert app.jobs.get(mine.id) is not None
        assert (mine.tenant, made.tenant) == ("acme", "acme")
    with pytest.raises(NotFound):
        app.jobs.get(mine.id)
    assert mine.state() is State.QUEUED, "a handle keeps its tenant"
    assert session_of(app).tenant == "default"
    for wrong in ("*", "", " x"):
        with pytest.raises(InvalidSetting), app.tenant(wrong):
            pass


@pytest.mark.req("JF-1")
def test_tenant_block_belongs_to_one_task_and_one_thread(app: App) -> None:
    seen: dict[str, list[str]] = {}

    async def within(name: str) -> None:
        with app.tenant(name):
            for _ in range(5):
                await asyncio.sleep(0)
                seen.setdefault(name, []).append(session_of(app).tenant)
                await asyncio.to_thread(lambda: seen[name].append(session_of(app).tenant))

    async def gather() -> None:
        with app.tenant("outer"):
            await asyncio.gather(within("a"), within("b"), within("c"))
            assert session_of(app).tenant == "outer"

    asyncio.run(gather())
    assert seen == {name: [name] * 10 for name in "abc"}
    begin = threading.Barrier(2)

    def in_a_pool(name: str | None) -> str:
        if name is None:
            return session_of(app).tenant
        with app.tenant(name):
            begin.wait()
            return session_of(app).tenant

    with ThreadPoolExecutor(2) as pool, app.tenant("outer"):
        assert list(pool.map(in_a_pool, ["a", "b"])) == ["a", "b"]
        assert set(pool.map(in_a_pool, [None] * 4)) == {"default"}, "pool threads keep no tenant"


@pytest.mark.req("JF-1")
def test_handler_runs_with_the_tenant_of_its_job(app: App) -> None:
    seen: list[tuple[str, str]] = []

    @app.job()
    async def look(ctx: Context) -> None:
        await app.aenqueue("child", {})
        seen.append((ctx.tenant, session_of(app).tenant))
        assert {job.tenant for job in await app.jobs.alist()} == {ctx.tenant}
        await ctx.checkpoint.save(1)
        with app.tenant("third"):
            seen.append(("third", session_of(app).tenant))

    @app.job()
    def look_in_a_thread() -> None:
        app.enqueue("child", {})
        seen.append((app.jobs.list()[0].tenant, session_of(app).tenant))

    for name in ("acme", "umbrella"):
        with app.tenant(name):
            look.enqueue()
            look_in_a_thread.enqueue()
    with app.tenant("around"):  # the block around the worker does not affect its handlers
        work_off(app)
    assert {(job.state, job.error_message) for job in app.jobs.list(tenant="*", kind="look")} == {
        (State.SUCCEEDED, None)
    }
    assert sorted(seen) == sorted([("acme", "acme"), ("umbrella", "umbrella")] * 2 + [("third", "third")] * 2)
    assert [job.tenant for job in app.jobs.list(tenant="*", kind="child")].count("acme") == 2


@pytest.mark.req("JF-12")
def test_tenant_quotas_are_enforced(app: App) -> None:
    @app.job()
    async def note() -> None: ...

    acme = app.tenants.set("acme", title="Acme Ltd.", max_pending=2, max_running=1, rate="100/m")
    assert (acme.registered, acme.max_pending, acme.max_running, acme.rate, acme.per) == (True, 2, 1, 100, 60.0)
    for_acme = note.using(tenant="acme")
    for_acme.enqueue()
    for_acme.enqueue()
    with pytest.raises(Refused, match="tenant acme has 2 waiting jobs"):
        for_acme.enqueue()
    note.enqueue()
    with pytest.raises(Refused) as refused:
        app.enqueue_many([note.prepare(), for_acme.prepare(), note.prepare()])
    assert refused.value.code == "tenant_full"
    assert {each.name: each.pending for each in app.tenants.list()}["acme"] == 2
    app.run_worker(burst=True)
    for_acme.enqueue()
    app.tenants.remove("acme")
    assert not app.tenants.get("acme").registered
    for missing in (app.tenants.get, app.tenants.remove):
        with pytest.raises(NotFound, match="tenant_not_found"):
            missing("unknown")
    for wrong in ({"weight": 0}, {"max_pending": -1}, {"burst": 3}, {"rate": "often"}, {"max_pending": True}):
        with pytest.raises(InvalidSetting):
            app.tenants.set("acme", **wrong)
    with pytest.raises(InvalidSetting):
        app.tenants.set("*", weight=2)


@pytest.mark.req("JF-12", "HF-2")
def test_why_reports_that_a_job_waits_for_other_tenants(app: App) -> None:
    for _ in range(3):
        app.enqueue("note", {}, tenant="big")
    with app.tenant("small"):
        app.enqueue("note", {})
        mine = app.enqueue("note", {})
        assert "tenant_turn" not in {reason.code for reason in app.jobs.why(mine.id).reasons}
        assert app.tenants.set_fair_queues() == ["*"]
        codes = {reason.code: reason for reason in app.jobs.why(mine.id).reasons}
    assert "1 other tenant has jobs waiting there, and small is served with weight 1" in codes["tenant_turn"].says
    assert codes["jobs_ahead"].says == "1 job is before it in queue default, of its own tenant small"
    assert {each.name: each.share for each in app.tenants.list()} == {"big": 0.5, "small": 0.5}
    assert app.tenants.set_fair_queues(queue="default") == ["*"]
    assert app.tenants.set_fair_queues(False, queue="default") == app.tenants.fair_queues() == ["*", "-default"]
    assert app.tenants.set_fair_queues(queue="default") == ["*"]
    assert app.tenants.set_fair_queues(False) == []
    assert app.tenants.set_fair_queues(queue="mail") == ["mail"]
    assert asyncio.run(app.tenants.aset_fair_queues(queue="default")) == ["default", "mail"]
    assert app.tenants.set_fair_queues(False, queue="mail") == app.tenants.fair_queues() == ["default"]

"""`app.jobs`: reads and operator calls, in sync and async form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Context, PayloadPolicy, Retry, State
from holdfast.errors import JobFailed, NotFound
from tests.app.conftest import NewApp
from tests.support.workers import work_off

UNKNOWN = "01890000-0000-7000-8000-000000000000"


@pytest.fixture
def app(new_app: NewApp, tmp_path: Path) -> App:
    app = new_app(artifacts=tmp_path / "artifacts")

    @app.job(retry=Retry(max_attempts=1))
    async def work(ctx: Context, fail: bool = False) -> dict[str, int]:
        await ctx.step("count", lambda: 3)
        await ctx.checkpoint.save({"row": 7}, "position")
        await ctx.checkpoint.save("half", "progress")
        if fail:
            raise ValueError("no")
        return {"rows": 3}

    return app


@pytest.mark.req("HF-5", "SC-5", "HF-6")
def test_every_detail_of_a_job_can_be_read(app: App) -> None:
    handle = app.enqueue("work", source_ref="s3://in/a.csv")
    with pytest.raises(JobFailed):
        app.jobs.result(handle.id)
    work_off(app)
    assert app.jobs.result(handle.id).value == {"rows": 3}
    assert [attempt.outcome for attempt in app.jobs.attempts(handle.id)] == ["succeeded"]
    assert [(step.name, step.value) for step in app.jobs.steps(handle.id)] == [("count", 3)]
    assert app.jobs.checkpoints(handle.id)["position"] == {"row": 7}
    assert app.jobs.references(handle.id).source_ref == "s3://in/a.csv"
    assert app.jobs.artifacts(handle.id) == []
    assert app.jobs.history(handle.id) == handle.history()
    assert app.jobs.handle(handle.id).result() == {"rows": 3}
    assert app.jobs.count(kind="work").counts[State.SUCCEEDED] == 1
    assert sum(app.jobs.count(kind="other").counts.values()) == 0


@pytest.mark.req("HF-5", "SC-5", "HF-6")
async def test_async_reads_return_the_same(app: App) -> None:
    handle = await app.aenqueue("work", source_ref="s3://in/a.csv")
    await app.atick()
    jobs = app.jobs
    assert await jobs.aget(handle.id) == jobs.get(handle.id)
    assert await jobs.alist() == jobs.list()
    assert await jobs.acount() == jobs.count()
    for name in ("result", "attempts", "steps", "checkpoints", "references", "artifacts", "history", "chain", "why"):
        assert await getattr(jobs, f"a{name}")(handle.id) == getattr(jobs, name)(handle.id), name
    await app.aclose()


@pytest.mark.req("HF-5", "JF-5")
async def test_operator_calls_have_async_forms(app: App) -> None:
    dead, waiting, late = [(await app.aenqueue("work", {"fail": n == 0}, delay=n * 3600)).id for n in range(3)]
    await app.atick()
    assert (await app.jobs.areschedule(waiting, delay="2h"))[0].state is State.QUEUED
    assert not (await app.jobs.amove(late, first=True)).refused
    assert (await app.jobs.acancel(late, reason="not today"))[0].state is State.CANCELLED
    assert (await app.jobs.aredrive(dead))[0].state is State.QUEUED
    await app.atick()
    assert not (await app.jobs.adiscard(dead, reason="hopeless"))[0].refused
    await app.aclose()


@pytest.mark.req("DP-3")
@pytest.mark.parametrize("name", ["result", "attempts", "steps", "checkpoints", "references", "artifacts", "chain"])
def test_reads_of_an_unknown_job_raise_not_found(app: App, name: str) -> None:
    with pytest.raises(NotFound):
        getattr(app.jobs, name)(UNKNOWN)


@pytest.mark.req("DP-4")
def test_steps_and_checkpoints_of_a_restricted_kind_are_hidden(new_app: NewApp) -> None:
    app = new_app()

    @app.job(payload_rules=PayloadPolicy(restricted=True))
    async def secret(ctx: Context, name: str) -> None:
        await ctx.step("look up", lambda: name)
        await ctx.checkpoint.save(name, "who")

    handle = secret.enqueue("Grace")
    work_off(app)
    shown: list[Any] = [app.jobs.get(handle.id), app.jobs.steps(handle.id), app.jobs.checkpoints(handle.id)]
    assert "Grace" not in repr(shown)
    assert app.jobs.checkpoints(handle.id).keys() == {"who"}

"""``app.jobs.export_history``: what jobs have recorded, and what cannot be read."""

from __future__ import annotations

import asyncio
import json

import pytest

from holdfast import App, Context, PayloadPolicy, State, SyncContext
from holdfast.app.internals import session_of
from holdfast.errors import HoldfastError, NotFound
from holdfast.steps.history import History
from tests.app.conftest import NewApp
from tests.support.stores import forward
from tests.support.workers import work_off

pytestmark = [pytest.mark.req("HF-10"), pytest.mark.every_case]

UNKNOWN = "01a1de74-eb8c-70f1-843b-cac5f6817387"


def test_history_has_everything_that_a_handler_reads(app: App) -> None:
    @app.job("report", tags=["spring"])
    async def report(ctx: Context, day: str) -> None:
        await ctx.step("count", lambda: {"rows": 7})
        await ctx.checkpoint.save([1, 2], "place")
        await ctx.approval("send", summary="Send it?")

    handle = report.using(source_ref="s3://in", priority=3).enqueue("monday")
    work_off(app)
    history: History = next(app.jobs.export_history(handle.id))
    assert (history.job.id, history.job.state, history.job.attempt) == (handle.id, State.WAITING_FOR_APPROVAL, 1)
    assert (history.payload, history.checkpoints) == ({"day": "monday"}, {"place": [1, 2]})
    assert (history.references.source_ref, history.job.tags, history.job.priority) == ("s3://in", ("spring",), 3)
    first_step = history.steps[0]
    assert (first_step.kind, first_step.name, first_step.value) == ("step", "count", {"rows": 7})
    ((n, question),) = history.questions
    assert (n, question) == (2, app.approvals.list()[0].content_hash)
    assert History.from_json(history.to_json()) == history
    claim = history.claim()
    assert (claim.attempt, json.loads(claim.payload), claim.priority) == (2, {"day": "monday"}, 3)

    async def first() -> History:
        found: list[History] = [each async for each in app.jobs.aexport_history(kind="report")]
        return found[0]

    assert asyncio.run(first()) == history


def test_begun_jobs_that_match_are_exported_newest_first(app: App, new_app: NewApp) -> None:
    @app.job("wait")
    def wait(ctx: SyncContext) -> None:
        ctx.sleep("1h")

    ids = [wait.enqueue().id for _ in range(3)]
    work_off(app)
    wait.using(delay="1h").enqueue()
    assert [history.id for history in app.jobs.export_history(kind="wait")] == ids[::-1]
    assert [history.id for history in app.jobs.export_history(ids[1], ids[1], ids[0])] == [ids[1], ids[0]]
    assert [*app.jobs.export_history(kind="other")] == []
    assert [*new_app(tenant="other").jobs.export_history()] == []
    with pytest.raises(NotFound):
        [*new_app(tenant="other").jobs.export_history(ids[0])]
    with pytest.raises(NotFound):
        [*app.jobs.export_history(UNKNOWN)]
    with pytest.raises(HoldfastError):
        [*app.jobs.export_history(colour="red")]  # type: ignore[call-arg]


def test_values_that_cannot_be_read_are_named(app: App) -> None:
    @app.job("secret", payload_rules=PayloadPolicy(restricted=True))
    async def secret(ctx: Context, card: str) -> None:
        await ctx.step("charge", lambda: card)
        await ctx.sleep("1h")

    @app.job("old")
    async def old(ctx: Context, card: str) -> None:
        await ctx.step("charge", lambda: card)

    hidden, cleaned = secret.enqueue("4111"), old.enqueue("4111")
    work_off(app)
    app.retention.set(clean_after="1h", kind="old")
    forward(session_of(app).store, 7200)
    app.retention.sweep()
    assert cleaned.get().state is State.CLEANED
    for handle, why in ((hidden, "its kind is restricted"), (cleaned, "retention has deleted its values")):
        history: History = next(app.jobs.export_history(handle.id))
        assert (history.payload, history.steps) == (None, ())
        assert why in (history.hidden or "")
        assert "4111" not in history.to_json()

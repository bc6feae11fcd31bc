"""Redriving a dead letter from a step: earlier steps are kept, later ones run again (HF-6, DP-15)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import App, Context, Handle, Retry, State
from holdfast.app.internals import session_of
from holdfast.errors import InvalidInput, InvalidSetting
from holdfast.features.jobs.store import redrive_jobs
from tests.app.conftest import NewApp
from tests.support.workers import work_off

pytestmark = pytest.mark.req("HF-6", "DP-15")

NAMES = ("charge", "page", "page", "ship")


def failed(app: App, done: list[str]) -> Handle[Any]:
    """A dead letter with four completed steps; it succeeds from the second attempt on."""

    def note(name: str) -> str:
        done.append(name)
        return name

    @app.job("pay", retry=Retry(max_attempts=1))
    async def pay(ctx: Context) -> list[str]:
        values = [await ctx.step(name, note, name) for name in NAMES]
        if ctx.attempt == 1:
            raise ConnectionError("the last part fails")
        return values

    handle = pay.enqueue()
    work_off(app)
    assert handle.state() is State.DEAD_LETTER
    done.clear()
    return handle


@pytest.mark.parametrize(
    ("from_step", "again", "reason"),
    [
        (None, [], None),
        (4, ["ship"], "from step 4 (ship)"),
        ("ship", ["ship"], "from step 4 (ship)"),
        (2, ["page", "page", "ship"], "from step 2 (page)"),
        (0, [*NAMES], "from step 0"),
    ],
)
def test_steps_from_the_given_one_run_again(app: App, from_step: Any, again: list[str], reason: str | None) -> None:
    done: list[str] = []
    handle = failed(app, done)
    (verdict,) = app.jobs.redrive(
        handle.id.upper() if from_step == 4 else handle.id, from_step=from_step, max_attempts=3
    )
    assert (verdict.refused, verdict.state) == (False, State.QUEUED)
    last = handle.history()[-1]
    assert (last.type, last.actor, last.meta.get("reason")) == ("redrive", "tester", reason)
    assert handle.get().max_attempts == 3
    work_off(app)
    assert (handle.result(timeout=5), done) == ([*NAMES], again)


def test_given_reason_is_recorded(app: App) -> None:
    handle = failed(app, [])
    app.jobs.redrive(handle.id, from_step="charge", reason="wrong account")
    assert handle.history()[-1].meta["reason"] == "from step 1 (charge): wrong account"


@pytest.mark.req("DP-3")
def test_refused_redrive_changes_nothing(app: App, new_app: NewApp) -> None:
    done: list[str] = []
    handle = failed(app, done)
    waiting = app.enqueue("elsewhere")
    other = new_app(tenant="other")

    def reason(app: App, job_id: str, from_step: Any) -> str | None:
        return app.jobs.redrive(job_id, from_step=from_step)[0].reason

    assert reason(app, handle.id, 5) == "no_such_step"
    assert reason(app, handle.id, "pack") == "no_such_step"
    assert reason(app, handle.id, "page") == "step_ambiguous"
    assert reason(app, waiting.id, 1) == "not_dead"
    assert reason(other, handle.id, 1) == "not_found"
    wrong: list[Any] = [-1, True, 1.5, "", [1]]
    for nonsense in wrong:
        with pytest.raises(InvalidInput):
            app.jobs.redrive(handle.id, from_step=nonsense)
    steps = session_of(app).run(session_of(app).store.steps.list(handle.id, "default"))
    assert [step.n for step in steps] == [1, 2, 3, 4]
    assert handle.state() is State.DEAD_LETTER


def test_rewind_and_redrive_are_atomic(app: App) -> None:
    """If the redrive fails, the steps are not rewound."""
    handle = failed(app, [])
    store = session_of(app).store
    with pytest.raises(InvalidInput):
        session_of(app).run(redrive_jobs(store, [handle.id], 1, None, "tester", "default", max_attempts=999))
    assert len(session_of(app).run(store.steps.list(handle.id, "default"))) == len(NAMES)


def test_rewound_approval_is_requested_again(app: App) -> None:
    @app.job("wipe", retry=Retry(max_attempts=1))
    async def wipe(ctx: Context) -> str:
        decision = await ctx.approval("wipe", summary="Wipe it?")
        if ctx.attempt < 3:
            raise ConnectionError("unreachable")
        return decision.by or ""

    handle = wipe.enqueue()
    work_off(app)
    (first,) = app.approvals.list()
    app.approvals.approve(first.id, by="ada")
    work_off(app)
    assert handle.state() is State.DEAD_LETTER
    app.jobs.redrive(handle.id, from_step="wipe")
    work_off(app)
    (second,) = app.approvals.list()
    assert (second.id != first.id, second.job_id) == (True, handle.id)
    app.approvals.approve(second.id, by="bob")
    work_off(app)
    assert handle.result(timeout=5) == "bob"
    assert app.approvals.get(first.id).approval.state == "approved"


@pytest.mark.req("DP-26")
def test_delayed_redrive_waits_for_its_time(app: App) -> None:
    done: list[str] = []
    handle = failed(app, done)
    with pytest.raises(InvalidSetting) as both:
        handle.redrive(at=datetime.now(UTC), delay=5)
    assert both.value.code == "conflicting_options"
    (verdict,) = app.jobs.redrive(handle.id, delay="2h", reason="the bank is back then")
    assert (verdict.refused, verdict.state) == (False, State.QUEUED)
    job = handle.get()
    assert job.due_at is not None
    assert timedelta(hours=1.9) < job.due_at - datetime.now(UTC) < timedelta(hours=2.1)
    work_off(app)
    assert handle.state() is State.QUEUED, "the job is not due yet"
    assert [event.type for event in handle.history()][-2:] == ["redrive", "reschedule"]
    handle.reschedule()
    work_off(app)
    assert handle.state() is State.SUCCEEDED
    assert done == [], "completed steps are not repeated"

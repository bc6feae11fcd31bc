"""Forks on both stores: a new job takes over the recorded steps of another one, up to a step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Context, Handle, PayloadPolicy, Retry, State, SyncContext
from holdfast.app.internals import session_of
from holdfast.errors import HoldfastError
from holdfast.features.jobs.model import Fork
from tests.app.conftest import NewApp
from tests.support.stores import forward
from tests.support.workers import work_off

pytestmark = [pytest.mark.req("HF-10"), pytest.mark.every_case]

UNKNOWN = "01a1de74-eb8c-70f1-843b-cac5f6817387"
NAMES = ("quote", "charge", "mail")


def declare(app: App, done: list[str], **options: Any) -> Any:
    def note(name: str, order: int) -> dict[str, Any]:
        done.append(name)
        return {"of": name, "order": order}

    @app.job("pay", **options)
    async def pay(ctx: Context, order: int) -> list[Any]:
        values = [await ctx.step(name, note, name, order) for name in NAMES]
        await ctx.wait_for_event("settled")
        return [*values, await ctx.step("report", note, "report", order)]

    return pay


def waiting(app: App, done: list[str], **options: Any) -> Handle[Any]:
    handle: Handle[Any] = declare(app, done, **options).enqueue(7)
    work_off(app)
    assert done == [*NAMES]
    done.clear()
    return handle


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(HoldfastError) as raised:
        call()
    return raised.value.code


@pytest.mark.parametrize(
    ("from_step", "again"), [("mail", ["mail"]), (2, ["charge", "mail"]), (1, [*NAMES]), ("settled", [])]
)
def test_fork_takes_over_the_steps_before_the_given_one(app: App, from_step: Any, again: list[str]) -> None:
    done: list[str] = []
    handle = waiting(app, done, retry=Retry(max_attempts=3), queue="slow", priority=4, tags=["spring"])
    before = app.jobs.details(handle.id)
    made = app.jobs.fork(handle.id, from_step, reason="the rate was wrong")
    assert (made.job_id, made.created) == (handle.id, True)
    copied = app.jobs.steps(made.id)
    assert [(step.name, step.attempt) for step in copied] == [(step.name, 0) for step in before.steps[: len(copied)]]
    new = app.jobs.get(made.id)
    old = handle.get()
    same = ("kind", "queue", "priority", "payload", "max_attempts", "max_crashes", "backoff")
    assert [getattr(new, name) for name in same] == [getattr(old, name) for name in same]
    assert (new.state, new.causation_id, new.enqueued_by) == (State.QUEUED, handle.id, "tester")
    assert new.tags == ("spring", f"fork:{handle.id}")
    work_off(app)
    assert done == again
    app.send_event("settled")
    work_off(app)
    result = app.jobs.result(made.id).value
    assert [value["of"] for value in result] == [*NAMES, "report"]
    after = app.jobs.details(handle.id)
    assert [step.name for step in after.steps[:4]] == [step.name for step in before.steps]


def test_fork_is_linked_both_ways_and_recorded(app: App) -> None:
    handle = waiting(app, [])
    made = app.jobs.fork(handle.id, "charge", reason="wrong account")
    again = app.jobs.fork(made.id if made.id == handle.id else handle.id, 1)
    assert app.jobs.details(handle.id).forks == [again.id, made.id]
    assert app.jobs.details(handle.id).forked_from is None
    assert app.jobs.details(made.id).forked_from == handle.id
    assert [job.id for job in app.jobs.list(tag="fork:*")] == [again.id, made.id]
    (event,) = app.jobs.history(made.id)
    assert (event.type, event.actor) == ("enqueue", "tester")
    action = next(each for each in app.audit.actions() if each.changed and each.changed.get("new_id") == made.id)
    assert (action.type, action.subject, action.name, action.actor) == ("fork", "job", handle.id, "tester")
    assert action.changed == {
        "new_id": made.id,
        "from_step": "charge",
        "n": 2,
        "steps": 1,
        "reason": "wrong account",
    }


def test_fork_of_a_fork_names_its_own_origin(app: App) -> None:
    done: list[str] = []
    handle = waiting(app, done)
    first = app.jobs.fork(handle.id, "mail")
    work_off(app)
    second = app.jobs.fork(first.id, "mail")
    assert app.jobs.details(second.id).forked_from == first.id
    assert app.jobs.details(handle.id).forks == [first.id]
    done.clear()
    work_off(app)
    assert done == ["mail"]


def test_repeated_request_makes_one_fork(app: App) -> None:
    handle = waiting(app, [])
    made = app.jobs.fork(handle.id, "charge", key="request-7")
    assert app.jobs.fork(handle.id, 2, key="request-7") == Fork(made.id, handle.id, 2, created=False)
    assert app.jobs.fork(handle.id, "charge", key="request-8").created
    assert code_of(lambda: app.jobs.fork(handle.id, "mail", key="request-7")) == "idempotency_conflict"
    assert len(app.jobs.list(tag=f"fork:{handle.id}")) == 2
    assert app.jobs.get(made.id).idempotency_key == f"{handle.id}:request-7"


def test_concurrent_requests_make_one_fork(app: App, new_app: NewApp) -> None:
    handle = waiting(app, [])
    apps = [new_app() for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        made = [*threads.map(lambda each: each.jobs.fork(handle.id, "mail", key="once"), apps)]
    assert len({each.id for each in made}) == 1
    assert sum(each.created for each in made) == 1
    assert len(app.jobs.steps(made[0].id)) == 2


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.DEAD_LETTER, State.CANCELLED])
def test_finished_job_can_be_forked(app: App, state: State) -> None:
    done: list[str] = []

    def note(name: str) -> str:
        done.append(name)
        return name

    @app.job("pay", retry=Retry(max_attempts=1))
    def pay(ctx: SyncContext) -> list[str]:
        values = [ctx.step(name, note, name) for name in NAMES]
        if state is State.DEAD_LETTER and len(done) == 3:
            raise ConnectionError("down")
        if state is State.CANCELLED and len(done) == 3:
            ctx.sleep("1h")
        return values

    handle = pay.enqueue()
    work_off(app)
    if state is State.CANCELLED:
        handle.cancel()
    assert handle.state() is state
    made = app.jobs.fork(handle.id, "mail")
    work_off(app)
    assert (app.jobs.result(made.id).value, done) == ([*NAMES], [*NAMES, "mail"])
    assert handle.state() is state


def test_running_job_can_be_forked(app: App) -> None:
    made: list[Fork] = []

    @app.job("pay")
    async def pay(ctx: Context) -> str:
        first = await ctx.step("a", lambda: "a")
        if not made:
            made.append(await app.jobs.afork(ctx.job_id, "a"))
        second = await ctx.step("b", lambda: "b")
        return first + second

    handle = pay.enqueue()
    work_off(app)
    assert (handle.result(), app.jobs.result(made[0].id).value) == ("ab", "ab")


def test_approval_is_asked_again(app: App) -> None:
    done: list[str] = []

    @app.job("pay")
    async def pay(ctx: Context) -> bool:
        await ctx.step("quote", done.append, "quote")
        decided = await ctx.approval("big", summary="Pay?")
        await ctx.step("charge", done.append, "charge")
        await ctx.step("mail", done.append, "mail")
        return decided.approved

    handle = pay.enqueue()
    work_off(app)
    (approval,) = app.approvals.list()
    app.approvals.approve(approval.id, by="ada")
    work_off(app)
    assert handle.result() is True
    done.clear()
    made = app.jobs.fork(handle.id, "mail")
    assert [step.name for step in app.jobs.steps(made.id)] == ["quote", "charge"]
    work_off(app)
    assert (app.jobs.get(made.id).state, done) == (State.WAITING_FOR_APPROVAL, [])
    (asked,) = app.approvals.list()
    assert asked.job_id == made.id
    app.approvals.approve(asked.id, by="eve")
    work_off(app)
    assert (app.jobs.result(made.id).value, done) == (True, ["mail"])


def test_failed_steps_events_and_patches_are_taken_over(app: App) -> None:
    @app.job("pay")
    async def pay(ctx: Context) -> list[Any]:
        seen: list[Any] = [await ctx.patched("new")]
        try:
            await ctx.step("fails", int, "x")
        except ValueError as error:
            seen.append(str(error))
        seen.append((await ctx.wait_for_event("paid")).data["sum"])
        await ctx.sleep(0.01)
        seen.append(await ctx.step("last", lambda: 1))
        return seen

    handle = pay.enqueue()
    work_off(app)
    app.send_event("paid", {"sum": 5}, job=handle.id)
    app.jobs.reschedule(handle.id)
    work_off(app)
    numbers = {step.name: step.n for step in app.jobs.steps(handle.id)}
    made = app.jobs.fork(handle.id, numbers["sleep"])
    assert [step.kind for step in app.jobs.steps(made.id)] == ["patch", "step", "event"]
    work_off(app)
    assert app.jobs.get(made.id).state in (State.RETRY_WAITING, State.SUCCEEDED)
    assert len(app.jobs.steps(made.id)) >= 4


def test_refusals_have_stable_codes(app: App, new_app: NewApp) -> None:
    handle = waiting(app, [])
    other = new_app(tenant="other")
    assert code_of(lambda: app.jobs.fork(handle.id, "ship")) == "no_such_step"
    assert code_of(lambda: app.jobs.fork(handle.id, 99)) == "no_such_step"
    assert code_of(lambda: app.jobs.fork(UNKNOWN, "mail")) == "not_found"
    assert code_of(lambda: other.jobs.fork(handle.id, "mail")) == "not_found"
    assert code_of(lambda: app.jobs.fork("x", "mail")) == "invalid_id"
    wrong: Any
    for wrong in (None, -1, True, 2**31, "", "x" * 201, ["mail"]):
        assert code_of(partial(app.jobs.fork, handle.id, wrong)) in ("invalid_setting", "invalid_name")
    assert code_of(lambda: app.jobs.fork(handle.id, "mail", key="")) == "invalid_name"
    plain = app.enqueue("plain")
    assert code_of(lambda: app.jobs.fork(plain.id, 1)) == "no_steps"
    assert app.jobs.list(tag="fork:*") == []

    @app.job("twice")
    async def twice(ctx: Context) -> None:
        await ctx.step("page", lambda: 1)
        await ctx.step("page", lambda: 2)

    again = twice.enqueue()
    work_off(app)
    assert code_of(lambda: app.jobs.fork(again.id, "page")) == "step_ambiguous"
    assert app.jobs.fork(again.id, 2).created


def test_job_of_a_workflow_is_refused(app: App) -> None:
    @app.job("part")
    async def part(ctx: Context) -> None:
        await ctx.step("a", lambda: 1)

    flow = app.workflow("nightly")
    flow.add(part)
    flow.start()
    work_off(app)
    assert code_of(lambda: app.jobs.fork(app.jobs.list()[0].id, "a")) == "in_workflow"


def test_rules_for_new_jobs_apply(app: App) -> None:
    handle = waiting(app, [])
    app.pauses.set(kind="pay", reason="wrong sums", refuse_enqueue=True)
    assert code_of(lambda: app.jobs.fork(handle.id, "mail")) == "paused"
    assert app.jobs.list(tag="fork:*") == []
    assert not [each for each in app.audit.actions() if each.type == "fork"]


def test_restricted_kind_is_refused(app: App) -> None:
    handle = waiting(app, [], payload_rules=PayloadPolicy(restricted=True))
    assert code_of(lambda: app.jobs.fork(handle.id, "mail")) == "restricted"


@pytest.mark.slow
def test_sealed_and_stored_values_belong_to_the_new_job(
    new_app: NewApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.stores.vault import new_key

    bare = new_app()
    monkeypatch.setenv("HOLDFAST_KEYS", f"k1:{new_key()}")
    app, done = new_app(artifacts=tmp_path), list[str]()

    def large(order: int) -> str:
        done.append("large")
        return "x" * 1_100_000

    @app.job("pay")
    async def pay(ctx: Context, order: int) -> int:
        text = await ctx.step("large", large, order)
        secret = await ctx.step("secret", lambda: "s3cret")
        await ctx.step("last", done.append, secret)
        return len(text)

    handle = pay.enqueue(7)
    work_off(app)
    assert handle.result() == 1_100_000
    assert code_of(lambda: bare.jobs.fork(handle.id, "last")) == "key_unknown"
    files = len([*tmp_path.rglob("*")])
    made = app.jobs.fork(handle.id, "last", key="one")
    assert len([*tmp_path.rglob("*")]) > files
    files = len([*tmp_path.rglob("*")])
    assert not app.jobs.fork(handle.id, "last", key="one").created
    assert len([each for each in tmp_path.rglob("*") if each.is_file()]) <= files
    work_off(app)
    assert (app.jobs.result(made.id).value, done) == (1_100_000, ["large", "s3cret", "s3cret"])
    (history,) = app.jobs.export_history(made.id)
    assert [step.value if step.n > 1 else len(step.value) for step in history.steps] == [1_100_000, "s3cret", None]
    (hidden,) = bare.jobs.export_history(made.id)
    assert hidden.hidden is not None
    assert "key" in hidden.hidden


def test_async_form(app: App) -> None:
    handle = waiting(app, [])
    assert asyncio.run(app.jobs.afork(handle.id, "mail")).created


def test_steps_cannot_be_added_to_other_jobs(app: App) -> None:
    handle = waiting(app, [])
    store = session_of(app).store
    stranger = app.enqueue("pay", {"order": 8})
    with pytest.raises(HoldfastError):
        store.run(store.steps.fork(handle.id, stranger.id, 3, "mail", {}, None, "eve", "default"))
    made = app.jobs.fork(handle.id, "mail")
    with pytest.raises(HoldfastError):
        store.run(store.steps.fork(handle.id, made.id, 3, "mail", {}, None, "eve", "default"))
    assert app.jobs.steps(stranger.id) == []


def test_job_of_a_subscription_whose_retries_are_jobs_keeps_its_facts(app: App) -> None:
    @app.job("pay", retry_as="new_job", executor="worker", limit_key="account-7")
    async def pay(ctx: Context, event: Any = None) -> None:
        await ctx.step("a", lambda: 1)
        await ctx.sleep("1h")

    app.subscriptions.set("bookings", on="paid", kind="pay")
    app.send_event("paid", {"sum": 5})
    work_off(app)
    (job,) = app.jobs.list(kind="pay")
    made = app.jobs.get(app.jobs.fork(job.id, "sleep").id)
    same = ("payload", "retry_as", "executor", "uses", "depth", "backoff", "correlation_id")
    assert [getattr(made, name) for name in same] == [
        getattr(job, name) if name != "correlation_id" else job.correlation_id or job.id for name in same
    ]


def test_cleaned_job_is_refused(app: App) -> None:
    @app.job("pay")
    async def pay(ctx: Context) -> None:
        await ctx.step("a", lambda: 1)

    handle = pay.enqueue()
    work_off(app)
    app.retention.set(clean_after="1h")
    forward(session_of(app).store, 7200)
    app.retention.sweep()
    assert code_of(lambda: app.jobs.fork(handle.id, "a")) == "cleaned"

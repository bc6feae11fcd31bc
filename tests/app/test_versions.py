"""Versions of an application: pinned jobs stay with theirs, jobs that fit no code are held, patches end (HF-10)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast import App, Backoff, Context, Retry, State
from holdfast.app.internals import code_of, session_of
from holdfast.errors import InvalidSetting
from tests.app.conftest import NewApp
from tests.support.frozen import Frozen
from tests.support.stores import forward
from tests.support.waiting import until
from tests.support.workers import work_off, working

pytestmark = pytest.mark.req("HF-10")

Handler = Callable[[Context], Awaitable[Any]]


def declare(app: App, handler: Handler, **options: Any) -> Any:
    return app.job("pay", **options)(handler)


async def waits_for_go(ctx: Context) -> str:
    await ctx.step("charge", lambda: "charged")
    await ctx.wait_for_event("go")
    return str(await ctx.step("ship", lambda: "shipped"))


async def reserves(ctx: Context) -> str:
    await ctx.step("reserve", lambda: "reserved")
    await ctx.wait_for_event("go")
    return str(await ctx.step("ship", lambda: "sent"))


def versions(app: App) -> dict[str, tuple[int, int, bool]]:
    """Live workers, pinned jobs, and whether it is safe to retire, by version."""
    return {each.version: (each.workers, each.pinned, each.safe_to_retire) for each in app.versions.list()}


def attempts(app: App, job_id: str) -> list[str | None]:
    return [attempt.version for attempt in app.jobs.attempts(job_id)]


# --- pinned and continuing jobs ---


def test_pinned_job_is_run_by_its_version_only(new_app: NewApp) -> None:
    old, new = new_app(version="1.0"), new_app(version="2.0")
    pay = declare(old, waits_for_go, on_new_version="pin")
    declare(new, waits_for_go, on_new_version="pin")
    job = pay.enqueue()
    work_off(old)
    old.send_event("go")
    work_off(new)
    assert job.get().state is State.QUEUED
    assert versions(old) == {"1.0": (0, 1, False)}
    fresh = pay.enqueue()
    work_off(new)
    assert fresh.get().attempt == 1, "a job that has not started belongs to no version"
    work_off(old)
    assert job.result(timeout=5) == "shipped"
    assert attempts(old, job.id) == ["1.0", "1.0"]


def test_workers_of_two_versions_each_run_their_own(new_app: NewApp) -> None:
    apps = {name: new_app(version=name) for name in ("1.0", "2.0")}
    kinds = {name: declare(app, waits_for_go, on_new_version="pin") for name, app in apps.items()}
    jobs = {}
    for name, app in apps.items():
        jobs[name] = [kinds[name].enqueue() for _ in range(3)]
        work_off(app)
    with working(apps["1.0"]), working(apps["2.0"]):
        apps["1.0"].send_event("go")
        for name, own in jobs.items():
            assert [job.result(timeout=20) for job in own] == ["shipped"] * 3
            assert {version for job in own for version in attempts(apps[name], job.id)} == {name}


def test_other_jobs_continue_on_every_version(new_app: NewApp) -> None:
    old, new = new_app(version="1.0"), new_app(version="2.0")
    job = declare(old, waits_for_go).enqueue()
    declare(new, waits_for_go)
    work_off(old)
    old.send_event("go")
    work_off(new)
    assert job.result(timeout=5) == "shipped"
    assert attempts(new, job.id) == ["1.0", "2.0"]
    assert versions(new) == {}


def test_pinned_job_keeps_the_label_of_its_executor(new_app: NewApp) -> None:
    app = new_app(version="1.0")
    job = declare(app, waits_for_go, on_new_version="pin", executor="gpu").enqueue()
    work_off(app, executor="gpu")
    app.send_event("go")
    work_off(app)
    assert (job.get().state, job.get().executor) == (State.QUEUED, "gpu")
    work_off(app, executor="gpu")
    assert job.result(timeout=5) == "shipped"


def test_retry_of_a_pinned_job_stays_pinned(new_app: NewApp) -> None:
    old, new = new_app(version="1.0"), new_app(version="2.0")

    async def fails(ctx: Context) -> None:
        raise ValueError("not now")

    job = declare(old, fails, on_new_version="pin", retry=Retry(max_attempts=2, backoff=Backoff(base=3600.0))).enqueue()
    declare(new, waits_for_go, on_new_version="pin")
    work_off(old)
    job.reschedule()
    work_off(new)
    assert job.get().attempt == 1
    work_off(old)
    assert job.get().state is State.DEAD_LETTER


def test_pin_needs_a_version(app: App) -> None:
    declare(app, waits_for_go, on_new_version="pin")
    with pytest.raises(InvalidSetting, match=r"App\(version=…\)") as refused:
        work_off(app)
    assert refused.value.code == "version_required"


def test_version_comes_from_the_environment(new_app: NewApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_APP_VERSION", " 7.1 ")
    assert code_of(new_app()).version == "7.1"
    assert code_of(new_app(version="8")).version == "8"


@pytest.mark.parametrize("version", ["x" * 101, "1\x1f0", "1\n0", "*", " 1", "1\u202e0", 7, b"1"])
def test_hostile_versions_are_refused(new_app: NewApp, version: Any) -> None:
    with pytest.raises(InvalidSetting):
        new_app(version=version)


@pytest.mark.parametrize("value", ["PIN", "", None, True])
def test_unknown_choice_is_refused(app: App, value: Any) -> None:
    with pytest.raises(InvalidSetting, match="on_new_version"):
        declare(app, waits_for_go, on_new_version=value)


# --- moving jobs ---


def test_move_one_and_then_all(new_app: NewApp) -> None:
    old, new = new_app(version="1.0"), new_app(version='2.0 "beta" [x]')
    pay = declare(old, waits_for_go, on_new_version="pin")
    declare(new, waits_for_go, on_new_version="pin")
    jobs = [pay.enqueue() for _ in range(3)]
    work_off(old)
    old.send_event("go")
    target = '2.0 "beta" [x]'
    moved = old.versions.move("1.0", to=target, jobs=[jobs[0].id], reason="try it")
    assert (moved.moved, moved.job_ids) == (1, (jobs[0].id,))
    work_off(new)
    assert [job.get().state for job in jobs] == [State.SUCCEEDED, State.QUEUED, State.QUEUED]
    assert old.versions.move("1.0", to=target).moved == 2
    work_off(new)
    assert [job.result(timeout=5) for job in jobs] == ["shipped"] * 3
    assert old.versions.move("1.0", to=target).moved == 0
    actions = [action for action in old.audit.actions() if action.subject == "job"]
    assert {action.name for action in actions} == {job.id for job in jobs}
    assert {"version": ["1.0", target], "reason": "try it"} in [action.changed for action in actions]


def test_move_checks_its_arguments(app: App) -> None:
    for bad in ({"version": "", "to": "2"}, {"version": "1", "to": "1"}, {"version": "1", "to": "2\x00"}):
        with pytest.raises(InvalidSetting):
            app.versions.move(**bad)
    with pytest.raises(InvalidSetting, match="list of ids"):
        app.versions.move("1", to="2", jobs="019")


# --- held jobs ---


def held_by_new_code(new_app: NewApp, **options: Any) -> tuple[App, App, Any]:
    old, new = new_app(version="1.0"), new_app(version="2.0")
    job = declare(old, waits_for_go, retry=Retry(max_attempts=1), **options).enqueue()
    declare(new, reserves, **options)
    work_off(old)
    old.send_event("go")
    work_off(new)
    return old, new, job


def test_job_that_does_not_fit_is_held_and_continues_with_fitting_code(new_app: NewApp) -> None:
    old, new, job = held_by_new_code(new_app)
    shown = job.get()
    assert (shown.state, shown.retries, shown.error_code) == (State.RETRY_WAITING, 0, None)
    (held,) = new.versions.held()
    assert (held.job_id, held.tried) == (job.id, 1)
    assert held.steps[0] == {"n": 1, "recorded": "step charge", "called": "step reserve"}
    assert held.steps[1] == {"n": 2, "recorded": "event go", "called": None}
    work_off(new)
    assert job.get().attempt == 2, "the same code is not tried again"
    with working(old):
        assert job.result(timeout=20) == "shipped"
    assert new.versions.held() == []


def test_held_job_is_tried_once_with_each_code(new_app: NewApp) -> None:
    old, new, job = held_by_new_code(new_app)
    newer = new_app(version="3.0")
    declare(newer, reserves)
    for each in (newer, new, newer):
        work_off(each)
    (held,) = new.versions.held()
    assert (held.tried, job.get().attempt) == (2, 3)
    with working(old), working(new), working(newer):
        assert job.result(timeout=20) == "shipped"


def test_held_job_becomes_a_dead_letter_after_its_limit(new_app: NewApp) -> None:
    _, new, job = held_by_new_code(new_app, hold_for="1h")
    (held,) = new.versions.held()
    assert held.until is not None
    assert timedelta(minutes=59) < held.until - held.since < timedelta(minutes=61)
    forward(session_of(new).store, 3601)
    work_off(new)
    work_off(new)
    dead = job.get()
    assert (dead.state, dead.error_code) == (State.DEAD_LETTER, "steps_changed")
    assert "durable call 1 was step 'charge'" in (dead.error_message or "")


def test_without_a_limit_the_job_is_a_dead_letter_at_once(new_app: NewApp) -> None:
    _, _, job = held_by_new_code(new_app, hold_for=0)
    assert (job.get().state, job.get().error_code) == (State.DEAD_LETTER, "steps_changed")


def test_offered_job_is_free_again_when_its_worker_ends(new_app: NewApp) -> None:
    old, new, job = held_by_new_code(new_app)
    store = session_of(old).store
    code = code_of(old)
    lease = store.run(store.leases.open("old worker", 30, "*", "worker", ["pay"], ["default"], 1, None, code)).id
    assert store.run(store.versions.offer()) == 1
    assert store.run(store.versions.requirement(job.id, "*")).code == code.fingerprint
    work_off(new)
    assert job.get().state is State.QUEUED
    store.run(store.leases.end(lease, "closed", "*"))
    work_off(new)
    assert job.get().state is State.RETRY_WAITING
    work_off(old)
    assert job.result(timeout=5) == "shipped"


def test_held_pinned_job_waits_for_its_version(new_app: NewApp) -> None:
    old = new_app(version="1.0")
    job = declare(old, waits_for_go, on_new_version="pin").enqueue()
    work_off(old)
    old.send_event("go")
    wrong, other, right = new_app(version="1.0"), new_app(version="2.0"), new_app(version="1.0")
    declare(wrong, reserves, on_new_version="pin")
    declare(other, waits_for_go, on_new_version="pin")
    declare(right, waits_for_go, on_new_version="pin")
    work_off(wrong)
    (held,) = old.versions.held()
    assert held.version == "1.0"
    work_off(other)
    assert job.get().attempt == 2
    assert old.versions.list()[0].held == 1
    work_off(right)
    assert job.result(timeout=5) == "shipped"


# --- what people see ---


def codes(app: App) -> set[str]:
    return {reason.code for reason in app.health.get().reasons}


def test_why_and_health_name_a_version_without_a_worker(new_app: NewApp) -> None:
    old, new = new_app(version="1.0"), new_app(version="2.0")
    job = declare(old, waits_for_go, on_new_version="pin").enqueue()
    declare(new, waits_for_go, on_new_version="pin")
    work_off(old)
    old.send_event("go")
    with working(new):
        found = {reason.code: reason for reason in old.jobs.why(job.id).reasons}
        assert "pinned to version 1.0" in found["no_worker_for_version"].says
        fix = f"holdfast versions move 1.0 --to VERSION --job {job.id}"
        assert fix in (found["no_worker_for_version"].change or "")
        assert "next" not in found
        health = old.health.get()
        assert health.unserved_versions == ("1.0 (1 job)",)
        assert "unserved_versions" in {reason.code for reason in health.reasons}
        assert health.unserved_executors == ()
    with working(old):
        assert job.result(timeout=20) == "shipped"
    assert "unserved_versions" not in codes(old)


def test_why_and_health_show_a_held_job(new_app: NewApp) -> None:
    old, new, job = held_by_new_code(new_app)
    (reason,) = (each for each in new.jobs.why(job.id).reasons if each.code == "code_mismatch")
    assert "call 1 was step charge, the code called step reserve; 1 version of the code tried" in reason.says
    assert "snoozed" not in {each.code for each in new.jobs.why(job.id).reasons}
    assert (new.health.get().held, "held_jobs" in codes(new)) == (1, True)
    work_off(old)
    assert (new.health.get().held, "held_jobs" in codes(new)) == (0, False)


def test_workers_and_logs_show_the_version(new_app: NewApp, caplog: pytest.LogCaptureFixture) -> None:
    app = new_app(version="1.0")

    async def logs(ctx: Context) -> None:
        ctx.log.warning("here")

    declare(app, logs).enqueue()
    with working(app):
        until(lambda: bool(app.workers.list()), "the worker is listed")
        assert {worker.app_version for worker in app.workers.list()} == {"1.0"}
        until(lambda: versions(app) == {"1.0": (1, 0, True)}, "its job has ended")
        until(lambda: any(record.message == "here" for record in caplog.records), "the handler has logged")
    (record,) = (record for record in caplog.records if record.message == "here")
    assert record.version == "1.0"  # type: ignore[attr-defined]


# --- patches ---


def test_patch_is_retired_and_removed(new_app: NewApp) -> None:
    old, patched, retired = new_app(version="1"), new_app(version="2"), new_app(version="3")

    async def with_patch(ctx: Context) -> str:
        if await ctx.patched("reserve"):
            await ctx.step("reserve", lambda: None)
        await ctx.step("charge", lambda: None)
        await ctx.wait_for_event("go")
        return "both"

    async def without_old_path(ctx: Context) -> str:
        assert await ctx.patched("reserve", retired=True)
        await ctx.step("reserve", lambda: None)
        await ctx.step("charge", lambda: None)
        await ctx.wait_for_event("go")
        return "new"

    pay = declare(old, waits_for_go)
    declare(patched, with_patch)
    declare(retired, without_old_path)
    first = pay.enqueue()
    work_off(old)
    second = pay.enqueue()
    work_off(patched)
    (patch,) = old.versions.patches()
    assert (patch.name, patch.kind, patch.old_path, patch.recorded) == ("reserve", "pay", 1, 1)
    assert not patch.old_path_removable
    first.cancel()
    (patch,) = old.versions.patches()
    assert (patch.old_path, patch.old_path_removable, patch.removable) == (0, True, False)
    third = pay.enqueue()
    work_off(retired)
    (patch,) = old.versions.patches()
    assert patch.recorded == 1, "a retired patch is not recorded"
    old.send_event("go")
    work_off(retired)
    assert (second.result(timeout=5), third.result(timeout=5)) == ("new", "new")
    (patch,) = old.versions.patches()
    assert patch.removable


# --- the previous release ---

OLD_WORKER = """
import holdfast
app = holdfast.App()

@app.job
async def pay(ctx: holdfast.Context) -> str:
    await ctx.step("charge", lambda: "charged")
    await ctx.wait_for_event("go")
    return "by 0.1.0"

app.run_worker(burst=True)
"""


@pytest.mark.slow
def test_workers_of_release_0_1_0_leave_pinned_and_held_jobs_alone(
    new_app: NewApp, url: str, previous_release: Frozen
) -> None:
    app = new_app(version="1.0")
    job = declare(app, waits_for_go, on_new_version="pin").enqueue()
    work_off(app)
    app.send_event("go")
    previous_release.run("-c", OLD_WORKER, url=url)
    assert (job.get().state, job.get().attempt) == (State.QUEUED, 1)
    fresh = app.enqueue("pay")
    previous_release.run("-c", OLD_WORKER, url=url)
    assert fresh.get().attempt == 1, "a plain job runs on every release"
    work_off(app)
    assert job.result(timeout=5) == "shipped"

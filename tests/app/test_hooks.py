"""Hooks around enqueue and execution, and after the end of an attempt."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from functools import partial
from types import ModuleType

import pytest

import holdfast
from holdfast import App, Backoff, EndInfo, EnqueueInfo, Hooks, Retry, RunInfo, State
from holdfast.app.internals import session_of
from holdfast.errors import InvalidSetting
from tests.app.conftest import NewApp
from tests.app.processes import imported
from tests.support.stores import claim, open_lease
from tests.support.workers import work_off

pytestmark = pytest.mark.req("HF-13")

ONCE = Retry(max_attempts=1)
value: ContextVar[str] = ContextVar("value", default="unset")


def note(seen: list[str], name: str) -> Hooks:
    """A bundle with one sync hook that records when it is entered and left."""
    hooks = Hooks()

    @hooks.around_run
    def around(run: RunInfo) -> Iterator[None]:
        seen.append(f"+{name}")
        yield
        seen.append(f"-{name}")

    return hooks


def test_app_hooks_are_outermost_in_registration_order(app: App) -> None:
    seen: list[str] = []
    threads: set[int] = set()

    @app.hooks.around_run
    def first(run: RunInfo) -> Iterator[None]:
        seen.append(f"+first {run.kind} {run.attempt} {run.tags}")
        threads.add(threading.get_ident())
        value.set(run.job_id)
        yield
        threads.add(threading.get_ident())
        seen.append("-first")

    @app.hooks.around_run
    async def loop(run: RunInfo) -> AsyncIterator[None]:
        seen.append("+async")
        yield
        seen.append("-async")

    app.hooks.include(note(seen, "included"))

    @app.job(hooks=[note(seen, "a"), note(seen, "b")], tags=["mail"])
    async def on_loop() -> str:
        return value.get()

    handle = on_loop.enqueue()
    work_off(app)
    assert handle.result() == handle.id
    inner = ["+included", "+a", "+b", "-b", "-a", "-included"]
    assert seen == ["+first on_loop 1 ('mail',)", "+async", *inner, "-async", "-first"]

    seen.clear()
    threads.clear()

    @app.job
    def in_thread() -> str:
        threads.add(threading.get_ident())
        return value.get()

    handle = in_thread.enqueue()
    work_off(app)
    assert handle.result() == handle.id
    assert len(threads) == 1, "sync hooks run in the thread of the handler"
    assert seen == ["+async", "+first in_thread 1 ()", "+included", "-included", "-first", "-async"]


@pytest.mark.parametrize("form", ["sync", "async"])
def test_hook_can_fail_an_attempt_but_not_hide_a_failure(app: App, form: str) -> None:
    ran: list[str] = []
    hiding, closed = Hooks(), Hooks()

    @hiding.around_run
    def hides(run: RunInfo) -> Iterator[None]:
        try:
            yield
        except ValueError:
            ran.append("seen")

    @closed.around_run
    def refuses(run: RunInfo) -> Iterator[None]:
        if run.attempt:
            raise PermissionError("closed today")
        yield

    def fails() -> None:
        raise ValueError("no")

    def never() -> None:
        ran.append("never")

    async def afails() -> None:
        fails()

    async def anever() -> None:
        never()

    functions = (fails, never) if form == "sync" else (afails, anever)
    failing = app.job("fails", hooks=[hiding], retry=ONCE)(functions[0])
    refused = app.job("never", hooks=[hiding, closed], retry=ONCE)(functions[1])
    handles = [failing.enqueue(), refused.enqueue()]
    work_off(app)
    assert [handle.get().error_code for handle in handles] == ["ValueError", "PermissionError"]
    assert ran == ["seen"]


def test_enqueue_hooks_can_change_refuse_and_see_the_outcome(app: App) -> None:
    seen: list[tuple[int, bool | None]] = []

    @app.hooks.around_enqueue
    def stamp(info: EnqueueInfo) -> Iterator[None]:
        for job in info.jobs:
            job.add_tags("web")
            job.correlation_id = "r-1"
        yield
        seen.append((len(info.jobs), info.jobs[0].created))

    careful = Hooks()

    @careful.around_enqueue
    def refuse(info: EnqueueInfo) -> Iterator[None]:
        assert {job.kind for job in info.jobs} == {"mail"}
        if any(job.tenant == "blocked" for job in info.jobs):
            raise PermissionError("blocked")
        yield

    mail = app.job("mail", hooks=[careful])(lambda: None)
    other = app.job("other", tags=["own"])(lambda: None)
    handle = mail.using(key="k").enqueue()
    job = handle.get()
    assert (job.tags, job.correlation_id) == (("web",), "r-1")
    assert mail.using(key="k").enqueue().id == handle.id
    assert seen == [(1, True), (1, False)]
    with pytest.raises(PermissionError):
        mail.using(tenant="blocked").enqueue()
    many = app.enqueue_many([mail.prepare(), other.prepare(), app.prepare("other")])
    assert [each.get().tags for each in many] == [("web",), ("own", "web"), ("own", "web")]
    assert seen[2:] == [(3, True)]
    assert len(app.jobs.list()) == 4


async def test_async_enqueue_hooks_require_the_async_form(app: App) -> None:
    order: list[str] = []

    @app.hooks.around_enqueue
    async def look_up(info: EnqueueInfo) -> AsyncIterator[None]:
        order.append("before")
        yield
        order.append(info.jobs[0].id)

    handle = await app.aenqueue("mail")
    assert order == ["before", handle.id]
    with pytest.raises(InvalidSetting) as refused:
        app.enqueue("mail")
    assert refused.value.code == "async_hook"
    for wrong in (lambda info: None, "text"):
        with pytest.raises(InvalidSetting) as refused:
            app.hooks.around_run(wrong)  # type: ignore[type-var]
        assert refused.value.code == "invalid_hook"


@pytest.mark.parametrize("runner", ["worker", "tick"])
def test_end_hooks_run_after_the_end_is_recorded(app: App, runner: str, caplog: pytest.LogCaptureFixture) -> None:
    ends: list[tuple[str, str, int, str | None]] = []
    states: list[State] = []

    def record_end(hook: str, end: EndInfo) -> None:
        ends.append((hook, end.kind, end.attempt, end.error_code))

    @app.hooks.on_success
    def success(end: EndInfo) -> None:
        record_end("success", end)
        states.append(app.jobs.handle(end.job_id).get().state)

    @app.hooks.on_failure
    async def failure(end: EndInfo) -> None:
        record_end(f"failure {end.outcome}", end)
        assert "flaky" in (end.traceback or "")
        raise RuntimeError("a hook that fails")

    class Callable:
        async def __call__(self, end: EndInfo) -> None:
            record_end("object", end)

    dead = Hooks()
    dead.on_success(Callable())

    @dead.on_dead_letter
    async def tell(end: EndInfo) -> None:
        record_end("dead", end)
        await app.aenqueue("apology")

    @app.job(hooks=[dead], retry=Retry(max_attempts=2, backoff=Backoff(base=0, jitter=False)))
    def flaky(good: bool) -> None:
        if not good:
            raise ValueError("no")

    with app.tenant("acme"):
        flaky.enqueue(good=True)
        handle = flaky.enqueue(good=False)
    with caplog.at_level(logging.ERROR, "holdfast.hooks"):
        while handle.get().state is not State.DEAD_LETTER:
            (app.tick if runner == "tick" else partial(work_off, app))()
    assert sorted(ends) == [
        ("dead", "flaky", 2, "ValueError"),
        ("failure dead_letter", "flaky", 2, "ValueError"),
        ("failure failed", "flaky", 1, "ValueError"),
        ("object", "flaky", 1, None),
        ("success", "flaky", 1, None),
    ]
    assert states == [State.SUCCEEDED]
    assert "failure failed after job" in caplog.text
    with app.tenant("acme"):
        assert [job.kind for job in app.jobs.list(kind="apology")] == ["apology"], "in the tenant of the job"


def test_lost_worker_dead_letter_is_reported_by_the_recording_process(app: App) -> None:
    reported: list[str] = []

    @app.hooks.on_dead_letter
    def tell(end: EndInfo) -> None:
        reported.append(f"{end.job_id} {end.error_code} {end.outcome}")

    @app.job(at_most_once=True)
    def fragile() -> None: ...

    handle = fragile.enqueue()
    store = session_of(app).store
    lease = open_lease(store)
    assert [each.id for each in claim(store, lease)] == [handle.id]
    store.run(store.leases.end(lease, "crashed in a test", "*"))
    app.tick()
    app.tick()
    assert reported == [f"{handle.id} worker_lost dead_letter"]


@pytest.mark.slow
def test_run_hooks_run_in_the_child_and_end_hooks_in_the_worker(
    url: str, new_app: NewApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: ModuleType = imported("tests.app.hooked_process_jobs", url, monkeypatch)
    app: holdfast.App = module.app
    try:
        handle = module.child.enqueue()
        module.died.enqueue()
        work_off(app)
        assert handle.result() == (os.getpid(), "hooked")
        assert sorted(module.ended) == [("child", "succeeded", os.getpid()), ("died", "dead_letter", os.getpid())]
    finally:
        app.close()

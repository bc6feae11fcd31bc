"""A handler continues after it committed its own transaction: its job is no longer claimed but was not lost (HF-3)."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field

import pytest

from holdfast import App, Context, State
from tests.app.conftest import NewApp
from tests.app.outages import Outage
from tests.support.waiting import until
from tests.support.workers import working

pytestmark = pytest.mark.req("HF-3", "CX-11")


@dataclass
class Marks:
    """The progress of the handlers."""

    committed: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    continued: threading.Event = field(default_factory=threading.Event)
    waits: threading.Event = field(default_factory=threading.Event)
    stopped: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def worker_app(new_app: NewApp) -> App:
    return new_app()


@pytest.fixture
def marks(worker_app: App) -> Marks:
    marks = Marks()

    @worker_app.job()
    async def pay(ctx: Context) -> None:
        async with ctx.transaction(result="paid"):
            pass
        marks.committed.set()
        if await asyncio.to_thread(marks.release.wait, 30):
            marks.continued.set()

    @worker_app.job()
    async def wait() -> None:
        marks.waits.set()
        try:
            await asyncio.sleep(600)
        finally:
            marks.stopped.set()

    @worker_app.job()
    def quick() -> None: ...

    return marks


def test_committed_handler_continues_after_a_failed_exchange(
    app: App, worker_app: App, marks: Marks, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage = Outage(worker_app, monkeypatch)
    with working(worker_app):
        handle = app.enqueue("pay")
        assert marks.committed.wait(20)
        outage.failing["leases.exchange"] = 1
        until(lambda: outage.hits["leases.exchange"] == 1, "an exchange has failed")
        app.enqueue("quick").result(timeout=20)  # by an exchange that began after the worker compared its jobs
        marks.release.set()
        assert marks.continued.wait(20), "the handler was stopped"
    assert (handle.result(timeout=20), handle.get().attempt) == ("paid", 1)


def test_committed_handler_continues_while_a_worker_stops_cancelled_jobs(
    app: App, worker_app: App, marks: Marks
) -> None:
    with working(worker_app):
        handle, other = app.enqueue("pay"), app.enqueue("wait")
        assert marks.committed.wait(20)
        assert marks.waits.wait(20)
        app.jobs.cancel(other.id)
        assert marks.stopped.wait(20)
        marks.release.set()
        assert marks.continued.wait(20), "the handler was stopped"
    assert (handle.result(timeout=20), other.state()) == ("paid", State.CANCELLED)


def test_committed_handler_continues_while_a_tick_stops_cancelled_jobs(app: App, worker_app: App, marks: Marks) -> None:
    handle, other = app.enqueue("pay"), app.enqueue("wait")

    def cancel() -> None:
        assert marks.committed.wait(20)
        assert marks.waits.wait(20)
        app.jobs.cancel(other.id)
        assert marks.stopped.wait(20)
        marks.release.set()

    background = threading.Thread(target=cancel)
    background.start()
    done = worker_app.tick()
    background.join()
    assert marks.continued.is_set(), "the handler was stopped"
    assert (done.taken, done.succeeded, done.cancelled, done.lost) == (2, 1, 1, 0)
    assert handle.result(timeout=20) == "paid"

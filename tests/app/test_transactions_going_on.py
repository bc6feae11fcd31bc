"""A handler that has committed its own transaction goes on: its job is not held, and was not taken away (HF-3)."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field

import pytest

from holdfast import App, Context, State
from tests.app.away import Away
from tests.app.conftest import NewApp
from tests.support.waiting import until
from tests.support.workers import working

pytestmark = pytest.mark.req("HF-3", "CX-11")


@dataclass
class Marks:
    """How far the handlers have come."""

    committed: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    went_on: threading.Event = field(default_factory=threading.Event)
    waits: threading.Event = field(default_factory=threading.Event)
    stopped: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def elsewhere(new_app: NewApp) -> App:
    return new_app()


@pytest.fixture
def marks(elsewhere: App) -> Marks:
    marks = Marks()

    @elsewhere.job()
    async def pay(ctx: Context) -> None:
        async with ctx.transaction(result="paid"):
            pass
        marks.committed.set()
        if await asyncio.to_thread(marks.go_on.wait, 30):
            marks.went_on.set()

    @elsewhere.job()
    async def wait() -> None:
        marks.waits.set()
        try:
            await asyncio.sleep(600)
        finally:
            marks.stopped.set()

    @elsewhere.job()
    def quick() -> None: ...

    return marks


def test_when_a_turn_has_failed(app: App, elsewhere: App, marks: Marks, monkeypatch: pytest.MonkeyPatch) -> None:
    away = Away(elsewhere, monkeypatch)
    with working(elsewhere):
        handle = app.enqueue("pay")
        assert marks.committed.wait(20)
        away.left["leases.exchange"] = 1
        until(lambda: away.met["leases.exchange"] == 1, "a turn has failed")
        app.enqueue("quick").result(timeout=20)  # recorded by a turn that began after the worker had compared
        marks.go_on.set()
        assert marks.went_on.wait(20), "the handler was stopped"
    assert (handle.result(timeout=20), handle.get().attempt) == ("paid", 1)


def test_when_the_worker_stops_what_was_cancelled(app: App, elsewhere: App, marks: Marks) -> None:
    with working(elsewhere):
        handle, other = app.enqueue("pay"), app.enqueue("wait")
        assert marks.committed.wait(20)
        assert marks.waits.wait(20)
        app.jobs.cancel(other.id)
        assert marks.stopped.wait(20)
        marks.go_on.set()
        assert marks.went_on.wait(20), "the handler was stopped"
    assert (handle.result(timeout=20), other.state()) == ("paid", State.CANCELLED)


def test_when_the_tick_stops_what_was_cancelled(app: App, elsewhere: App, marks: Marks) -> None:
    handle, other = app.enqueue("pay"), app.enqueue("wait")

    def cancel() -> None:
        assert marks.committed.wait(20)
        assert marks.waits.wait(20)
        app.jobs.cancel(other.id)
        assert marks.stopped.wait(20)
        marks.go_on.set()

    beside = threading.Thread(target=cancel)
    beside.start()
    done = elsewhere.tick()
    beside.join()
    assert marks.went_on.is_set(), "the handler was stopped"
    assert (done.taken, done.succeeded, done.cancelled, done.lost) == (2, 1, 1, 0)
    assert handle.result(timeout=20) == "paid"

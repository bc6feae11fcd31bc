"""Moving jobs from Python; workers find jobs that were moved ahead of their claim position (SC-3)."""

from __future__ import annotations

import asyncio
import threading

import psycopg
import pytest

from holdfast import App, State
from holdfast.app.internals import session_of
from holdfast.engine.job import Enqueued
from holdfast.errors import Conflict, InvalidSetting, NotFound
from tests.app.conftest import NewApp
from tests.support.direct_sql import LISTENERS
from tests.support.features import order_of
from tests.support.stores import new_id
from tests.support.waiting import until
from tests.support.workers import work_off, working

pytestmark = pytest.mark.req("SC-3")


def test_jobs_are_moved_by_app_and_by_handle(app: App) -> None:
    ran: list[int] = []

    @app.job()
    def note(n: int) -> None:
        ran.append(n)

    a, b, c, d = (note.enqueue(n) for n in range(4))
    assert app.jobs.move(d.id, first=True, reason="urgent").state is State.QUEUED
    assert b.move(after=c.id).refused is False
    a.move(last=True)
    assert order_of(session_of(app).store) == [d.id, c.id, b.id, a.id]
    a.move(priority=3)
    last = a.history()[-1]
    assert (last.type, last.actor, last.meta["to"], last.meta["priority"]) == ("move", "tester", "last", 3)
    assert d.history()[-1].meta["reason"] == "urgent"
    work_off(app, concurrency=1)
    assert ran == [0, 3, 2, 1]


def test_async_move(app: App) -> None:
    a, b, c = (app.enqueue("elsewhere", {"n": n}) for n in range(3))

    async def move() -> None:
        assert not (await app.jobs.amove(c.id, before=a.id)).refused
        await a.amove(after=b.id)
        with pytest.raises(NotFound):
            await app.jobs.handle(_unknown().id or "").amove(first=True)
        await session_of(app).store.leave_loop()

    asyncio.run(move())
    assert order_of(session_of(app).store) == [c.id, b.id, a.id]


def _unknown() -> Enqueued:
    return Enqueued(new_id(), True)


def test_handle_raises_the_refusal_that_the_app_returns(app: App) -> None:
    here, there = app.enqueue("elsewhere"), app.enqueue("elsewhere", queue="mail")
    assert app.jobs.move(here.id, after=there.id).reason == "other_queue"
    with pytest.raises(Conflict, match="another queue") as refused:
        here.move(after=there.id)
    assert refused.value.code == "other_queue"
    there.cancel()
    assert app.jobs.move(there.id, first=True).reason == "not_waiting"
    with pytest.raises(Conflict) as refused:
        there.move(first=True)
    assert refused.value.code == "not_waiting"
    with pytest.raises(InvalidSetting):
        here.move()


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_worker_claims_moved_jobs_first_after_its_listener_reconnects(new_app: NewApp) -> None:
    """After reconnecting it assumes that every queue may have been reordered."""
    app, worker_app = new_app(), new_app()
    release = threading.Event()
    ran: list[int] = []

    @worker_app.job()
    def note(n: int) -> None:
        ran.append(n)
        if n == 0:
            release.wait(60)

    handles = [app.enqueue("note", {"n": n}) for n in range(3)]
    with (
        working(worker_app, concurrency=1, poll=120.0) as background,
        psycopg.connect(session_of(app).store.url, autocommit=True) as admin,
    ):
        until(lambda: ran == [0], "the first is running")
        before = until(lambda: set(admin.execute(LISTENERS).fetchall()), "the worker listens")
        assert background.worker is not None
        search = background.worker._claim_order
        search._skip_head_until = float("inf")  # as after a very slow query
        search._reordered.clear()
        admin.execute("set holdfast.notify = off")
        admin.execute("set search_path = holdfast")
        admin.execute("select move(%s, 'first')", (handles[2].id,))
        admin.execute("select pg_terminate_backend(%s)", next(iter(before)))
        until(lambda: set(admin.execute(LISTENERS).fetchall()) - before, "the worker listens again")
        until(lambda: bool(search._reordered), "the worker treats every queue as reordered")
        release.set()
        until(lambda: len(ran) == 3, "all have run")
    assert ran == [0, 2, 1]


def test_worker_claims_jobs_moved_ahead_of_its_position_first(new_app: NewApp) -> None:
    """It was notified; otherwise it would not query the head of the queue for an hour."""
    app, worker_app = new_app(), new_app()
    release = threading.Event()
    ran: list[int] = []

    @worker_app.job()
    def note(n: int) -> None:
        ran.append(n)
        if n == 0:
            release.wait(60)

    handles = [app.enqueue("note", {"n": n}) for n in range(6)]
    with working(worker_app, concurrency=1, poll=120.0) as background:
        until(lambda: ran == [0], "the first is running")
        assert background.worker is not None
        search = background.worker._claim_order
        search._skip_head_until = float("inf")  # as after a very slow query
        handles[5].move(first=True)
        handles[4].move(priority=1)
        if not session_of(app).store.embedded:  # an embedded store finds the head at no cost and always starts there
            assert search.start().after or search._reordered
            until(lambda: bool(search._reordered), "the worker was notified")
        release.set()
        until(lambda: len(ran) == 6, "all have run")
    assert ran == [0, 4, 5, 1, 2, 3]

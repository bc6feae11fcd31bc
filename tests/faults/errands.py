"""What a program asks of its queue, in both colours, and what must be true of what it was told."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import psycopg

from holdfast import App, State
from holdfast.errors import Conflict, StoreUnavailable
from tests.support.waiting import until

Told = Any
"""The answer, or the ``StoreUnavailable`` that came instead."""


@dataclass(frozen=True)
class Errand:
    """``true`` looks from outside, as the same tenant; ``beside`` is what others do there meanwhile. ``sure``: one lost
    connection is no reason not to be told. ``whole``: it is done with one write, and so all of it or nothing."""

    do: Callable[[App], Any]
    ado: Callable[[App], Awaitable[Any]]
    true: Callable[[App, Told], None]
    sure: bool = True
    beside: Callable[[App], None] | None = None
    whole: bool = True

    def tell(self, app: App, colour: str) -> Told:
        try:
            return self.do(app) if colour == "sync" else asyncio.run(self._there(app))
        except (StoreUnavailable, psycopg.OperationalError, sqlite3.OperationalError) as error:
            return error
        finally:
            app.close()

    async def _there(self, app: App) -> Any:
        try:
            return await self.ado(app)
        finally:
            await app.aclose()


# -- jobs --------------------------------------------------------------------------------------------------------


async def _aenqueue(app: App) -> Any:
    return await app.aenqueue("x", {"n": 1})


def _is_one(app: App, told: Told) -> None:
    assert (told.created, [job.id for job in app.jobs.list()]) == (True, [told.id])


async def _aenqueue_keyed(app: App) -> Any:
    return await app.aenqueue("x", {"n": 1}, key="k")


def _is_one_by_its_key(app: App, told: Told) -> None:
    _is_one(app, told)
    again = app.enqueue("x", {"n": 1}, key="k")
    assert (again.created, again.id) == (False, told.id)


def _calls(app: App) -> list[Any]:
    return [app.prepare("x", {"n": 0}, key="k"), *(app.prepare("x", {"n": n}) for n in (1, 2))]


async def _aenqueue_many(app: App) -> Any:
    return await app.aenqueue_many(_calls(app))


def _are_three(app: App, told: Told) -> None:
    assert [each.created for each in told] == [True] * 3
    assert {job.id for job in app.jobs.list()} == {each.id for each in told}


# -- with a transaction of one's own -----------------------------------------------------------------------------


def _borrow(app: App) -> Any:
    with psycopg.connect(app._store.url) as connection:
        connection.execute("insert into note values (%s)", (app._session.tenant,))
        return app.enqueue("x", {"n": 1}, connection=connection)


async def _aborrow(app: App) -> Any:
    async with await psycopg.AsyncConnection.connect(app._store.url) as connection:
        await connection.execute("insert into note values (%s)", (app._session.tenant,))
        return await app.aenqueue("x", {"n": 1}, connection=connection)


def _both_or_neither(app: App, told: Told) -> None:
    with closing(psycopg.connect(app._store.url)) as connection:
        written = connection.execute("select from note where says = %s", (app._session.tenant,)).fetchall()
    jobs = app.jobs.list()
    assert len(jobs) == len(written)
    if not isinstance(told, Exception):
        assert [job.id for job in jobs] == [told.id]


# -- what has become of it, and that it is not to be --------------------------------------------------------------


def _end_it(app: App) -> None:
    """Somebody else does the job that there will be."""
    repository = app.repository()
    (work,) = until(repository.claim, "there is a job")
    repository.mark_success(work.id, "done")
    repository.close()


def _result(app: App) -> Any:
    return app.enqueue("x").result(timeout=20)


async def _aresult(app: App) -> Any:
    return await (await app.aenqueue("x")).aresult(timeout=20)


def _is_done(app: App, told: Told) -> None:
    assert (told, len(app.jobs.list())) == ("done", 1)


def _cancel(app: App) -> Any:
    return app.enqueue("x", key="k").cancel()


async def _acancel(app: App) -> Any:
    return await (await app.aenqueue("x", key="k")).acancel()


def _is_cancelled_once(app: App, told: Told) -> None:
    handle = app.enqueue("x", key="k")
    if isinstance(told, Exception):
        with suppress(Conflict):  # it was
            handle.cancel()
    assert handle.state() is State.CANCELLED
    assert [event.type for event in handle.history()] == ["enqueue", "cancel"]


# -- more than one row --------------------------------------------------------------------------------------------


def _plan(app: App) -> Any:
    plan = app.workflow("month")
    plan.add("x", after=plan.add("x"))
    return plan


async def _astart(app: App) -> Any:
    return await _plan(app).astart()


def _is_whole(app: App, told: Told) -> None:
    (found,) = app.workflows.list()
    assert (found.id, len(app.jobs.list())) == (told.id, 2)


def _limit(app: App) -> Any:
    return app.limits.set(queue="default", concurrency=3)


async def _alimit(app: App) -> Any:
    return await app.limits.aset(queue="default", concurrency=3)


def _is_limited(app: App, told: Told) -> None:
    if isinstance(told, Exception):
        assert [each.concurrency for each in app.limits.list()] in ([], [3])
        _limit(app)
    assert [each.concurrency for each in app.limits.list()] == [3]


ERRANDS = {
    "enqueue": Errand(lambda app: app.enqueue("x", {"n": 1}), _aenqueue, _is_one),
    "key": Errand(lambda app: app.enqueue("x", {"n": 1}, key="k"), _aenqueue_keyed, _is_one_by_its_key),
    "many": Errand(lambda app: app.enqueue_many(_calls(app)), _aenqueue_many, _are_three),
    "borrowed": Errand(_borrow, _aborrow, _both_or_neither, sure=False),
    "result": Errand(_result, _aresult, _is_done, beside=_end_it, whole=False),
    "cancel": Errand(_cancel, _acancel, _is_cancelled_once, sure=False, whole=False),
    "workflow": Errand(lambda app: _plan(app).start(), _astart, _is_whole),
    "limit": Errand(_limit, _alimit, _is_limited, sure=False),
}

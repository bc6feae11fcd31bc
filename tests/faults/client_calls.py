"""Calls of a client program, sync and async, each with a check of its response."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import psycopg

from holdfast import App, State
from holdfast.app.internals import session_of
from holdfast.errors import Conflict, StoreUnavailable
from tests.support.waiting import until

Response = Any
"""The result, or the ``StoreUnavailable`` that was raised instead."""


@dataclass(frozen=True)
class ClientCall:
    """``check`` reads the database directly, as the same tenant; ``concurrent`` runs in another thread meanwhile.
    ``reliable``: the call succeeds despite one lost connection. ``atomic``: the call is one write."""

    call: Callable[[App], Any]
    acall: Callable[[App], Awaitable[Any]]
    check: Callable[[App, Response], None]
    reliable: bool = True
    concurrent: Callable[[App], None] | None = None
    atomic: bool = True

    def run(self, app: App, form: str) -> Response:
        try:
            return self.call(app) if form == "sync" else asyncio.run(self._arun(app))
        except (StoreUnavailable, psycopg.OperationalError, sqlite3.OperationalError) as error:
            return error
        finally:
            app.close()

    async def _arun(self, app: App) -> Any:
        try:
            return await self.acall(app)
        finally:
            await app.aclose()


# -- jobs --------------------------------------------------------------------------------------------------------


def _check_enqueued(app: App, response: Response) -> None:
    assert (response.created, [job.id for job in app.jobs.list()]) == (True, [response.id])


def _check_key(app: App, response: Response) -> None:
    _check_enqueued(app, response)
    again = app.enqueue("x", {"n": 1}, key="k")
    assert (again.created, again.id) == (False, response.id)


def _three_jobs(app: App) -> list[Any]:
    return [app.prepare("x", {"n": 0}, key="k"), *(app.prepare("x", {"n": n}) for n in (1, 2))]


def _check_three_jobs(app: App, response: Response) -> None:
    assert [each.created for each in response] == [True] * 3
    assert {job.id for job in app.jobs.list()} == {each.id for each in response}


# -- in a transaction of the application -------------------------------------------------------------------------


def _borrow(app: App) -> Any:
    with psycopg.connect(session_of(app).store.url) as connection:
        connection.execute("insert into note values (%s)", (session_of(app).tenant,))
        return app.enqueue("x", {"n": 1}, connection=connection)


async def _aborrow(app: App) -> Any:
    async with await psycopg.AsyncConnection.connect(session_of(app).store.url) as connection:
        await connection.execute("insert into note values (%s)", (session_of(app).tenant,))
        return await app.aenqueue("x", {"n": 1}, connection=connection)


def _check_both_or_neither(app: App, response: Response) -> None:
    with closing(psycopg.connect(session_of(app).store.url)) as connection:
        written = connection.execute("select from note where says = %s", (session_of(app).tenant,)).fetchall()
    jobs = app.jobs.list()
    assert len(jobs) == len(written)
    if not isinstance(response, Exception):
        assert [job.id for job in jobs] == [response.id]


# -- results and cancellation ------------------------------------------------------------------------------------


def _run_job(app: App) -> None:
    """Run the job of the call."""
    repository = app.repository()
    (work,) = until(repository.claim, "there is a job")
    repository.mark_success(work.id, "done")
    repository.close()


async def _aresult(app: App) -> Any:
    return await (await app.aenqueue("x")).aresult(timeout=20)


def _check_result(app: App, response: Response) -> None:
    assert (response, len(app.jobs.list())) == ("done", 1)


async def _acancel(app: App) -> Any:
    return await (await app.aenqueue("x", key="k")).acancel()


def _check_cancelled_once(app: App, response: Response) -> None:
    handle = app.enqueue("x", key="k")
    if isinstance(response, Exception):
        with suppress(Conflict):  # it was cancelled before
            handle.cancel()
    assert handle.state() is State.CANCELLED
    assert [event.type for event in handle.history()] == ["enqueue", "cancel"]


# -- calls that write several rows -------------------------------------------------------------------------------


def _workflow(app: App) -> Any:
    plan = app.workflow("month")
    plan.add("x", after=plan.add("x"))
    return plan


def _check_workflow(app: App, response: Response) -> None:
    (workflow,) = app.workflows.list()
    assert (workflow.id, len(app.jobs.list())) == (response.id, 2)


LIMIT: dict[str, Any] = {"queue": "default", "concurrency": 3}


def _check_limit(app: App, response: Response) -> None:
    if isinstance(response, Exception):
        assert [each.concurrency for each in app.limits.list()] in ([], [3])
        app.limits.set(**LIMIT)
    assert [each.concurrency for each in app.limits.list()] == [3]


CLIENT_CALLS = {
    "enqueue": ClientCall(
        lambda app: app.enqueue("x", {"n": 1}), lambda app: app.aenqueue("x", {"n": 1}), _check_enqueued
    ),
    "key": ClientCall(
        lambda app: app.enqueue("x", {"n": 1}, key="k"), lambda app: app.aenqueue("x", {"n": 1}, key="k"), _check_key
    ),
    "many": ClientCall(
        lambda app: app.enqueue_many(_three_jobs(app)),
        lambda app: app.aenqueue_many(_three_jobs(app)),
        _check_three_jobs,
    ),
    "connection": ClientCall(_borrow, _aborrow, _check_both_or_neither, reliable=False),
    "result": ClientCall(
        lambda app: app.enqueue("x").result(timeout=20), _aresult, _check_result, concurrent=_run_job, atomic=False
    ),
    "cancel": ClientCall(
        lambda app: app.enqueue("x", key="k").cancel(), _acancel, _check_cancelled_once, reliable=False, atomic=False
    ),
    "workflow": ClientCall(lambda app: _workflow(app).start(), lambda app: _workflow(app).astart(), _check_workflow),
    "limit": ClientCall(
        lambda app: app.limits.set(**LIMIT), lambda app: app.limits.aset(**LIMIT), _check_limit, reliable=False
    ),
}

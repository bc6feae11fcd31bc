"""Calls of a client program on a SQLite file: those of ``client_calls``, calls on the application's own connection with
each way to begin a transaction, reading events, and processing jobs."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import aiosqlite

from holdfast import App, Retry, State, SyncContext
from holdfast.app.internals import session_of
from holdfast.app.repository import Work
from holdfast.errors import StoreUnavailable
from holdfast.stores.sqlite import connections
from tests.faults.client_calls import CLIENT_CALLS, ClientCall, Response
from tests.faults.sqlite_faults import Counted
from tests.faults.workload import AT_ONCE
from tests.support.caller_connections import path_of
from tests.support.waiting import until


def _note(app: App) -> tuple[str, tuple[str]]:
    return "insert into note values (?)", (session_of(app).tenant,)


# -- on a connection of the application --------------------------------------------------------------------------


def _settings(**more: Any) -> dict[str, Any]:
    return {"timeout": connections.BUSY_SECONDS, "factory": Counted} | more


@contextmanager
def _connect(app: App, **settings: Any) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path_of(session_of(app).store.url), **_settings(**settings))) as connection:
        yield connection
        connection.commit()


def _enqueue(app: App, connection: Any) -> Any:
    """A refused enqueue leaves the transaction as it was: it can still be rolled back or continued."""
    before = connection.in_transaction
    try:
        return app.enqueue("x", {"n": 1}, connection=connection)
    except Exception:
        assert connection.in_transaction <= before, "the enqueue left a transaction open"
        raise


def _after_write(app: App) -> Any:
    """The transaction has written before, so it has the lock."""
    with _connect(app) as connection:
        connection.execute(*_note(app))
        return _enqueue(app, connection)


def _at_begin(app: App) -> Any:
    """The enqueue is the first statement, and Python begins the transaction with it."""
    with _connect(app) as connection:
        handle = _enqueue(app, connection)
        connection.execute(*_note(app))
        return handle


def _after_read(app: App) -> Any:
    """The transaction has read, and sees the file as it was then."""
    with _connect(app, isolation_level=None) as connection:
        connection.execute("begin")
        connection.execute("select count(*) from note").fetchall()
        handle = _enqueue(app, connection)
        connection.execute(*_note(app))
        return handle


def _autocommit(app: App) -> Any:
    """Autocommit: no transaction."""
    with _connect(app, isolation_level=None) as connection:
        return _enqueue(app, connection)


async def _aafter_write(app: App) -> Any:
    async with aiosqlite.connect(path_of(session_of(app).store.url), **_settings()) as connection:
        await connection.execute(*_note(app))
        handle = await app.aenqueue("x", {"n": 1}, connection=connection)
        await connection.commit()
        return handle


async def _aat_begin(app: App) -> Any:
    async with aiosqlite.connect(path_of(session_of(app).store.url), **_settings()) as connection:
        handle = await app.aenqueue("x", {"n": 1}, connection=connection)
        await connection.execute(*_note(app))
        await connection.commit()
        return handle


async def _aautocommit(app: App) -> Any:
    async with aiosqlite.connect(path_of(session_of(app).store.url), **_settings(isolation_level=None)) as connection:
        return await app.aenqueue("x", {"n": 1}, connection=connection)


def _notes(app: App) -> int:
    with closing(sqlite3.connect(path_of(session_of(app).store.url))) as connection:
        (count,) = connection.execute("select count(*) from note where says = ?", (session_of(app).tenant,)).fetchone()
        return int(count)


def _check_both_or_neither(app: App, response: Response) -> None:
    _check_job(app, response)
    assert _notes(app) == (not isinstance(response, Exception))


def _check_job(app: App, response: Response) -> None:
    assert [job.id for job in app.jobs.list()] == ([] if isinstance(response, Exception) else [response.id])


# -- reading events ----------------------------------------------------------------------------------------------


def _read(app: App) -> Any:
    """Events read before an error are delivered again, and none is skipped."""
    app.enqueue_many([app.prepare("x", {"n": n}) for n in range(5)])
    seqs: list[int] = []
    try:
        seqs += (event.seq for event in app.events.read("reader", page=2))
    except StoreUnavailable as error:
        return error, seqs
    return None, seqs


async def _aread(app: App) -> Any:
    await app.aenqueue_many([app.prepare("x", {"n": n}) for n in range(5)])
    seqs: list[int] = []
    try:
        async for event in app.events.aread("reader", page=2):
            seqs += [event.seq]
    except StoreUnavailable as error:
        return error, seqs
    return None, seqs


def _check_all_events(app: App, response: Response) -> None:
    if isinstance(response, Exception):
        assert not app.jobs.list()
        return
    error, seen = response
    rest = [event.seq for event in app.events.read("reader")]
    all_of_it = [event.seq for event in app.events.read("another")]
    assert len(all_of_it) == 5
    assert sorted({*seen, *rest}) == all_of_it
    assert error or seen == all_of_it


# -- processing jobs ---------------------------------------------------------------------------------------------


def _declare_pay(app: App) -> None:
    @app.job("pay", retry=Retry(max_attempts=50, max_crashes=50))
    def pay(ctx: SyncContext) -> None:
        with (block := ctx.transaction()) as connection:
            connection.execute(*_note(app))
            block.result("paid")


def _tick(app: App) -> Any:
    _declare_pay(app)
    app.enqueue("pay")
    return app.tick(5)


async def _atick(app: App) -> Any:
    _declare_pay(app)
    await app.aenqueue("pay")
    return await app.atick(5)


def _check_paid_once(app: App, response: Response) -> None:
    """Run the job to its end, also after its lease has expired or its retry is due."""
    if isinstance(response, Exception) and not app.jobs.list():
        return
    _declare_pay(app)
    (job,) = app.jobs.list()
    for _ in range(50):
        if app.jobs.handle(job.id).state().finished:
            break
        _advance_a_day(app)
        app.tick(5)
    assert app.jobs.handle(job.id).result(timeout=1) == "paid"
    assert _notes(app) == 1


_days = itertools.count(1)


def _advance_a_day(app: App) -> None:
    """Advance the clock of the file, which never goes back."""
    session_of(app).store.run(session_of(app).store.clock.set(timedelta(days=next(_days)), None))


def _claim(app: App) -> Any:
    app.enqueue("x", retry=AT_ONCE)
    with closing(app.repository()) as repository:
        (work,) = repository.claim()
        repository.mark_success(work.id, "done")
    return "done"


def _check_done(app: App, response: Response) -> None:
    if isinstance(response, Exception) and app.jobs.list(state=State.IN_PROGRESS):
        for _ in range(2):  # recover the held job, then make it due
            _advance_a_day(app)
            app.tick()
    with closing(app.repository()) as repository:
        for work in repository.claim():
            repository.mark_success(work.id, "done")
    assert all(job.state is State.SUCCEEDED for job in app.jobs.list())


def _run_job(app: App) -> None:
    """Run the job of the call, and retry after each fault."""
    repository = app.repository()

    def claimed() -> list[Work]:
        with suppress(StoreUnavailable):
            return repository.claim()
        return []

    def marked(job: str) -> bool:
        with suppress(StoreUnavailable):
            repository.mark_success(job, "done")
            return True
        return False

    (work,) = until(claimed, "there is a job")
    until(lambda: marked(work.id), "it is done")
    with suppress(StoreUnavailable):
        repository.close()


def _as_async(call: Callable[[App], Any]) -> Any:
    async def acall(app: App) -> Any:
        return call(app)

    return acall


SQLITE_CLIENT_CALLS = {
    **{name: call for name, call in CLIENT_CALLS.items() if name not in ("connection", "result")},
    "result": replace(CLIENT_CALLS["result"], concurrent=_run_job),
    "connection, after write": ClientCall(_after_write, _aafter_write, _check_both_or_neither, reliable=False),
    "connection, at begin": ClientCall(_at_begin, _aat_begin, _check_both_or_neither, reliable=False),
    "connection, after read": ClientCall(_after_read, _as_async(_after_read), _check_both_or_neither, reliable=False),
    "connection, autocommit": ClientCall(_autocommit, _aautocommit, _check_job),
    "events": ClientCall(_read, _aread, _check_all_events, atomic=False),
    "tick": ClientCall(_tick, _atick, _check_paid_once, atomic=False),
    "repository": ClientCall(_claim, _as_async(_claim), _check_done, atomic=False),
}

"""What a program asks of a queue in a SQLite file: as anywhere (``errands``), on connections of its own in each of the
ways they have of beginning, and as whoever does the jobs."""

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
from holdfast.app.repository import Work
from holdfast.errors import StoreUnavailable
from holdfast.stores.sqlite import connections
from tests.faults.errands import ERRANDS, Errand, Told
from tests.faults.load import AT_ONCE
from tests.faults.trouble import Counted
from tests.support.caller_connections import path_of
from tests.support.waiting import until


def _note(app: App) -> tuple[str, tuple[str]]:
    return "insert into note values (?)", (app._session.tenant,)


# -- with a transaction of one's own -----------------------------------------------------------------------------


@contextmanager
def _own(app: App, **settings: Any) -> Iterator[sqlite3.Connection]:
    with closing(
        sqlite3.connect(path_of(app._store.url), timeout=connections.BUSY_SECONDS, factory=Counted, **settings)
    ) as connection:
        yield connection
        connection.commit()


def _enqueue(app: App, connection: Any) -> Any:
    """Refused in our words, and the transaction is where it was: it can still be rolled back, or go on."""
    before = connection.in_transaction
    try:
        return app.enqueue("x", {"n": 1}, connection=connection)
    except Exception:
        assert connection.in_transaction <= before, "a transaction was left open on it"
        raise


def _writing(app: App) -> Any:
    """It has written before, so it has the lock."""
    with _own(app) as connection:
        connection.execute(*_note(app))
        return _enqueue(app, connection)


def _first(app: App) -> Any:
    """The job comes first, and Python begins with it."""
    with _own(app) as connection:
        found = _enqueue(app, connection)
        connection.execute(*_note(app))
        return found


def _having_read(app: App) -> Any:
    """It has read, and looks at the file as it was then."""
    with _own(app, isolation_level=None) as connection:
        connection.execute("begin")
        connection.execute("select count(*) from note").fetchall()
        found = _enqueue(app, connection)
        connection.execute(*_note(app))
        return found


def _alone(app: App) -> Any:
    """No transaction at all: each statement by itself, and the job as well."""
    with _own(app, isolation_level=None) as connection:
        return _enqueue(app, connection)


async def _awriting(app: App) -> Any:
    async with aiosqlite.connect(
        path_of(app._store.url), timeout=connections.BUSY_SECONDS, factory=Counted
    ) as connection:
        await connection.execute(*_note(app))
        found = await app.aenqueue("x", {"n": 1}, connection=connection)
        await connection.commit()
        return found


async def _afirst(app: App) -> Any:
    async with aiosqlite.connect(
        path_of(app._store.url), timeout=connections.BUSY_SECONDS, factory=Counted
    ) as connection:
        found = await app.aenqueue("x", {"n": 1}, connection=connection)
        await connection.execute(*_note(app))
        await connection.commit()
        return found


async def _aalone(app: App) -> Any:
    path = path_of(app._store.url)
    async with aiosqlite.connect(
        path, timeout=connections.BUSY_SECONDS, factory=Counted, isolation_level=None
    ) as connection:
        return await app.aenqueue("x", {"n": 1}, connection=connection)


def _notes(app: App) -> int:
    with closing(sqlite3.connect(path_of(app._store.url))) as connection:
        (found,) = connection.execute("select count(*) from note where says = ?", (app._session.tenant,)).fetchone()
        return int(found)


def _both_or_neither(app: App, told: Told) -> None:
    assert [job.id for job in app.jobs.list()] == ([] if isinstance(told, Exception) else [told.id])
    assert _notes(app) == (not isinstance(told, Exception))


def _is_there(app: App, told: Told) -> None:
    assert [job.id for job in app.jobs.list()] == ([] if isinstance(told, Exception) else [told.id])


# -- reading along ------------------------------------------------------------------------------------------------


def _read(app: App) -> Any:
    """What it was given before it was told of trouble is given again, and nothing is passed over."""
    app.enqueue_many([app.prepare("x", {"n": n}) for n in range(5)])
    found: list[int] = []
    try:
        found += (event.seq for event in app.events.read("reader", page=2))
    except StoreUnavailable as error:
        return error, found
    return None, found


async def _aread(app: App) -> Any:
    await app.aenqueue_many([app.prepare("x", {"n": n}) for n in range(5)])
    found: list[int] = []
    try:
        async for event in app.events.aread("reader", page=2):
            found += [event.seq]
    except StoreUnavailable as error:
        return error, found
    return None, found


def _has_read_all(app: App, told: Told) -> None:
    if isinstance(told, Exception):
        assert not app.jobs.list()
        return
    error, seen = told
    rest = [event.seq for event in app.events.read("reader")]
    all_of_it = [event.seq for event in app.events.read("another")]
    assert len(all_of_it) == 5
    assert sorted({*seen, *rest}) == all_of_it
    assert error or seen == all_of_it


# -- doing the jobs ------------------------------------------------------------------------------------------------


def _pays(app: App) -> None:
    @app.job("pay", retry=Retry(max_attempts=50, max_crashes=50))
    def pay(ctx: SyncContext) -> None:
        with (block := ctx.transaction()) as connection:
            connection.execute(*_note(app))
            block.result("paid")


def _tick(app: App) -> Any:
    _pays(app)
    app.enqueue("pay")
    return app.tick(5)


async def _atick(app: App) -> Any:
    _pays(app)
    await app.aenqueue("pay")
    return await app.atick(5)


def _is_paid_once(app: App, told: Told) -> None:
    """If need be by somebody else, when the lease has lapsed or the retry is due."""
    if isinstance(told, Exception) and not app.jobs.list():
        return
    _pays(app)
    (job,) = app.jobs.list()
    for _ in range(50):
        if app.jobs.handle(job.id).state().finished:
            break
        _wait_a_day(app)
        app.tick(5)
    assert app.jobs.handle(job.id).result(timeout=1) == "paid"
    assert _notes(app) == 1


_days = itertools.count(1)


def _wait_a_day(app: App) -> None:
    """The clock is the file's, and does not go back."""
    app._store.run(app._store.clock.set(timedelta(days=next(_days)), None))


def _claim(app: App) -> Any:
    app.enqueue("x", retry=AT_ONCE)
    with closing(app.repository()) as repository:
        (work,) = repository.claim()
        repository.mark_success(work.id, "done")
    return "done"


def _is_free_or_done(app: App, told: Told) -> None:
    if isinstance(told, Exception) and app.jobs.list(state=State.IN_PROGRESS):
        for _ in range(2):  # what was held is free again, and due
            _wait_a_day(app)
            app.tick()
    with closing(app.repository()) as repository:
        for work in repository.claim():
            repository.mark_success(work.id, "done")
    assert all(job.state is State.SUCCEEDED for job in app.jobs.list())


def _end_it(app: App) -> None:
    """Whoever does the job that there will be meets the same trouble, and tries again."""

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


def _sync(do: Callable[[App], Any]) -> Any:
    async def ado(app: App) -> Any:
        return do(app)

    return ado


ON_A_FILE = {
    **{name: errand for name, errand in ERRANDS.items() if name not in ("borrowed", "result")},
    "result": replace(ERRANDS["result"], beside=_end_it),
    "borrowed, having written": Errand(_writing, _awriting, _both_or_neither, sure=False),
    "borrowed, at first": Errand(_first, _afirst, _both_or_neither, sure=False),
    "borrowed, having read": Errand(_having_read, _sync(_having_read), _both_or_neither, sure=False),
    "borrowed, alone": Errand(_alone, _aalone, _is_there),
    "events": Errand(_read, _aread, _has_read_all, whole=False),
    "tick": Errand(_tick, _atick, _is_paid_once, whole=False),
    "repository": Errand(_claim, _sync(_claim), _is_free_or_done, whole=False),
}

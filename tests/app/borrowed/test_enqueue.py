"""Enqueueing on the caller's connection: the job exists exactly if that transaction commits (HF-3)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from holdfast import App, Kind, State
from holdfast.errors import Conflict, HoldfastError, NotFound
from tests.app.notes import connect, notes
from tests.support.caller_connections import Borrower, Psycopg, Sqlite

pytestmark = [pytest.mark.req("HF-3"), pytest.mark.sample(1)]


@pytest.fixture
def send(app: App) -> Kind[[str], str]:
    @app.job()
    def send(to: str) -> str:
        return f"sent to {to}"

    return send


@pytest.mark.sample(20)  # every library
def test_job_and_write_are_visible_after_commit_and_not_before(
    app: App, url: str, borrower: Borrower, send: Kind[[str], str]
) -> None:
    borrower.begin()
    borrower.execute("insert into note values ('mine')")
    handle = borrower.enqueue(send, "ada")
    assert (handle.created, app.jobs.list(), notes(url)) == (True, [], [])
    borrower.commit()
    assert [job.id for job in app.jobs.list()] == [handle.id]
    assert (handle.state(), handle.get().payload, notes(url)) == (State.QUEUED, {"to": "ada"}, ["mine"])
    app.run_worker(burst=True, poll=0.02)
    assert handle.result(timeout=10) == "sent to ada"


def test_job_and_write_are_gone_after_rollback(app: App, url: str, borrower: Borrower, send: Kind[[str], str]) -> None:
    borrower.begin()
    handle = borrower.enqueue(send, "ada")  # first, so that enqueue opens the transaction
    borrower.execute("insert into note values ('mine')")
    borrower.rollback()
    assert (app.jobs.list(), notes(url)) == ([], [])
    with pytest.raises(NotFound):
        handle.get()
    borrower.begin()
    borrower.execute("insert into note values ('later')")  # the connection is still usable
    borrower.commit()
    assert notes(url) == ["later"]


def test_savepoint_rollback_removes_the_job(app: App, url: str, borrower: Borrower, send: Kind[[str], str]) -> None:
    borrower.begin()
    borrower.execute("insert into note values ('kept')")
    kept = borrower.enqueue(send, "kept")
    borrower.execute("savepoint mine")
    borrower.enqueue(send, "dropped")
    borrower.execute("insert into note values ('dropped')")
    borrower.execute("rollback to savepoint mine")
    after = borrower.enqueue(send, "after")
    borrower.commit()
    assert {job.id for job in app.jobs.list()} == {kept.id, after.id}
    assert notes(url) == ["kept"]


def test_refusal_leaves_the_transaction_usable(app: App, url: str, borrower: Borrower, send: Kind[[str], str]) -> None:
    send.using(key="k").enqueue("before")
    borrower.begin()
    borrower.execute("insert into note values ('one')")
    again = borrower.enqueue(send, "before", key="k")
    assert (again.created, again.reason) == (False, "duplicate_key")
    with pytest.raises(Conflict) as caught:
        borrower.enqueue(send, "other", key="k")
    assert caught.value.code == "idempotency_conflict"
    with pytest.raises(NotFound):
        borrower.enqueue(send, "orphan", parent="01a1de87-6b74-70b8-bbed-192362a7945f")
    borrower.execute("insert into note values ('two')")
    borrower.commit()
    assert (notes(url), len(app.jobs.list())) == (["one", "two"], 1)


def test_database_error_leaves_the_transaction_usable(
    app: App, url: str, borrower: Borrower, send: Kind[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = send.enqueue("first")
    monkeypatch.setattr("holdfast.kind.new_id", lambda: first.id)  # the database refuses a second job with this id
    borrower.begin()
    borrower.execute("insert into note values ('one')")
    with pytest.raises(HoldfastError) as caught:
        borrower.enqueue(send, "second")
    assert caught.value.code == "already_exists"
    borrower.execute("insert into note values ('two')")
    borrower.commit()
    assert (notes(url), [job.id for job in app.jobs.list()]) == (["one", "two"], [first.id])
    if url.startswith("sqlite"):
        with connect(url) as connection:  # the partial writes of the operation are gone too
            assert connection.execute("select actor, now, floor from holdfast_clock").fetchall() == [(None, None, None)]


def test_error_of_the_program_rolls_the_job_back(
    app: App, url: str, borrower: Borrower, send: Kind[[str], str]
) -> None:
    borrower.begin()
    borrower.execute("insert into note values ('once')")
    borrower.enqueue(send, "ada")
    with pytest.raises(Exception, match=r"(?i)unique"):
        borrower.execute("insert into note values ('once')")
    borrower.rollback()
    assert (notes(url), app.jobs.list()) == ([], [])


def test_enqueue_many_and_enqueue_by_name_join_the_transaction(
    app: App, url: str, borrower: Borrower, send: Kind[[str], str]
) -> None:
    borrower.begin()
    calls = [send.prepare("a"), send.using(key="k").prepare("b"), send.using(key="k").prepare("b")]
    calls += [
        send.using(tenant="acme").prepare("c"),
        send.using(parent="01a1de87-6b74-70b8-bbed-192362a7945f").prepare("d"),
    ]
    handles = borrower.enqueue_many(app, calls)
    named = borrower.enqueue_by_name(app, "elsewhere", {"n": ["%s", "?", ":p1", "$1", "é'\"\\"]})
    assert app.jobs.list() == []
    borrower.commit()
    assert [(handle.created, handle.reason) for handle in handles] == [
        (True, None),
        (True, None),
        (False, "duplicate_key"),
        (True, None),
        (False, "parent_not_found"),
    ]
    assert (handles[3].get().tenant, handles[1].id) == ("acme", handles[2].id)
    assert named.get().payload == {"n": ["%s", "?", ":p1", "$1", "é'\"\\"]}


def test_job_options_are_stored(app: App, borrower: Borrower, send: Kind[[str], str]) -> None:
    borrower.begin()
    handle = borrower.enqueue(
        send, "ada", delay="1h", queue="mail", priority=3, tags=["a", "b"], correlation_id="c-1", enqueued_by="eve"
    )
    borrower.commit()
    job = handle.get()
    assert job.due_at is not None
    assert (job.queue, job.priority, job.tags, job.correlation_id) == ("mail", 3, ("a", "b"), "c-1")
    assert [(event.type, event.actor) for event in handle.history()] == [("enqueue", "eve")]


@pytest.mark.parametrize("case", [("postgres", Psycopg), ("sqlite", Sqlite)], ids=["postgres", "sqlite"])
def test_calls_for_two_connections_cannot_be_enqueued_together(
    app: App, url: str, case: tuple[str, Callable[[str], Borrower]], send: Kind[[str], str]
) -> None:
    with closing(case[1](url)) as one, closing(case[1](url)) as other:
        prepared = send.using(connection=one.connection).prepare("a")
        with pytest.raises(HoldfastError) as caught:
            app.enqueue_many([prepared, send.using(connection=other.connection).prepare("b")])
        assert caught.value.code == "conflicting_options"
        app.enqueue_many([prepared, send.prepare("b")])  # one bound call decides the connection for all
        assert app.jobs.list() == []
        one.commit()
        assert len(app.jobs.list()) == 2

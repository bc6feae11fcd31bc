"""Notifications reach every listener, in this process and in others; correctness does not depend on them."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from holdfast.features.assembly import Store, open_store
from holdfast.features.limits.model import Rule
from holdfast.stores.listener import Names
from tests.support.direct_sql import LISTENERS, PostgresByHand
from tests.support.stores import claim, open_lease, put, put_one, settle, spec
from tests.support.waiting import until

pytestmark = pytest.mark.req("JF-6", "CX-11", "JF-7")

LIMIT = 20.0


class Listener:
    """Records notifications; `expect` waits for one of several acceptable ones."""

    def __init__(self) -> None:
        self._notified: list[str] = []
        self._change = threading.Condition()

    def __call__(self, what: str) -> None:
        with self._change:
            self._notified.append(what)
            self._change.notify_all()

    def forget(self) -> None:
        with self._change:
            self._notified.clear()

    def expect(self, *any_of: str) -> None:
        with self._change:
            assert self._change.wait_for(lambda: set(any_of) & set(self._notified), LIMIT), (any_of, self._notified)

    @property
    def notified(self) -> list[str]:
        with self._change:
            return list(self._notified)


def listen(store: Store, listener: Listener, names: Names | None = None) -> Callable[[], None]:
    """Subscribe, and await jobs in two queues. Returns when they are announced: the listener was notified at the start,
    and for each queue when it was announced from then on, because earlier notifications may be missing."""
    stop = store.listen(listener, names, lambda: ["mail", "last"])
    until(lambda: len(listener.notified) >= (3 if store.url.startswith("postgres") else 1), "its queues are announced")
    listener.forget()
    return stop


@pytest.fixture
def other(store: Store) -> Iterator[Store]:
    """The same database, as another process has it."""
    with closing(open_store(store.url)) as opened:
        yield opened


@pytest.fixture
def listener(store: Store) -> Iterator[Listener]:
    listener = Listener()
    stop = listen(store, listener)
    yield listener
    stop()


def test_enqueue_notifies(store: Store, other: Store, listener: Listener) -> None:
    put_one(other, queue="mail")
    listener.expect("mail", "")
    listener.forget()
    put_one(store, queue="mail")
    listener.expect("mail", "")


@pytest.fixture
def many_files() -> Iterator[None]:
    """A process with more than a thousand open files, as a service with as many clients has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    files = [os.dup(0) for _ in range(1100)]
    yield
    for file in files:
        os.close(file)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_notifications_arrive_beside_a_thousand_open_files(store: Store, other: Store) -> None:
    with closing(open_store(store.url)) as late:
        listener = Listener()
        stop = listen(late, listener)
        put_one(other, queue="mail")
        listener.expect("mail", "")
        stop()


@pytest.fixture
def channel(owned_postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(owned_postgres_url, autocommit=True) as connection:
        connection.execute("listen holdfast")
        yield connection


@pytest.mark.req("CX-11", "JF-7")
def test_job_is_announced_only_while_its_queue_is_awaited(
    owned_postgres_url: str, channel: psycopg.Connection[Any]
) -> None:
    """Commits that notify wait for one another."""

    def announced() -> int:
        put_one(store, queue="mail")
        put(store, spec(queue="mail"), spec(queue="mail"))
        return len(list(channel.notifies(timeout=0.5)))

    with closing(open_store(owned_postgres_url)) as store:
        queues = ["last"]
        heard: list[str] = []
        stop = store.listen(heard.append, lambda: ["mail", "last"], lambda: queues)
        until(lambda: "last" in heard, "its queue is announced")
        assert announced() == 0
        queues.append("mail")
        store.refresh_listening()
        until(lambda: "mail" in heard, "the other one as well")
        assert announced() == 2, "one for each transaction"
        queues.remove("mail")
        store.refresh_listening()
        until(lambda: announced() == 0, "no longer")
        put_one(store, queue="last")
        assert len(list(channel.notifies(timeout=5, stop_after=1))) == 1
        stop()


@pytest.mark.req("CX-11", "HF-14")
def test_every_job_is_announced_to_a_listener_of_the_first_release(
    owned_postgres_url: str, channel: psycopg.Connection[Any]
) -> None:
    """It asks for the key of the signals, and says no more about what it awaits."""
    with closing(open_store(owned_postgres_url)) as store:
        with psycopg.connect(owned_postgres_url, autocommit=True) as old:
            old.execute("select holdfast.signal_key()")
            put_one(store, queue="any")
            assert len(list(channel.notifies(timeout=10, stop_after=1))) == 1
        until(
            lambda: channel.execute("select 1 from pg_locks where locktype = 'advisory'").fetchone() is None, "it left"
        )
        put_one(store, queue="any")
        assert list(channel.notifies(timeout=0.5)) == []


@pytest.mark.req("CX-11", "JF-7")
def test_job_of_an_earlier_transaction_is_noticed_when_it_commits(owned_postgres_url: str) -> None:
    """It was inserted before its queue was awaited, so it is not announced."""
    with (
        closing(open_store(owned_postgres_url)) as store,
        psycopg.connect(owned_postgres_url) as producer,
    ):
        producer.execute("select holdfast.enqueue('k', queue => 'mail')")
        heard: list[str] = []
        stop = store.listen(heard.append, lambda: ["mail"], lambda: ["mail"])
        until(lambda: "mail" in heard, "its queue is announced")
        heard.clear()
        producer.commit()
        until(lambda: "mail" in heard, "the commit is noticed")
        stop()


def test_promotion_notifies(store: Store, other: Store, listener: Listener) -> None:
    put_one(other, queue="mail", delay=0.05)
    listener.forget()
    while not other.run(other.leases.promote()):
        pass
    listener.expect("mail", "")


@pytest.mark.req("SC-16")
def test_freed_slot_of_a_full_queue_notifies(store: Store, other: Store, listener: Listener) -> None:
    """Its jobs are not parked: a worker that found the queue full sleeps."""
    other.run(other.limits.set(Rule("queue", "mail", 1), "ada", "default"))
    put_one(other, queue="mail")
    put_one(other, queue="last")
    listener.expect("last", "")
    claims = claim(other, open_lease(other), queues=("mail",))
    listener.forget()
    settle(other, claims)
    listener.expect("mail", "")


def test_cancelling_notifies_the_lease(store: Store, other: Store, listener: Listener) -> None:
    job_id = put_one(other)
    lease = open_lease(store)
    claim(store, lease)
    listener.forget()
    other.run(other.jobs.operate("cancel", [job_id], None, "ada", "default"))
    listener.expect(lease, "")


def test_end_of_a_watched_job_notifies(store: Store, other: Store, listener: Listener) -> None:
    job_id = put_one(other)
    (job,) = claim(other, open_lease(other))
    store.run(store.jobs.watch(job_id, "default", 60))
    listener.forget()
    settle(other, job)
    listener.expect(job_id, "")


def test_end_of_an_unwatched_job_does_not_notify(owned_postgres_url: str) -> None:
    with closing(open_store(owned_postgres_url)) as store:
        listener, ids = Listener(), list[str]()
        stop = listen(store, listener, lambda: ["default", "mail", "last", *ids])
        ids += [put_one(store) for _ in range(3)]
        settle(store, claim(store, open_lease(store), 3))
        put_one(store, queue="last")
        listener.expect("last")
        assert set(listener.notified) <= {"mail", "last"}, "the first two are notified when transactions end"
        stop()


def test_stopped_listener_gets_no_notification(store: Store, other: Store) -> None:
    gone, there = Listener(), Listener()
    stop = listen(store, gone)
    stop_there = store.listen(there)
    stop_awaiting = store.listen(Listener(), awaited=lambda: ["mail"])
    stop()
    gone.forget()
    there.forget()
    put_one(other, queue="mail")
    there.expect("mail", "")
    assert gone.notified == []
    stop_there()
    stop_awaiting()


def test_listener_reconnects_after_a_lost_connection(postgres_url: str) -> None:
    with closing(open_store(postgres_url)) as store, closing(PostgresByHand(postgres_url)) as by_hand:
        listener = Listener()
        stop = store.listen(listener, lambda: ["mail"], lambda: ["mail"])
        listener.expect("mail")
        listener.forget()
        ((pid,),) = by_hand.execute(LISTENERS)
        by_hand.execute("select pg_terminate_backend(:pid)", {"pid": pid})
        listener.expect("")  # sent when the connection is lost, and when it is back
        listener.expect("mail")
        until(lambda: store.listening and listener.notified.count("") == 2, "it is back")
        listener.forget()
        put_one(store, queue="mail")
        listener.expect("mail")
        stop()

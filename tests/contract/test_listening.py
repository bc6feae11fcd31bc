"""Notifications reach every listener, in this process and in others; correctness does not depend on them."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from holdfast.features.assembly import Store, open_store
from holdfast.features.limits.model import Rule
from tests.support.direct_sql import PostgresByHand
from tests.support.stores import claim, open_lease, put_one, settle
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


@pytest.fixture
def other(store: Store) -> Iterator[Store]:
    """The same database, as another process has it."""
    with closing(open_store(store.url)) as opened:
        yield opened


@pytest.fixture
def listener(store: Store) -> Iterator[Listener]:
    listener = Listener()
    stop = store.listen(listener)
    listener.expect("")  # sent at the start, because earlier notifications may be missing
    listener.forget()
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
        stop = late.listen(listener)
        listener.expect("")
        listener.forget()
        put_one(other, queue="mail")
        listener.expect("mail", "")
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
        stop = store.listen(listener, lambda: ["default", "last", *ids])
        listener.expect("")
        listener.forget()
        ids += [put_one(store) for _ in range(3)]
        settle(store, claim(store, open_lease(store), 3))
        put_one(store, queue="last")
        listener.expect("last")
        assert set(listener.notified) == {"default", "last"}
        stop()


def test_stopped_listener_gets_no_notification(store: Store, other: Store) -> None:
    gone, there = Listener(), Listener()
    stop = store.listen(gone)
    stop_there = store.listen(there)
    gone.expect("")
    stop()
    gone.forget()
    there.forget()
    put_one(other, queue="mail")
    there.expect("mail", "")
    assert gone.notified == []
    stop_there()


def test_listener_reconnects_after_a_lost_connection(postgres_url: str) -> None:
    with closing(open_store(postgres_url)) as store, closing(PostgresByHand(postgres_url)) as by_hand:
        listener = Listener()
        stop = store.listen(listener, lambda: ["mail"])
        listener.expect("")
        listener.forget()
        by_hand.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and query like 'listen%'"
        )
        listener.expect("")  # sent when the connection is lost, and when it is back
        until(lambda: store.listening and len(listener.notified) == 2, "it is back")
        listener.forget()
        put_one(store, queue="mail")
        listener.expect("mail")
        stop()

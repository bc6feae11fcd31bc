"""Being told: hints reach whoever listens, in this process and in others, and nothing depends on them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from holdfast.features.assembly import Store, open_store
from tests.support.direct_sql import PostgresByHand
from tests.support.stores import claim, open_lease, put_one, settle
from tests.support.waiting import until

pytestmark = pytest.mark.req("JF-6", "CX-11", "JF-7")

LIMIT = 20.0


class Listener:
    """Remembers what it was told; `expect` waits for one of the hints that will do."""

    def __init__(self) -> None:
        self._told: list[str] = []
        self._change = threading.Condition()

    def __call__(self, what: str) -> None:
        with self._change:
            self._told.append(what)
            self._change.notify_all()

    def forget(self) -> None:
        with self._change:
            self._told.clear()

    def expect(self, *any_of: str) -> None:
        with self._change:
            assert self._change.wait_for(lambda: set(any_of) & set(self._told), LIMIT), (any_of, self._told)

    @property
    def told(self) -> list[str]:
        with self._change:
            return list(self._told)


@pytest.fixture
def other(store: Store) -> Iterator[Store]:
    """The same database, as another process has it."""
    with closing(open_store(store.url)) as opened:
        yield opened


@pytest.fixture
def listener(store: Store) -> Iterator[Listener]:
    heard = Listener()
    stop = store.listen(heard)
    heard.expect("")  # said when it begins: there may have been something before
    heard.forget()
    yield heard
    stop()


def test_a_job_that_comes_in(store: Store, other: Store, listener: Listener) -> None:
    put_one(other, queue="mail")
    listener.expect("mail", "")
    listener.forget()
    put_one(store, queue="mail")
    listener.expect("mail", "")


def test_a_job_whose_time_has_come(store: Store, other: Store, listener: Listener) -> None:
    put_one(other, queue="mail", delay=0.05)
    listener.forget()
    while not other.run(other.leases.promote()):
        pass
    listener.expect("mail", "")


def test_a_lease_that_lost_a_job(store: Store, other: Store, listener: Listener) -> None:
    job_id = put_one(other)
    lease = open_lease(store)
    claim(store, lease)
    listener.forget()
    other.run(other.jobs.operate("cancel", [job_id], None, "ada", "default"))
    listener.expect(lease, "")


def test_the_end_of_a_job_that_is_waited_for(store: Store, other: Store, listener: Listener) -> None:
    job_id = put_one(other)
    (job,) = claim(other, open_lease(other))
    store.run(store.jobs.watch(job_id, "default", 60))
    listener.forget()
    settle(other, job)
    listener.expect(job_id, "")


def test_the_end_of_others_is_not_told(owned_postgres_url: str) -> None:
    with closing(open_store(owned_postgres_url)) as store:
        heard, ids = Listener(), list[str]()
        stop = store.listen(heard, lambda: ["default", "last", *ids])
        heard.expect("")
        heard.forget()
        ids += [put_one(store) for _ in range(3)]
        settle(store, claim(store, open_lease(store), 3))
        put_one(store, queue="last")
        heard.expect("last")
        assert set(heard.told) == {"default", "last"}
        stop()


def test_whoever_stops_is_told_no_more(store: Store, other: Store) -> None:
    gone, there = Listener(), Listener()
    stop = store.listen(gone)
    stop_there = store.listen(there)
    gone.expect("")
    stop()
    gone.forget()
    there.forget()
    put_one(other, queue="mail")
    there.expect("mail", "")
    assert gone.told == []
    stop_there()


def test_it_listens_again_after_the_connection_was_cut(postgres_url: str) -> None:
    with closing(open_store(postgres_url)) as store, closing(PostgresByHand(postgres_url)) as by_hand:
        heard = Listener()
        stop = store.listen(heard, lambda: ["mail"])
        heard.expect("")
        heard.forget()
        by_hand.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and query like 'listen%'"
        )
        heard.expect("")  # said when it is cut, and when it is back
        until(lambda: store.listening and len(heard.told) == 2, "it is back")
        heard.forget()
        put_one(store, queue="mail")
        heard.expect("mail")
        stop()

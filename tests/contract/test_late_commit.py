"""A transaction that takes an earlier number and commits later: no consumer may miss it (DP-12, fault 26).

Sequence numbers are given out before commit, so "greater than the last one seen" would skip such events, and
waiting for the oldest open transaction would stall behind any long one. Neither may happen.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from holdfast.features.assembly import Store, open_store
from tests.support.ledger import check_ledger
from tests.support.stores import put_one
from tests.support.transactions import Consumer, Transaction

pytestmark = pytest.mark.req("DP-12")

PAGES = [1, 2, 100]


@pytest.fixture
def ledger(owned_postgres_url: str) -> Iterator[Store]:
    with closing(open_store(owned_postgres_url)) as store:
        yield store
        check_ledger(store)


@pytest.mark.parametrize("page", PAGES)
def test_late_commit_is_read_late_and_once(ledger: Store, page: int) -> None:
    consumer = Consumer(ledger, page)
    late = Transaction(ledger)
    a = late.enqueue(3)
    b = [put_one(ledger) for _ in range(3)]
    assert consumer.drain() == b
    assert consumer.drain() == []
    late.end()
    assert sorted(consumer.drain()) == sorted(a)
    c = put_one(ledger)
    assert consumer.drain() == [c]
    numbers = {event.job_id: event.seq for event in consumer.seen}
    assert max(numbers[job_id] for job_id in a) < min(numbers[job_id] for job_id in b), "the order proves nothing"
    assert len(consumer.seen) == 7


@pytest.mark.parametrize("page", PAGES)
def test_newest_transaction_commits_late(ledger: Store, page: int) -> None:
    """No snapshot lists it as open: a snapshot lists only transactions older than the last one that ended."""
    consumer = Consumer(ledger, page)
    first = put_one(ledger)
    late = Transaction(ledger)
    a = late.enqueue(3)
    assert consumer.drain() == [first]
    assert consumer.drain() == []
    late.end()
    assert consumer.drain() == a


@pytest.mark.parametrize("page", PAGES)
def test_several_late_transactions_end_in_any_order(ledger: Store, page: int) -> None:
    consumer = Consumer(ledger, page)
    first, second, third = Transaction(ledger), Transaction(ledger), Transaction(ledger)
    a, b, c = first.enqueue(2), second.enqueue(2), third.enqueue(2)
    d = [put_one(ledger)]
    assert consumer.drain() == d
    third.end()
    assert consumer.drain() == c
    second.end("rollback")
    assert consumer.drain() == []
    e = [put_one(ledger)]
    assert consumer.drain() == e
    first.end()
    assert consumer.drain() == a
    assert {event.job_id for event in consumer.seen} == {*a, *c, *d, *e}
    assert not set(b) & {event.job_id for event in consumer.seen}


def test_late_commit_in_the_middle_of_a_page(ledger: Store) -> None:
    consumer = Consumer(ledger, 2)
    late = Transaction(ledger)
    a = late.enqueue(5)
    b = [put_one(ledger) for _ in range(3)]
    assert consumer.poll() == b[:2]  # in the middle, before the late commit
    late.end()
    rest = consumer.drain()
    assert sorted(rest) == sorted([*a, b[2]])
    assert rest[0] == b[2], "the page it had started is finished first"


def test_late_commit_inside_a_savepoint(ledger: Store) -> None:
    consumer = Consumer(ledger, 1)
    late = Transaction(ledger)
    late.connection.execute("savepoint one")
    a = late.enqueue(2)
    late.connection.execute("release one")
    late.connection.execute("savepoint two")
    late.enqueue()
    late.connection.execute("rollback to two")
    b = [put_one(ledger)]
    assert consumer.drain() == b
    late.end()
    assert consumer.drain() == a


@pytest.mark.parametrize("page", PAGES)
def test_unrelated_long_transaction_does_not_stall_consumers(ledger: Store, page: int) -> None:
    """It has a transaction id and an old snapshot, and does not touch jobs."""
    with psycopg.connect(ledger.url, autocommit=True) as admin:
        admin.execute("create temp table elsewhere (n int)")
        admin.execute("begin isolation level repeatable read")
        admin.execute("insert into elsewhere values (1)")
        consumer = Consumer(ledger, page)
        for _ in range(5):
            ids = [put_one(ledger) for _ in range(3)]
            assert consumer.drain() == ids
        admin.execute("rollback")
    ids = [put_one(ledger)]
    assert consumer.drain() == ids


def test_reader_with_an_old_snapshot_skips_nothing(ledger: Store) -> None:
    """In a REPEATABLE READ transaction the ledger does not change; its cursor must not run ahead."""
    first = put_one(ledger)
    reader = Transaction(ledger, "begin isolation level repeatable read")
    reader.connection.execute("select 1")
    late = Transaction(ledger)
    a = late.enqueue(2)
    b = [put_one(ledger) for _ in range(2)]
    (seen,) = reader.run(ledger.ledger.read(None, 10, "*"))
    assert seen.job_id == first
    reader.end()
    consumer = Consumer(ledger, 10)
    consumer.cursor = seen.cursor
    assert consumer.drain() == b
    late.end()
    assert consumer.drain() == a

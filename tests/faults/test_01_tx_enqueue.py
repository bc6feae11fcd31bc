"""Fault 1: jobs of a transaction that is rolled back, or whose process is killed before COMMIT, do not exist."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from holdfast import App
from holdfast.app.internals import session_of
from tests.faults.checker import check
from tests.support.direct_sql import open_by_hand
from tests.support.stores import put_one
from tests.support.transactions import Consumer, Transaction
from tests.support.waiting import until
from tests.support.worker_processes import ROOT

pytestmark = pytest.mark.req("CX-15", "SC-19", "DP-12")

# A program that writes an order, enqueues jobs in the same transaction, and prints a line before it commits.
SHOP = {
    "postgres": """
import psycopg, sys
with psycopg.connect(sys.argv[1], autocommit=True) as connection:
    connection.execute("begin")
    connection.execute("insert into public.orders values (1)")
    many = '[{"kind": "work", "key": "order-1"}, {"kind": "work"}]'
    connection.execute("select * from holdfast.enqueue_many(%s::json)", (many,))
    connection.execute("select * from holdfast.enqueue('work', '{}', key => 'order-2')")
    print("enqueued", flush=True)
    if sys.stdin.readline() == "commit\\n":
        connection.execute("commit")
""",
    "sqlite": """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1].removeprefix("sqlite:///"), isolation_level=None)
connection.execute("begin immediate")
connection.execute("insert into orders values (1)")
connection.execute("insert into holdfast_job (kind) values ('work'), ('work'), ('work')")
print("enqueued", flush=True)
if sys.stdin.readline() == "commit\\n":
    connection.execute("commit")
""",
}


@contextmanager
def shop(url: str) -> Iterator[subprocess.Popen[str]]:
    """Start the program and wait until it is inside its transaction."""
    program = SHOP["sqlite" if url.startswith("sqlite") else "postgres"]
    process = subprocess.Popen(
        [sys.executable, "-c", program, url], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "enqueued\n"
        yield process
    finally:
        process.kill()
        process.communicate()


ORDERS = {"sqlite": "orders", "postgres": "public.orders"}


@pytest.fixture(autouse=True)
def orders(app: App) -> None:
    with closing(open_by_hand(session_of(app).store.url)) as by_hand:
        by_hand.execute(f"create table {ORDERS[by_hand.name]} (n integer primary key)")


def row_counts(app: App) -> tuple[int, ...]:
    """Count orders, jobs, events and keys."""
    with closing(open_by_hand(session_of(app).store.url)) as by_hand:
        tables = (ORDERS[by_hand.name], "job", "event", "idempotency")
        return tuple(by_hand.execute(f"select count(*) from {table}")[0][0] for table in tables)


@pytest.mark.slow
def test_process_killed_before_commit_enqueues_nothing(app: App) -> None:
    kept = put_one(session_of(app).store)
    consumer = Consumer(session_of(app).store, 10)
    with shop(session_of(app).store.url) as process:
        process.kill()
        process.wait(timeout=10)
        # The PostgreSQL server must first notice that the client is gone.
        assert until(lambda: put_one(session_of(app).store), "the locks of the killed process are released")
    assert row_counts(app) == (0, 2, 2, 0)
    assert len(consumer.drain()) == 2
    assert kept in {event.job_id for event in consumer.seen}
    with shop(session_of(app).store.url) as again:  # the keys are free
        again.communicate("commit\n", timeout=10)
    assert row_counts(app)[:2] == (1, 5)


@pytest.mark.slow
def test_process_killed_after_commit_enqueues_all_jobs(app: App) -> None:
    with shop(session_of(app).store.url) as process:
        process.communicate("commit\n", timeout=10)
    assert row_counts(app)[:3] == (1, 3, 3)
    consumer = Consumer(session_of(app).store, 2)
    ids = consumer.drain()
    check(session_of(app).store.url, ids, ended=False, seen=[(event.seq, event.job_id) for event in consumer.seen])


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_rolled_back_transaction_enqueues_nothing(app: App) -> None:
    """The library's operations run on a connection of the application."""
    shop = Transaction(session_of(app).store)
    gone = shop.enqueue(3)
    kept = put_one(session_of(app).store)
    shop.end("rollback")
    snapshot = check(session_of(app).store.url, [kept], ended=False)
    assert not set(gone) & snapshot.ledgers.keys()

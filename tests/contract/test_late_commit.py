"""A transaction that takes an earlier number and commits later: no consumer may miss it (DP-12, fault 26).

Sequence numbers are given out before commit, so "greater than the last one seen" would skip such events, and
waiting for the oldest open transaction would stall behind any long one. Neither may happen.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import psycopg
import pytest

from holdfast.domain.job import Event
from holdfast.domain.outcome import Succeeded
from holdfast.domain.settlement import decide
from holdfast.stores.base import ClaimRequest, Store
from holdfast.stores.flow import Flow
from holdfast.stores.open import open_store
from holdfast.stores.postgres.store import prepare_connection, run_on
from tests.support.ledger import check_ledger
from tests.support.stores import history, open_lease, put_one, spec
from tests.support.threads import together

pytestmark = pytest.mark.req("DP-12")

PAGES = [1, 2, 100]


@pytest.fixture(params=["owned_postgres_url", "postgres_url_16"])
def ledger(request: pytest.FixtureRequest) -> Iterator[Store]:
    with closing(open_store(request.getfixturevalue(request.param))) as store:
        yield store
        check_ledger(store)


class Writer:
    """A program with a transaction of its own, which it may keep open."""

    def __init__(self, store: Store, *, begin: bool = True) -> None:
        self.verbs = store.verbs
        self.connection = psycopg.connect(store.url, autocommit=True)
        prepare_connection(self.connection)
        if begin:
            self.connection.execute("begin")

    def enqueue(self, jobs: int = 1) -> list[str]:
        specs = [spec() for _ in range(jobs)]
        run_on(self.connection, self.verbs.enqueue(specs, "default"))
        return [each.id for each in specs]

    def run(self, flow: Flow[object]) -> object:
        return run_on(self.connection, flow)

    def end(self, how: str = "commit") -> None:
        self.connection.execute(how)
        self.connection.close()


class Consumer:
    """Reads small pages and remembers; keeps its cursor as a durable consumer would."""

    def __init__(self, store: Store, page: int) -> None:
        self._store, self._page = store, page
        self.cursor: str | None = None
        self.seen: list[Event] = []

    def poll(self) -> list[str]:
        found = self._store.run(self._store.verbs.events_after(self.cursor, self._page, "*"))
        if found:
            self.cursor = found[-1].cursor
        self.seen += found
        return [event.job_id for event in found]

    def drain(self) -> list[str]:
        found: list[str] = []
        while more := self.poll():
            found += more
        return found


@pytest.mark.parametrize("page", PAGES)
def test_what_commits_late_is_read_late_and_once(ledger: Store, page: int) -> None:
    consumer = Consumer(ledger, page)
    late = Writer(ledger)
    a = late.enqueue(3)
    b = [put_one(ledger) for _ in range(3)]
    assert consumer.drain() == b
    assert consumer.drain() == []
    late.end()
    assert sorted(consumer.drain()) == sorted(a)
    c = put_one(ledger)
    assert consumer.drain() == [c]
    numbers = {event.job_id: event.seq for event in consumer.seen}
    assert max(numbers[job_id] for job_id in a) < min(numbers[job_id] for job_id in b), "the test proves nothing"
    assert len(consumer.seen) == 7


@pytest.mark.parametrize("page", PAGES)
def test_the_newest_transaction_of_all_is_late(ledger: Store, page: int) -> None:
    """No snapshot lists it as open: it lists only what is older than the last transaction that ended."""
    consumer = Consumer(ledger, page)
    first = put_one(ledger)
    late = Writer(ledger)
    a = late.enqueue(3)
    assert consumer.drain() == [first]
    assert consumer.drain() == []
    late.end()
    assert consumer.drain() == a


@pytest.mark.parametrize("page", PAGES)
def test_several_late_ones_end_in_any_order(ledger: Store, page: int) -> None:
    consumer = Consumer(ledger, page)
    first, second, third = Writer(ledger), Writer(ledger), Writer(ledger)
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


def test_a_page_that_is_cut_in_the_middle_of_a_late_commit(ledger: Store) -> None:
    consumer = Consumer(ledger, 2)
    late = Writer(ledger)
    a = late.enqueue(5)
    b = [put_one(ledger) for _ in range(3)]
    assert consumer.poll() == b[:2]  # half-way, as of before the late commit
    late.end()
    rest = consumer.drain()
    assert sorted(rest) == sorted([*a, b[2]])
    assert rest[0] == b[2], "what it had begun to read is finished first"


def test_a_late_commit_inside_a_savepoint(ledger: Store) -> None:
    consumer = Consumer(ledger, 1)
    late = Writer(ledger)
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
def test_a_long_transaction_elsewhere_stalls_nobody(ledger: Store, page: int) -> None:
    """It has a transaction id and an old snapshot, and has nothing to do with jobs."""
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


def test_a_reader_with_an_old_snapshot_skips_nothing(ledger: Store) -> None:
    """In a REPEATABLE READ transaction the ledger stands still; the cursor it gives must not run ahead."""
    first = put_one(ledger)
    reader = Writer(ledger, begin=False)
    reader.connection.execute("begin isolation level repeatable read")
    reader.connection.execute("select 1")
    late = Writer(ledger)
    a = late.enqueue(2)
    b = [put_one(ledger) for _ in range(2)]
    (seen,) = run_on(reader.connection, ledger.verbs.events_after(None, 10, "*"))
    assert seen.job_id == first
    reader.end()
    consumer = Consumer(ledger, 10)
    consumer.cursor = seen.cursor
    assert consumer.drain() == b
    late.end()
    assert consumer.drain() == a


# -- at random -----------------------------------------------------------------------------------------------


def check_feed(store: Store, seen: list[Event], committed: set[str]) -> None:
    """Every committed event exactly once, each job's in the order in which they happened."""
    assert {event.job_id for event in seen} == committed
    feed: dict[str, list[int]] = defaultdict(list)
    for event in seen:
        feed[event.job_id].append(event.seq)
    for job_id, numbers in feed.items():
        assert numbers == [event.seq for event in history(store, job_id)]


@pytest.mark.parametrize("seed", range(4))
def test_eight_transactions_interleaved_at_random(ledger: Store, seed: int) -> None:
    """One thread plays all parts, so a seed that fails fails again."""
    rng = random.Random(seed)
    consumers = [Consumer(ledger, page) for page in (1, 3, 7)]
    lease = open_lease(ledger, ttl=10_000)
    open_: dict[Writer, list[str]] = {}
    committed: set[str] = set()
    for _ in range(120):
        if len(open_) < 8 and rng.random() < 0.3:
            open_[Writer(ledger)] = []
        elif open_ and rng.random() < 0.75:
            writer = rng.choice(list(open_))
            match rng.randrange(5):
                case 0 | 1:
                    open_[writer] += writer.enqueue(rng.randint(1, 3))
                case 2:
                    _work(writer, lease)
                case _:
                    how = rng.choice(["commit", "commit", "rollback"])
                    ids = open_.pop(writer)
                    writer.end(how)
                    committed |= set(ids) if how == "commit" else set()
        rng.choice(consumers).poll()
    for writer, ids in open_.items():
        writer.end()
        committed |= set(ids)
    for consumer in consumers:
        consumer.drain()
        check_feed(ledger, consumer.seen, committed)


def _work(writer: Writer, lease: str) -> None:
    """Take a job and end it, inside the transaction."""
    request = ClaimRequest(lease=lease, queues=("default",), want=1)
    for held in run_on(writer.connection, writer.verbs.claim(request)):
        run_on(writer.connection, writer.verbs.settle(lease, [decide(held, Succeeded(), 1.0)], "*"))


def test_eight_threads_write_while_a_consumer_reads(ledger: Store) -> None:
    """The same without a conductor: real concurrency, pages of three."""
    lease = open_lease(ledger, ttl=10_000)
    written, done = threading.Semaphore(0), threading.Event()
    consumer = Consumer(ledger, 3)

    def write(seed: int) -> set[str]:
        rng = random.Random(seed)
        committed: set[str] = set()
        for _ in range(12):
            writer = Writer(ledger)
            ids = writer.enqueue(rng.randint(1, 3))
            if rng.random() < 0.5:
                _work(writer, lease)
            how = rng.choice(["commit", "commit", "commit", "rollback"])
            writer.end(how)
            committed |= set(ids) if how == "commit" else set()
            written.release()
        return committed

    def read() -> set[str]:
        while not done.is_set():
            if written.acquire(timeout=0.01):
                consumer.poll()
        return set()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        committed = set().union(*together(*(partial(write, seed) for seed in range(8))))
    finally:
        done.set()
        reader.join(timeout=30)
    consumer.drain()
    check_feed(ledger, consumer.seen, committed)

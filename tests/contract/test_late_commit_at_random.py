"""Writers commit in any order while consumers read small pages: every event once, none skipped (DP-12, fault 26)."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest

from holdfast.engine.job import Event
from holdfast.engine.outcome import Succeeded
from holdfast.engine.settlement import decide
from holdfast.features.assembly import Store, open_store
from holdfast.stores.requests import ClaimRequest
from tests.support.concurrency import together
from tests.support.ledger import check_ledger
from tests.support.stores import history, open_lease
from tests.support.transactions import Consumer, Transaction

pytestmark = pytest.mark.req("DP-12")


@pytest.fixture
def ledger(owned_postgres_url: str) -> Iterator[Store]:
    with closing(open_store(owned_postgres_url)) as store:
        yield store
        check_ledger(store)


def check_feed(store: Store, seen: list[Event], committed: set[str]) -> None:
    """Every committed event exactly once, and each job's events in order."""
    assert {event.job_id for event in seen} == committed
    feed: dict[str, list[int]] = defaultdict(list)
    for event in seen:
        feed[event.job_id].append(event.seq)
    for job_id, numbers in feed.items():
        assert numbers == [event.seq for event in history(store, job_id)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_eight_transactions_interleaved_at_random(ledger: Store, seed: int) -> None:
    """One thread runs all transactions, so a failing seed can be repeated."""
    rng = random.Random(seed)
    consumers = [Consumer(ledger, page) for page in (1, 3, 7)]
    lease = open_lease(ledger, ttl=10_000)
    open_: dict[Transaction, list[str]] = {}
    committed: set[str] = set()
    for _ in range(120):
        if len(open_) < 8 and rng.random() < 0.3:
            open_[Transaction(ledger)] = []
        elif open_ and rng.random() < 0.75:
            writer = rng.choice(list(open_))
            match rng.randrange(5):
                case 0 | 1:
                    open_[writer] += writer.enqueue(rng.randint(1, 3))
                case 2:
                    _work(ledger, writer, lease)
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


def _work(store: Store, writer: Transaction, lease: str) -> None:
    """Claim a job and settle it, inside the transaction."""
    request = ClaimRequest(lease=lease, queues=("default",), want=1)
    for held in writer.run(store.leases.claim(request)):
        writer.run(store.leases.settle(lease, [decide(held, Succeeded(), 1.0)], "*"))


@pytest.mark.slow
def test_eight_threads_write_while_a_consumer_reads(ledger: Store) -> None:
    """The same with real concurrency and pages of three."""
    lease = open_lease(ledger, ttl=10_000)
    written, done = threading.Semaphore(0), threading.Event()
    consumer = Consumer(ledger, 3)

    def write(seed: int) -> set[str]:
        rng = random.Random(seed)
        committed: set[str] = set()
        for _ in range(12):
            writer = Transaction(ledger)
            ids = writer.enqueue(rng.randint(1, 3))
            if rng.random() < 0.5:
                _work(ledger, writer, lease)
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

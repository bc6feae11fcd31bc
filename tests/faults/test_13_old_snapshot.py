"""Fault 13: somebody's REPEATABLE READ transaction stays open while jobs come and go: claims stay cheap.

What it may still see cannot be cleaned up, so the rows and index entries of every job that has been done since are
in the way of whoever looks for the next. Counted, not timed: what one claim reads, early and late.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from holdfast.stores.base import ClaimRequest, Store
from holdfast.stores.open import open_store
from holdfast.stores.postgres.store import prepare_connection
from tests.faults.checker import check
from tests.plans.explained import used
from tests.support.stores import claim, open_lease, put, settle, spec

pytestmark = pytest.mark.req("DP-7")

BATCH = 50


@pytest.fixture
def store(postgres_url: str) -> Iterator[Store]:
    with closing(open_store(postgres_url)) as opened:
        yield opened


def walked(connection: psycopg.Connection[Any], store: Store, lease: str, want: int) -> int:
    """How many entries of the queue's index one claim looks at; it is taken back."""
    request = ClaimRequest(lease=lease, queues=("default",), want=want)
    usage = used(connection, store.verbs.claim(request))
    assert len(usage.answer) == want
    return usage.by_index["claimable"]


def rounds(store: Store, lease: str, count: int) -> list[str]:
    """Jobs that come and go: enqueued, claimed, settled."""
    done = []
    for _ in range(count):
        done += put(store, *(spec() for _ in range(BATCH)))
        assert settle(store, claim(store, lease, BATCH)) == []
    return done


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="a claim begins at the front of its index: it walks over every entry that cannot be cleaned up yet",
)
def test_a_claim_does_not_walk_over_all_that_was_done_since(store: Store) -> None:
    lease = open_lease(store, ttl=3600)
    with psycopg.connect(store.url, autocommit=True) as old, psycopg.connect(store.url, autocommit=True) as meter:
        prepare_connection(meter)
        ids = rounds(store, lease, 2)
        waiting = put(store, *(spec(priority=-1) for _ in range(2 * BATCH)))
        old.execute("begin isolation level repeatable read")
        old.execute("select count(*) from holdfast.job")
        early = walked(meter, store, lease, BATCH)
        ids += rounds(store, lease, 60)
        late = walked(meter, store, lease, BATCH)
        old.execute("rollback")
    print(f"entries walked by a claim of {BATCH}: {early}, and {late} when {60 * BATCH} jobs had come and gone")
    check(store.url, [*ids, *waiting], ended=False)
    assert late <= 3 * early + BATCH

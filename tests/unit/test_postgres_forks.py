"""A PostgreSQL store that was used before a fork works in both parent and child."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pytest

from holdfast.features.postgres import PostgresStore
from tests.support import concurrency
from tests.support.concurrency import in_a_fork
from tests.support.stores import put_one

pytestmark = pytest.mark.req("CX-15")


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(postgres_url)) as opened:
        yield opened


def count(store: PostgresStore) -> int:
    return sum(store.run(store.jobs.counts("default")).values())


def test_forked_child_opens_its_own_connections(store: PostgresStore) -> None:
    put_one(store)  # the parent's pool has a connection now

    def child() -> int:
        put_one(store)
        seen = count(store)
        store.close()  # must not end the parent's session
        return seen

    assert in_a_fork(child) == 2
    put_one(store)
    assert count(store) == 3


def test_child_that_closes_store_does_not_affect_parent(store: PostgresStore) -> None:
    put_one(store)
    assert in_a_fork(store.close) is None
    assert count(store) == 1


def test_fork_while_other_threads_hold_the_locks(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that is held at the moment of the fork stays locked in the child, where its holder does not exist."""
    monkeypatch.setattr(concurrency, "CHILD_TIMEOUT", 5.0)
    put_one(store)

    def child() -> int:
        store.outage.failed(ValueError())
        store.listen(lambda _: None)()
        return count(store)

    with store._pools._opening, store._watchdog._guard, store._listener._guard, store.outage._guard:
        assert in_a_fork(child) == 1


def test_async_store_works_after_fork(store: PostgresStore) -> None:
    async def count_jobs() -> int:
        return sum((await store.arun(store.jobs.counts("default"))).values())

    async def parent() -> list[int]:
        before = await count_jobs()
        put_one(store)

        def child() -> int:
            return asyncio.Runner().run(count_jobs())

        # The child must not use the parent's loop: it is forked in a thread without one.
        seen = await asyncio.to_thread(in_a_fork, child)
        return [before, seen, await count_jobs()]

    try:
        assert asyncio.run(parent()) == [0, 1, 1]
    finally:
        store.close()

"""A store that was used before the program forked, as under a pre-forking server: parent and child both go on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pytest

from holdfast.features.postgres import PostgresStore
from tests.support.concurrency import in_a_fork
from tests.support.stores import put_one

pytestmark = pytest.mark.req("CX-15")


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(postgres_url)) as opened:
        yield opened


def count(store: PostgresStore) -> int:
    return sum(store.run(store.jobs.counts("default")).values())


def test_a_forked_child_uses_connections_of_its_own(store: PostgresStore) -> None:
    put_one(store)  # the parent's pool has a connection now

    def child() -> int:
        put_one(store)
        seen = count(store)
        store.close()  # must not end the parent's session
        return seen

    assert in_a_fork(child) == 2
    put_one(store)
    assert count(store) == 3


def test_a_child_that_only_closes_does_no_harm(store: PostgresStore) -> None:
    put_one(store)
    assert in_a_fork(store.close) is None
    assert count(store) == 1


def test_the_other_colour_too(store: PostgresStore) -> None:
    async def look() -> int:
        counts = await asyncio.wait_for(store.arun(store.jobs.counts("default")), timeout=10)
        return sum(counts.values())

    async def parent() -> list[int]:
        before = await look()
        put_one(store)

        def child() -> int:
            return asyncio.Runner().run(look())

        # The loop of the parent is not the child's either: the child runs in a thread without one.
        seen = await asyncio.to_thread(in_a_fork, child)
        return [before, seen, await look()]

    try:
        assert asyncio.run(parent()) == [0, 1, 1]
    finally:
        store.close()

"""Fault 13: somebody's REPEATABLE READ transaction stays open while jobs come and go: claims stay cheap.

What it may still see cannot be cleaned up, so the rows and index entries of every job that has been done since are in
the way of whoever looks for the next. Counted, not timed: how many entries of the queue's index a worker walks over.
"""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest

from holdfast import App
from tests.faults.checker import check
from tests.faults.load import load
from tests.faults.waiting import all_ended
from tests.support.stores import claim, open_lease, put, settle, spec
from tests.support.worker_processes import Crew

pytestmark = [pytest.mark.req("DP-7", "JF-3"), pytest.mark.parametrize("url", ["postgres"], indirect=True)]

WALKED = "select idx_tup_read from pg_stat_user_indexes where schemaname = 'holdfast' and indexrelname = 'claimable'"


def walked(url: str) -> int:
    """Entries read so far, as the server counts them; its sessions tell it within a second, or when they end."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(WALKED).fetchone()
    assert row is not None
    return int(row[0])


def come_and_go(app: App, jobs: int, batch: int = 1_000) -> list[str]:
    """Jobs that are enqueued, claimed and settled, and leave their traces."""
    lease = open_lease(app._store, ttl=3600)
    done: list[str] = []
    for _ in range(jobs // batch):
        done += put(app._store, *(spec() for _ in range(batch)))
        claims = claim(app._store, lease, batch)
        assert len(claims) == batch
        assert settle(app._store, claims) == []
    return done


@pytest.mark.slow
@pytest.mark.parametrize("gone", [30_000, pytest.param(200_000, marks=[pytest.mark.soak, pytest.mark.timeout(900)])])
def test_a_worker_does_not_walk_over_all_that_was_done_since(url: str, crew: Crew, gone: int) -> None:
    """With sixteen slots a turn takes eight at most: from the head each time, that is one walk for every eight jobs."""
    jobs = 600
    with closing(App(url)) as app, psycopg.connect(url, autocommit=True) as old:
        old.execute("begin isolation level repeatable read")
        old.execute("select count(*) from holdfast.job")
        come_and_go(app, gone)
        app.close()  # its sessions have told what they read
        before = walked(url)
        load(app, jobs, kind="awork")
        crew.start_one(lease=20.0, concurrency=16)
        all_ended(app, gone + jobs, limit=300)
        crew.stop()
        entries = walked(url) - before
        old.execute("rollback")
    print(f"{entries:,} entries walked for {jobs:,} jobs; from the head each time it would be {gone * jobs // 8:,}")
    assert entries < gone * jobs // 8 / 3


def test_who_begins_at_the_head_is_right_all_the_same(app: App) -> None:
    """Other languages have no memory of where they were. They walk, and miss nothing."""
    with psycopg.connect(app._store.url, autocommit=True) as old:
        old.execute("begin isolation level repeatable read")
        old.execute("select count(*) from holdfast.job")
        ids = come_and_go(app, 1_000, batch=50)
        urgent = put(app._store, spec(priority=5))
        assert [each.id for each in claim(app._store, open_lease(app._store))] == urgent
        old.execute("rollback")
    check(app._store.url, [*ids, *urgent], ended=False)

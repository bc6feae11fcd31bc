"""Fault 13: a REPEATABLE READ transaction stays open while many jobs are processed: claims stay cheap.

Vacuum cannot remove rows that the transaction may still see, so a claim meets the dead rows and index entries of every
job processed since. The test counts the entries of the queue's index that a worker reads; it does not measure time.
"""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest

from holdfast import App
from holdfast.app.internals import session_of
from tests.faults.checker import check
from tests.faults.workload import enqueue_jobs, wait_for_all
from tests.support.stores import claim, open_lease, put, settle, spec
from tests.support.worker_processes import Crew

pytestmark = [pytest.mark.req("DP-7", "JF-3"), pytest.mark.parametrize("url", ["postgres"], indirect=True)]

ENTRIES_READ = (
    "select idx_tup_read from pg_stat_user_indexes where schemaname = 'holdfast' and indexrelname = 'claimable'"
)


def entries_read(url: str) -> int:
    """Return the server's count of entries read. Sessions report within a second, or when they end."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(ENTRIES_READ).fetchone()
    assert row is not None
    return int(row[0])


def process_jobs(app: App, jobs: int, batch: int = 1_000) -> list[str]:
    """Enqueue, claim and settle jobs, which leaves dead rows."""
    lease = open_lease(session_of(app).store, ttl=3600)
    done: list[str] = []
    for _ in range(jobs // batch):
        done += put(session_of(app).store, *(spec() for _ in range(batch)))
        claims = claim(session_of(app).store, lease, batch)
        assert len(claims) == batch
        assert settle(session_of(app).store, claims) == []
    return done


@pytest.mark.slow
@pytest.mark.parametrize("gone", [30_000, pytest.param(200_000, marks=[pytest.mark.soak, pytest.mark.timeout(900)])])
def test_worker_does_not_reread_dead_index_entries(url: str, crew: Crew, gone: int) -> None:
    """With sixteen slots an exchange claims at most eight jobs. Claims that always start at the head of the index would
    read all dead entries once per eight jobs."""
    jobs = 600
    with closing(App(url)) as app, psycopg.connect(url, autocommit=True) as old:
        old.execute("begin isolation level repeatable read")
        old.execute("select count(*) from holdfast.job")
        process_jobs(app, gone)
        app.close()  # its sessions report what they read
        before = entries_read(url)
        enqueue_jobs(app, jobs, kind="awork")
        crew.start_one(lease=20.0, concurrency=16)
        wait_for_all(app, gone + jobs, limit=300)
        crew.stop()
        entries = entries_read(url) - before
        old.execute("rollback")
    print(f"{entries:,} entries read for {jobs:,} jobs; from the head each time it would be {gone * jobs // 8:,}")
    assert entries < gone * jobs // 8 / 3


def test_claim_from_index_head_misses_nothing(app: App) -> None:
    """Clients in other languages do not remember their position. They read from the head and miss nothing."""
    with psycopg.connect(session_of(app).store.url, autocommit=True) as old:
        old.execute("begin isolation level repeatable read")
        old.execute("select count(*) from holdfast.job")
        ids = process_jobs(app, 1_000, batch=50)
        urgent = put(session_of(app).store, spec(priority=5))
        assert [each.id for each in claim(session_of(app).store, open_lease(session_of(app).store))] == urgent
        old.execute("rollback")
    check(session_of(app).store.url, [*ids, *urgent], ended=False)

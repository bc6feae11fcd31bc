"""Two stores on one database, as in two processes, always agree: no state is cached between calls."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from holdfast.engine.states import State
from holdfast.features.assembly import Store, open_store
from tests.support.concurrency import together
from tests.support.ledger import check_ledger, read_events
from tests.support.stores import (
    claim,
    enqueue,
    forward,
    history,
    job,
    open_lease,
    put,
    put_one,
    settle,
    spec,
    state_of,
    take,
    work,
)

pytestmark = pytest.mark.req("CX-15", "SC-18")


@pytest.fixture
def other(store: Store) -> Iterator[Store]:
    with closing(open_store(store.url)) as opened:
        yield opened


def test_changes_are_visible_to_the_other_store_at_once(store: Store, other: Store) -> None:
    job_id = put_one(store, key="k")
    assert job(other, job_id).state == State.QUEUED
    assert [answer.reason for answer in enqueue(other, spec(key="k"))] == ["duplicate_key"]
    held = take(other)
    assert state_of(store, job_id) == State.IN_PROGRESS
    store.run(store.jobs.operate("cancel", [job_id], None, "ada", "default"))
    assert settle(other, held) == [job_id]
    assert [event.type for event in history(other, job_id)] == ["enqueue", "take", "cancel"]


def test_both_stores_use_the_same_clock(store: Store, other: Store) -> None:
    moment = forward(store, 3600)
    assert other.run(other.clock.now()) == moment
    put_one(store, delay=10)
    forward(other, 10)
    assert store.run(store.leases.promote()) == 1


def test_lease_is_valid_in_the_other_store(store: Store, other: Store) -> None:
    put(store, spec(), spec())
    lease = open_lease(store)
    assert len(claim(other, lease)) == 1
    assert other.run(other.leases.end(lease, "closed", "*"))
    assert store.run(store.leases.recover()).crashed == 1


@pytest.mark.req("CX-12")
def test_reopening_loses_nothing(store: Store) -> None:
    forward(store)
    ids = put(store, *(spec(payload={"n": n}) for n in range(5)))
    work(store, want=2)
    before = [job(store, job_id) for job_id in ids], read_events(store)
    store.close()
    with closing(open_store(store.url)) as again:
        assert again.schema().current
        assert [job(again, job_id) for job_id in ids] == before[0]
        assert [event.seq for event in read_events(again)] == [event.seq for event in before[1]]


def test_two_stores_share_one_queue(store: Store, other: Store) -> None:
    put(store, *(spec() for _ in range(60)))
    done = together(*(partial(_drain, each, f"worker-{n}") for n, each in enumerate((store, other))))
    assert sum(done) == 60
    assert store.run(store.jobs.counts("default")) == {State.SUCCEEDED: 60}


def _drain(store: Store, holder: str) -> int:
    lease, done = open_lease(store, holder), 0
    while held := claim(store, lease, 4):
        assert settle(store, held) == []
        done += len(held)
    return done


# -- SQLite: several processes on one file -----------------------------------------------------------------

ROOT = Path(__file__).parents[2]
WORKER = """
import json, sys
from contextlib import closing
from holdfast.features.assembly import open_store
from tests.contract.test_two_stores import _drain
from tests.support.stores import put, spec

url, name = sys.argv[1:]
with closing(open_store(url)) as store:
    store.migrate()
    mine = [put(store, spec())[0] for _ in range(15)]
    print(json.dumps([mine, _drain(store, name)]))
"""


@pytest.mark.slow
@pytest.mark.req("SC-1")
def test_several_processes_share_one_file(new_sqlite_url: str) -> None:
    """All processes open the new file at once; each adds jobs and works on all of them."""
    command = [sys.executable, "-c", WORKER, new_sqlite_url]
    workers = [
        subprocess.Popen(
            [*command, f"process-{n}"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for n in range(3)
    ]
    reports = []
    for worker in workers:
        out, err = worker.communicate(timeout=60)
        assert worker.returncode == 0, err
        reports.append(json.loads(out))
    with closing(open_store(new_sqlite_url)) as store:
        done = _drain(store, "last")
        assert sum(count for _, count in reports) + done == 45
        for added, _ in reports:
            assert {state_of(store, job_id) for job_id in added} == {State.SUCCEEDED}
        check_ledger(store)


@pytest.mark.req("SC-1")
def test_sqlite_file_is_in_wal_mode_and_intact(new_sqlite_url: str) -> None:
    with closing(open_store(new_sqlite_url)) as store:
        store.migrate()
        put(store, *(spec() for _ in range(10)))
        with closing(sqlite3.connect(new_sqlite_url.removeprefix("sqlite:///"))) as connection:
            assert connection.execute("pragma journal_mode").fetchone() == ("wal",)
            assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
            assert connection.execute("pragma foreign_key_check").fetchall() == []


@pytest.mark.req("SC-1")
def test_every_version_of_sqlite_finds_the_tables_intact(new_sqlite_url: str) -> None:
    """The checks of SQLite 3.40 report null values in a table without rowids whose last column is not stored last:
    the columns of the key are stored first."""
    with closing(open_store(new_sqlite_url)) as store:
        store.migrate()
    with closing(sqlite3.connect(new_sqlite_url.removeprefix("sqlite:///"))) as connection:
        tables = connection.execute("select name from pragma_table_list where wr and schema = 'main'").fetchall()
        columns = {name: connection.execute(f"pragma table_info({name})").fetchall() for (name,) in tables}
    assert len(columns) > 10
    # The sixth field is the number of a column in the key, or 0.
    wrong = [name for name, fields in columns.items() if fields[-1][5] and not all(each[5] for each in fields)]
    assert wrong == []

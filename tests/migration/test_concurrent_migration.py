"""Several processes that migrate at the same time, as in a deployment with several workers."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from holdfast.features.assembly import open_store
from holdfast.stores.migrations import Script
from tests.migration.catalogue import applied, catalogue, write
from tests.migration.next_release import MORE, plan_of, use, with_more
from tests.support.waiting import until

pytestmark = pytest.mark.req("DP-20", "SC-1")

ROOT = Path(__file__).parents[2]
PROCESSES = 4

# All processes are ready before any starts: each prints a line and waits for the end of its input.
PROGRAM = """
import sys
from holdfast.engine.job import JobSpec
from holdfast.features.assembly import open_store
store = open_store(sys.argv[1])
print("ready", flush=True)
sys.stdin.read()
assert store.migrate().current
spec = JobSpec(id=sys.argv[2], kind="mail", payload="{}", enqueued_by="test", source_system="test")
assert store.run(store.jobs.enqueue([spec], "default"))[0].created
store.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("state", ["empty", "older code"])
def test_concurrent_migrations_all_succeed(empty_url: str, other_url: str, state: str) -> None:
    with closing(open_store(other_url)) as alone:
        alone.migrate()
    if state == "older code":
        with closing(open_store(empty_url)) as before:
            before.migrate()
        write(empty_url, "update migration set digest = 'older' where name = 'code'")
    ids = [f"01900000-0000-7000-8000-{number:012}" for number in range(PROCESSES)]
    migrating = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, empty_url, job_id],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for job_id in ids
    ]
    for process in migrating:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in migrating:
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
    outcomes = [(process.communicate(timeout=60)[1], process.returncode) for process in migrating]
    assert outcomes == [("", 0)] * PROCESSES
    assert catalogue(empty_url) == catalogue(other_url)
    assert applied(empty_url) == applied(other_url)
    with closing(open_store(empty_url)) as store:
        assert store.schema().current
        result = [store.run(store.jobs.get(job_id, "default")) for job_id in ids]
        assert all(result)


@pytest.mark.slow
@pytest.mark.req("HF-14")
def test_migration_starts_again_after_a_deadlock(empty_postgres_url: str) -> None:
    """A program at work locks the tables in another order. The server ends the transaction of the migration."""
    lock = "lock table {} in access exclusive mode;"
    script = Script(MORE.name, f"{lock.format('job')} {lock.format('job_state')} {MORE.sql}")
    with closing(open_store(empty_postgres_url)) as store, ThreadPoolExecutor(1) as pool:
        store.migrate()
        use(store, with_more(plan_of(store), script))
        with psycopg.connect(empty_postgres_url) as at_work:
            # The server ends the transaction that checks first: each checks once, after waiting this long.
            at_work.execute("set deadlock_timeout = '1min'; set search_path = holdfast")
            at_work.execute("update job_state set priority = priority where false")
            migrating = pool.submit(store.migrate)
            until(lambda: waits_for(empty_postgres_url, "job_state"), "the migration waits")
            at_work.execute("update job set queue = queue where false")
            # Now it locks all tables first, and does not wait long with some of them.
            until(lambda: waits_for(empty_postgres_url, "job"), "the migration has started again")
            until(lambda: not waits_for(empty_postgres_url, "job"), "the migration has given up its locks")
            assert not migrating.done()
        assert migrating.result(timeout=60).current


def waits_for(url: str, table: str) -> bool:
    with psycopg.connect(url) as connection:
        query = "select 1 from pg_locks where not granted and relation = %s::regclass"
        return connection.execute(query, (f"holdfast.{table}",)).fetchone() is not None

"""From one release to the next: only new migrations run, completely or not at all, also if the process is killed."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from holdfast.engine.job import JobSpec
from holdfast.errors import HoldfastError, SchemaMismatch
from holdfast.features.assembly import Store, open_store
from holdfast.stores.migrations import Plan, Script
from holdfast.stores.sqlite.connections import database_path
from tests.migration.catalogue import applied, catalogue
from tests.migration.next_release import MORE, plan_of, use, with_more

pytestmark = pytest.mark.req("DP-20", "SC-1")

ROOT = Path(__file__).parents[2]
SPEC = JobSpec(
    id="01900000-0000-7000-8000-000000000001",
    kind="mail",
    payload="{}",
    enqueued_by="test",
    source_system="test",
)

# Each script starts with a change that must not persist, and then takes time.
SLOW = {
    "sqlite": MORE.sql
    + "select max(n) from (with recursive c (n) as (select 1 union all select n + 1 from c where n < 40000000)"
    " select n from c);\n",
    "postgres": MORE.sql + "select pg_sleep(3);\n",
}


@pytest.fixture
def store(empty_url: str) -> Iterator[Store]:
    """A database of this release, with one job."""
    with closing(open_store(empty_url)) as opened:
        opened.migrate()
        opened.run(opened.jobs.enqueue([SPEC], "default"))
        yield opened


@pytest.fixture
def next_plan(store: Store) -> Plan:
    return with_more(plan_of(store))


@pytest.mark.slow
def test_only_new_migrations_are_applied(store: Store, next_plan: Plan, empty_url: str) -> None:
    use(store, next_plan)
    assert store.schema().pending == ("9999_more", "code")
    status = store.migrate()
    assert status.current
    plan = plan_of(store)
    assert status.applied == tuple(sorted(script.name for script in (*plan.migrations, *plan.later, plan.code)))
    assert "more_by_n" in str(catalogue(empty_url))
    assert "everything" in str(catalogue(empty_url))
    # The tables are not recreated: the job is still there.
    assert store.run(store.jobs.get(SPEC.id, "default")) is not None


def test_fresh_schema_equals_the_upgraded_schema(store: Store, next_plan: Plan, empty_url: str, other_url: str) -> None:
    use(store, next_plan)
    store.migrate()
    with closing(open_store(other_url)) as fresh:
        use(fresh, next_plan)
        fresh.migrate()
    assert catalogue(other_url) == catalogue(empty_url)
    assert applied(other_url) == applied(empty_url)


@pytest.mark.slow
def test_previous_release_does_not_migrate_a_newer_database(store: Store, next_plan: Plan, empty_url: str) -> None:
    today = plan_of(store)
    use(store, next_plan)
    store.migrate()
    after = catalogue(empty_url)
    use(store, today)
    assert store.schema().unknown == ("9999_more",)
    with pytest.raises(SchemaMismatch) as refused:
        store.migrate()
    assert refused.value.code == "schema_newer"
    assert catalogue(empty_url) == after
    # A worker of the previous release can still use the database.
    assert store.run(store.jobs.get(SPEC.id, "default")) is not None


@pytest.mark.slow
def test_supported_release_goes_on_and_leaves_the_schema_alone(store: Store, next_plan: Plan, empty_url: str) -> None:
    """Also if the next release has the same migrations, and only its code differs."""
    today = plan_of(store)
    for later in (
        replace(today, code=Script("code", today.code.sql + "\n"), release="9.8"),
        replace(next_plan, release="9.9"),
    ):
        use(store, later)
        store.migrate()
        after, marks = catalogue(empty_url), applied(empty_url)
        assert (marks["release"], marks["supports"]) == (later.release, "0.1.0")
        use(store, today)
        assert (store.schema().current, store.schema().supported, store.schema().pending) == (True, True, ())
        assert store.migrate().supported
        assert (catalogue(empty_url), applied(empty_url)) == (after, marks)
    use(store, replace(next_plan, release="9.10", supports="9.9"))
    store.migrate()
    use(store, today)
    assert (store.schema().current, store.schema().supported) == (False, False), "contracted"


@pytest.mark.slow
def test_failed_migration_leaves_the_old_schema(store: Store, empty_url: str) -> None:
    before, marks = catalogue(empty_url), applied(empty_url)
    broken = Script("9999_more", MORE.sql + "insert into nowhere values (1);\n")
    use(store, with_more(plan_of(store), broken))
    with pytest.raises(HoldfastError):
        store.migrate()
    assert catalogue(empty_url) == before
    assert applied(empty_url) == marks
    assert store.run(store.jobs.get(SPEC.id, "default")) is not None


@pytest.mark.slow
@pytest.mark.req("SC-19")
def test_killed_migration_leaves_the_old_schema(store: Store, next_plan: Plan, empty_url: str, kind: str) -> None:
    before, marks = catalogue(empty_url), applied(empty_url)
    slow = SLOW["sqlite" if kind == "sqlite" else "postgres"]
    command = [sys.executable, "-m", "tests.migration.next_release", empty_url, slow]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as migrating:
        wait_until_under_way(empty_url, migrating)
        migrating.kill()
    assert migrating.returncode == -9
    use(store, next_plan)
    # This waits for the lock if the server still runs the last statement of the killed process.
    assert store.schema().pending == ("9999_more", "code")
    assert catalogue(empty_url) == before
    assert applied(empty_url) == marks
    assert store.migrate().current


def wait_until_under_way(url: str, migrating: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and migrating.poll() is None:
        if under_way(url):
            return
        time.sleep(0.01)
    raise AssertionError("the migration did not start")


def under_way(url: str) -> bool:
    if url.startswith("sqlite:"):
        with closing(sqlite3.connect(database_path(url), timeout=0, isolation_level=None)) as connection:
            try:
                connection.execute("begin immediate")
            except sqlite3.OperationalError:
                return True
            connection.execute("rollback")
            return False
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "select count(*) from pg_stat_activity where datname = current_database()"
            " and pid <> pg_backend_pid() and wait_event = 'PgSleep'"
        ).fetchone()
        return row == (1,)

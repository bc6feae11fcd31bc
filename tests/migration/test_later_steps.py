"""Work that a migration leaves for after its transaction: repeated in batches, taken up again after a failure, and no
difference to a new database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import psycopg
import pytest

from holdfast.engine.job import JobSpec
from holdfast.errors import StoreError
from holdfast.features.assembly import Store, open_store
from holdfast.stores.migrations import Plan, Script
from holdfast.stores.postgres import migrations
from tests.migration.catalogue import applied, catalogue
from tests.migration.next_release import plan_of, use
from tests.support.direct_sql import open_by_hand

pytestmark = [pytest.mark.req("DP-20", "HF-14"), pytest.mark.slow]

SPEC = JobSpec(
    id="01900000-0000-7000-8000-000000000001", kind="mail", payload="{}", enqueued_by="test", source_system="test"
)
MORE = Script(
    "9999_more",
    "create table more (n integer not null, done integer);\n"
    "insert into more (n) values (1), (2), (3), (4), (5), (6), (7), (8), (9), (10);\n",
)
INDEX = {
    "sqlite": "create index if not exists more_later on more (n);\n",
    "postgres": "create index concurrently more_later on more (n);\n",
}
BATCH = """-- batch
update more set done = coalesce(done, 0) + 1 where n in (select n from more where done is null order by n limit 3);
"""


@pytest.fixture
def store(empty_url: str) -> Iterator[Store]:
    with closing(open_store(empty_url)) as opened:
        opened.migrate()
        yield opened


def later(plan: Plan, sql: str) -> Plan:
    return replace(plan, migrations=(*plan.migrations, MORE), later=(*plan.later, Script("9999_more.later", sql)))


def test_batches_are_repeated_until_nothing_is_left(store: Store, empty_url: str, other_url: str, kind: str) -> None:
    plan = later(plan_of(store), INDEX[kind] + BATCH)
    use(store, plan)
    assert store.schema().pending == ("9999_more", "code", "9999_more.later")
    assert [step.script for step in store.migration_plan()][-2:] == ["9999_more.later"] * 2
    store.migrate()
    assert store.schema().current
    with closing(open_by_hand(empty_url)) as by_hand:
        assert by_hand.execute("select count(*), min(done), max(done) from more") == [(10, 1, 1)]
    with closing(open_store(other_url)) as fresh:
        use(fresh, plan)
        fresh.migrate()
    assert catalogue(empty_url) == catalogue(other_url)
    assert applied(empty_url) == applied(other_url)


def test_next_run_continues(store: Store, empty_url: str, kind: str) -> None:
    plan = plan_of(store)
    store.run(store.jobs.enqueue([SPEC], "default"))
    job = "holdfast_job" if kind == "sqlite" else "job"
    fails_with_one_job = f"update more set n = 1 / (select count(*) - 1 from {job});\n"
    use(store, later(plan, f"{INDEX[kind]}{BATCH}{fails_with_one_job}"))
    with pytest.raises(StoreError, match=r"9999_more\.later"):
        store.migrate()
    assert store.schema().pending == ("9999_more.later",)
    assert not store.schema().current
    use(store, later(plan, INDEX[kind] + BATCH))
    store.migrate()
    assert store.schema().current
    with closing(open_by_hand(empty_url)) as by_hand:
        assert by_hand.execute("select count(*), min(done), max(done) from more") == [(10, 1, 1)]


def test_index_of_a_killed_process_is_made_again(empty_postgres_url: str) -> None:
    """A server leaves an invalid index behind when the building of one ends early."""
    with closing(open_store(empty_postgres_url)) as store:
        store.migrate()
        plan = plan_of(store)
        use(store, replace(plan, migrations=(*plan.migrations, MORE)))
        store.migrate()
        with psycopg.connect(empty_postgres_url, autocommit=True) as connection:
            connection.execute("insert into holdfast.more values (1)")
            with pytest.raises(psycopg.errors.UniqueViolation):
                connection.execute("create unique index concurrently more_later on holdfast.more (n)")
        use(store, later(plan, INDEX["postgres"]))
        store.migrate()
        with psycopg.connect(empty_postgres_url) as connection:
            valid = connection.execute(
                "select indisvalid, indisunique from pg_index where indexrelid = 'holdfast.more_later'::regclass"
            )
            assert valid.fetchone() == (True, False)


def test_migration_that_gets_no_lock_gives_up_and_changes_nothing(
    empty_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "LOCK_TIMEOUT", 0.05)
    monkeypatch.setattr(migrations, "GIVE_UP_AFTER", 0.2)
    with closing(open_store(empty_postgres_url)) as store:
        store.migrate()
        before = catalogue(empty_postgres_url)
        plan = plan_of(store)
        column = Script("9999_more", "alter table job add column extra integer;\n")
        use(store, replace(plan, migrations=(*plan.migrations, column)))
        with psycopg.connect(empty_postgres_url) as busy:
            busy.execute("select 1 from holdfast.job limit 1")
            with pytest.raises(StoreError) as refused:
                store.migrate()
            assert refused.value.code == "migration_blocked"
            assert catalogue(empty_postgres_url) == before
        assert store.migrate().current

"""Back to 0.1.0 and out again: nothing of what came with a release stays behind, and nothing of the user is touched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace

import psycopg
import pytest

from holdfast.engine.job import JobSpec
from holdfast.errors import HoldfastError, InvalidSetting, StoreError
from holdfast.features.assembly import Store, open_store
from holdfast.stores.migrations import Script
from tests.migration.catalogue import applied, catalogue
from tests.migration.next_release import MORE, plan_of, use, with_more
from tests.support.direct_sql import open_by_hand
from tests.support.frozen import Frozen
from tests.support.postgres_server import PostgresServer

pytestmark = [pytest.mark.req("DP-20", "HF-14", "SC-1"), pytest.mark.slow]

SPEC = JobSpec(
    id="01900000-0000-7000-8000-000000000001", kind="mail", payload="{}", enqueued_by="test", source_system="test"
)


@pytest.fixture
def store(empty_url: str) -> Iterator[Store]:
    with closing(open_store(empty_url)) as opened:
        opened.migrate()
        yield opened


@pytest.mark.every_case
def test_the_way_back_leads_to_the_first_release(
    store: Store, empty_url: str, other_url: str, previous_release: Frozen
) -> None:
    store.run(store.jobs.enqueue([SPEC], "default"))
    scripts = store.migrate_down("0.1")
    assert scripts == [f"{script.name}.down" for script in reversed(plan_of(store).migrations[1:])]
    previous_release.migrate(empty_url)
    previous_release.migrate(other_url)
    assert catalogue(empty_url) == catalogue(other_url)
    assert applied(empty_url) == applied(other_url)
    with closing(open_by_hand(empty_url)) as by_hand:
        assert by_hand.execute("select count(*) from job") == [(1,)]
    # And up again.
    assert store.migrate().current
    assert store.run(store.jobs.get(SPEC.id, "default")) is not None


@pytest.mark.every_case
def test_partitions_keep_their_guards_on_the_way_back(empty_postgres_url: str, previous_release: Frozen) -> None:
    with closing(open_store(empty_postgres_url)) as store:
        store.migrate()
        with psycopg.connect(empty_postgres_url) as connection:
            connection.execute("set search_path = holdfast, pg_catalog")
            connection.execute("select set_config('holdfast.tenant', '*', false)")
            connection.execute("select make_partition('2001-01-01', '2001-02-01')")
        before = catalogue(empty_postgres_url)
        assert len([line for line in before["triggers"] if "refuse_partition" in line]) > 3
        store.migrate_down("0.1.0")
        previous_release.migrate(empty_postgres_url)
        after = catalogue(empty_postgres_url)
        for kind in ("triggers", "policies"):
            assert [line for line in before[kind] if "2001" in line] == [line for line in after[kind] if "2001" in line]


def test_every_migration_says_its_way_back(store: Store) -> None:
    plan = plan_of(store)
    ways = {script.name.removesuffix(".down") for script in plan.downs}
    assert ways == {script.name for script in plan.migrations[1:]}


def test_way_back_that_loses_information_is_refused(store: Store, empty_url: str) -> None:
    down = Script("9999_more.down", "-- lost if exists (select 1 from more): the numbers\ndrop table more;\n")
    plan = plan_of(store)
    use(store, replace(plan, migrations=(*plan.migrations, MORE), downs=(*plan.downs, down)))
    store.migrate()
    with closing(open_by_hand(empty_url)) as by_hand:
        by_hand.execute("insert into more values (1)")
        before, marks = catalogue(empty_url), applied(empty_url)
        with pytest.raises(StoreError, match="the numbers") as refused:
            store.migrate_down("0.1")
        assert refused.value.code == "downgrade_loses"
        assert (catalogue(empty_url), applied(empty_url)) == (before, marks)
        by_hand.execute("delete from more")
    assert store.migrate_down("0.1")[0] == "9999_more.down"


def test_migration_without_a_way_back_is_refused(store: Store, empty_url: str) -> None:
    use(store, with_more(plan_of(store)))
    store.migrate()
    before = catalogue(empty_url)
    with pytest.raises(StoreError, match="9999_more") as refused:
        store.migrate_down("0.1")
    assert refused.value.code == "downgrade_impossible"
    assert catalogue(empty_url) == before


@pytest.mark.parametrize("release", ["", "0.0", "9", "0.1.0; drop", "next"])
def test_unknown_release_is_refused(store: Store, release: str) -> None:
    with pytest.raises(InvalidSetting, match=r"no way from") as refused:
        store.migrate_down(release)
    assert refused.value.code == "unknown_release"


def test_running_workers_are_not_left_without_their_functions(store: Store) -> None:
    store.run(store.leases.open("worker-1", 30, "*"))
    with pytest.raises(StoreError) as refused:
        store.migrate_down("0.1")
    assert refused.value.code == "workers_running"


@pytest.mark.every_case
def test_uninstalling_leaves_nothing(store: Store, empty_url: str) -> None:
    would = store.uninstall(dry=True)
    assert catalogue(empty_url) != {}
    removed = store.uninstall(dry=False)
    assert (removed.objects, removed.kept) == (would.objects, ())
    assert len(removed.objects) > 200
    assert _leftovers(empty_url) == []
    assert store.uninstall(dry=False).objects == ()
    assert store.migrate().current


def _leftovers(url: str) -> Sequence[object]:
    if url.startswith("sqlite:"):
        return list(catalogue(url).items())
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "select nspname from pg_namespace where nspname like 'holdfast%' union all"
            " select relname from pg_class where relnamespace >= 16384 and relnamespace <> 'public'::regnamespace"
            " and relnamespace::regnamespace::text not like 'pg\\_%' union all"
            " select proname from pg_proc where oid >= 16384 and pronamespace <> 'public'::regnamespace"
        )
        return rows.fetchall()


def test_unfinished_jobs_are_removed_only_by_force(store: Store, empty_url: str) -> None:
    store.run(store.jobs.enqueue([SPEC], "default"))
    assert store.uninstall(dry=True).unfinished == 1
    before = catalogue(empty_url)
    with pytest.raises(StoreError, match="1 job has not ended") as refused:
        store.uninstall(dry=False)
    assert refused.value.code == "jobs_unfinished"
    assert catalogue(empty_url) == before
    store.uninstall(dry=False, force=True)
    assert catalogue(empty_url) == {}


DEPENDS = {
    "postgres": "create trigger mine after insert on holdfast.job for each row execute function public.mine()",
    "sqlite": "CREATE TRIGGER mine AFTER INSERT ON holdfast_job BEGIN SELECT 1; END",
}


def test_objects_of_the_user_hinder_the_removal(store: Store, empty_url: str, kind: str) -> None:
    with closing(open_by_hand(empty_url)) as by_hand:
        if kind == "postgres":
            body = "as 'begin return null; end'"
            by_hand.execute(f"create function public.mine() returns trigger language plpgsql {body}")
        by_hand.execute(DEPENDS[kind])
        before = catalogue(empty_url)
        for dry in (True, False):
            with pytest.raises(StoreError, match="trigger mine") as refused:
                store.uninstall(dry=dry)
            assert refused.value.code == "foreign_objects"
        assert catalogue(empty_url) == before


def test_tables_of_the_user_stay(store: Store, empty_url: str, kind: str) -> None:
    name = "mine" if kind == "sqlite" else "holdfast.mine"
    with closing(open_by_hand(empty_url)) as by_hand:
        by_hand.execute(f"create table {name} (n integer)")
        by_hand.execute(f"insert into {name} values (7)")
        removal = store.uninstall(dry=False)
        assert by_hand.execute(f"select n from {name}") == [(7,)]
    assert bool(removal.kept) == (kind == "postgres")
    assert {line.split()[0] for line in str(catalogue(empty_url)).split("'") if "job" in line} == set()


def test_view_of_the_user_in_another_schema_hinders_the_removal(empty_postgres_url: str) -> None:
    with closing(open_store(empty_postgres_url)) as store:
        store.migrate()
        with psycopg.connect(empty_postgres_url) as connection:
            connection.execute("create view public.mine as select id from holdfast.job")
        with pytest.raises(HoldfastError, match=r"view public\.mine") as refused:
            store.uninstall(dry=False)
        assert refused.value.code == "foreign_objects"


def test_roles_of_the_server_are_removed_with_its_last_database() -> None:
    server = PostgresServer(18, in_memory=True)
    try:
        server.start()
        first, second = (open_store(server.create_database(name)) for name in ("first", "second"))
        with closing(first), closing(second), psycopg.connect(server.dsn(), autocommit=True) as session:
            first.migrate()
            second.migrate()
            names = "select array_agg(rolname::text order by 1) from pg_roles where rolname like 'holdfast%'"
            ((roles,),) = session.execute(names).fetchall()
            assert len(roles) == 5
            removed = first.uninstall(dry=False, roles=True)
            assert [line.split(":")[0] for line in removed.kept] == [f"role {role}" for role in roles]
            assert session.execute(names).fetchall() == [(roles,)], "the other database grants them rights"
            removed = second.uninstall(dry=False, roles=True)
            assert {f"role {role}" for role in roles} <= set(removed.objects)
            assert session.execute(names).fetchall() == [(None,)]
    finally:
        server.destroy()

"""A release can change anything: a database that was upgraded equals a new one, object by object."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from holdfast.errors import StoreError
from holdfast.features.assembly import Store, open_store
from holdfast.stores.migrations import Plan, Script
from holdfast.stores.postgres.catalogue import IDENTITIES
from holdfast.stores.postgres.migrations import installed_first
from holdfast.stores.sqlite.upgrade import FIRST_INSTALLED
from tests.migration.catalogue import applied, catalogue
from tests.migration.next_release import plan_of, use
from tests.support.direct_sql import open_by_hand
from tests.support.frozen import Frozen
from tests.support.postgres_roles import as_role, ensure_roles

pytestmark = [pytest.mark.req("DP-20", "HF-14", "SC-1"), pytest.mark.slow]

OWNER = "holdfast_upgrading"
CODE_OF_SQLITE = "select type || ' ' || name from sqlite_schema where type in ('view', 'trigger')"

# Two made-up releases after this one. The second changes whatever the first one made.
TABLES = {
    "postgres": (
        """
        create table depot (id integer primary key, tenant text not null, old_name text, size integer not null);
        create table shelf (id integer primary key, depot_id integer references depot);
        """,
        """
        alter table depot drop column old_name;
        alter table depot alter column size type bigint;
        alter table depot add column place text;
        drop table shelf;
        create table crate (id bigint primary key, tenant text not null);
        alter table agent add column colour text;
        """,
    ),
    "sqlite": (
        """
        CREATE TABLE holdfast_depot (id INTEGER PRIMARY KEY, tenant TEXT NOT NULL, old_name TEXT, size INTEGER);
        CREATE TABLE holdfast_shelf (id INTEGER PRIMARY KEY, depot_id INTEGER);
        """,
        """
        ALTER TABLE holdfast_depot DROP COLUMN old_name;
        ALTER TABLE holdfast_depot ADD COLUMN place TEXT;
        DROP TABLE holdfast_shelf;
        CREATE TABLE holdfast_crate (id INTEGER PRIMARY KEY, tenant TEXT NOT NULL);
        ALTER TABLE holdfast_agent ADD COLUMN colour TEXT;
        """,
    ),
}
CODE = {
    "postgres": (
        """
        create or replace function weigh(p_of integer) returns integer language sql stable as $$ select p_of $$;
        create or replace function label_of(p_depot depot) returns text language sql stable return p_depot.old_name;
        create or replace function spare() returns void language sql as $$ select null::void $$;
        create or replace function on_depot() returns trigger language plpgsql as $$ begin return new; end $$;
        create or replace trigger watch before insert or update of old_name on depot
            for each row execute function on_depot();
        create or replace trigger only_once after delete on depot for each statement execute function on_depot();
        create constraint trigger later after update on shelf deferrable initially deferred
            for each row execute function on_depot();
        create or replace trigger timed before update of size on depot for each row when (weigh(new.size) > 0)
            execute function on_depot();
        create or replace view depots as select d.id, d.old_name, weigh(d.size) as weight from depot d;
        create or replace view plain as select d.id from depot d;
        create or replace function all_depots() returns setof depots language sql stable as $$ select * from depots $$;
        alter table depot alter column size set default weigh(3);
        """,
        """
        create or replace function weigh(p_of bigint, p_unit text default 'kg') returns text language sql stable
            as $$ select p_of || p_unit $$;
        create or replace function on_depot() returns trigger language plpgsql security definer
            set search_path from current as $$ begin return null; end $$;
        create or replace trigger watch after insert on depot for each row execute function on_depot();
        create constraint trigger later after update on crate deferrable initially deferred
            for each row execute function on_depot();
        create or replace trigger timed before update of size on depot for each row when (length(weigh(new.size)) > 0)
            execute function on_depot();
        create or replace view depots as select d.place, d.id, weigh(d.size) as weight from depot d;
        create or replace view plain as select d.id, d.place from depot d;
        create or replace view crates as select c.id from crate c;
        create or replace function all_depots() returns setof depots language sql stable as $$ select * from depots $$;
        alter table depot alter column size set default length(weigh(3));
        """,
    ),
    "sqlite": (
        """
        CREATE VIEW holdfast_depots AS SELECT id, old_name FROM holdfast_depot;
        CREATE VIEW holdfast_spare AS SELECT 1 AS one;
        CREATE TRIGGER holdfast_watch BEFORE UPDATE OF old_name ON holdfast_depot BEGIN SELECT 1; END;
        CREATE TRIGGER holdfast_first AFTER INSERT ON holdfast_depot BEGIN SELECT 1; END;
        CREATE TRIGGER holdfast_gone AFTER DELETE ON holdfast_shelf BEGIN SELECT 1; END;
        """,
        """
        CREATE VIEW holdfast_depots AS SELECT id, place FROM holdfast_depot;
        CREATE VIEW holdfast_crates AS SELECT id FROM holdfast_crate;
        CREATE TRIGGER holdfast_watch AFTER UPDATE OF place ON holdfast_depot BEGIN SELECT 2; END;
        CREATE TRIGGER holdfast_added AFTER INSERT ON holdfast_crate BEGIN SELECT 1; END;
        """,
    ),
}
GRANTED = ("'spare', 'weigh'", "'weigh', 'all_depots'")


def release(today: Plan, kind: str, number: int) -> Plan:
    """The made-up release ``number`` (0 or 1) after this one."""
    tables = tuple(Script(f"{n + 9000}_more", TABLES[kind][n].replace("        ", "")) for n in range(number + 1))
    text, code = today.code.sql, CODE[kind][number].replace("        ", "")
    if kind == "postgres":
        before, views, after = text.partition("-- views\n")
        assert views
        text = f"{before}{code}{views}{after}".replace("'refusal_reason', 'policies'", f"'policies', {GRANTED[number]}")
    else:
        text = f"{text}\n{code}"
    code_script = Script("code", text)
    return replace(today, migrations=(*today.migrations, *tables), code=code_script, release=f"9.{number}")


@pytest.fixture
def store(empty_url: str) -> Iterator[Store]:
    with closing(open_store(empty_url)) as opened:
        yield opened


def fresh(url: str, plan: Plan | None = None) -> None:
    with closing(open_store(url)) as store:
        if plan is not None:
            use(store, plan)
        store.migrate()


@pytest.mark.every_case
def test_upgraded_release_equals_a_new_one(store: Store, empty_url: str, other_url: str, kind: str) -> None:
    today = plan_of(store)
    fresh(other_url, release(today, kind, 1))
    wanted = catalogue(other_url)
    for number in (0, 1):
        use(store, release(today, kind, number))
        store.migrate()
        assert store.schema().current
    assert catalogue(empty_url) == wanted
    assert applied(empty_url) == applied(other_url)


@pytest.mark.every_case
@pytest.mark.parametrize("number", [None, 0, 1])
def test_upgraded_first_release_equals_a_new_database(
    store: Store, empty_url: str, other_url: str, kind: str, number: int | None, previous_release: Frozen
) -> None:
    plan = plan_of(store) if number is None else release(plan_of(store), kind, number)
    previous_release.migrate(empty_url)
    fresh(other_url, plan)
    use(store, plan)
    store.migrate()
    assert catalogue(empty_url) == catalogue(other_url)
    assert applied(empty_url) == applied(other_url)
    assert _installed(empty_url) == _installed(other_url)


def test_the_record_of_a_first_installation_is_complete(store: Store, empty_url: str) -> None:
    """What a direct installation records and what an upgrade does are the same."""
    store.migrate()
    recorded = _installed(empty_url)
    with closing(open_by_hand(empty_url)) as by_hand:
        by_hand.execute("update migration set digest = 'older' where name = 'code'")
    store.migrate()
    assert _installed(empty_url) == recorded
    assert len(recorded) > 200


def _installed(url: str) -> set[str]:
    with closing(open_by_hand(url)) as by_hand:
        return {name for (name,) in by_hand.execute("select name from installed")}


MINE = {
    "postgres": (
        "create table mine (n integer)",
        "create view my_jobs as select id, kind from jobs",
        "create function my_own(n integer) returns integer language sql as 'select n'",
        "create function enqueue(n integer) returns integer language sql as 'select n'",
        "create trigger my_trigger after insert on mine for each row execute function refuse_change()",
        "create trigger aaa_mine after insert on job for each row execute function refuse_change()",
        "grant execute on function my_own(integer) to public",
        "comment on function my_own(integer) is 'my own'",
    ),
    "sqlite": (
        "CREATE TABLE mine (n INTEGER)",
        "CREATE VIEW my_jobs AS SELECT id, kind FROM holdfast_job",
        "CREATE TRIGGER my_trigger AFTER INSERT ON mine BEGIN SELECT 1; END",
        "CREATE TRIGGER holdfast_mine AFTER INSERT ON holdfast_job WHEN NEW.id = 'never' BEGIN SELECT 1; END",
    ),
}


@pytest.mark.every_case
def test_objects_of_the_user_stay(store: Store, empty_url: str, kind: str) -> None:
    store.migrate()
    before = catalogue(empty_url)
    with closing(open_by_hand(empty_url)) as by_hand:
        for statement in MINE[kind]:
            by_hand.execute(statement)
        mine = _lines(catalogue(empty_url)) - _lines(before)
        by_hand.execute("update migration set digest = 'older' where name = 'code'")
    today = plan_of(store)
    use(store, release(today, kind, 1))
    store.migrate()
    assert mine <= _lines(catalogue(empty_url))
    assert len(mine) >= len(MINE[kind]) - 2


def _lines(found: dict[str, list[str]]) -> set[str]:
    return {f"{kind} {line}" for kind, lines in found.items() for line in lines}


FOREIGN = {
    "postgres": {
        "view mine": "create view mine as select id, old_name from depots",
        "trigger mine on table job": "create trigger mine after insert on job for each row execute function gone()",
        "function mine": "create function mine() returns setof depots language sql as 'select * from depots'",
        "constraint mine on table consumer": (
            "alter table consumer add constraint mine check (weigh(1::integer) = 1) not valid"
        ),
    },
    "sqlite": {
        "view mine": "CREATE VIEW mine AS SELECT one FROM holdfast_spare",
        "trigger one": "CREATE TRIGGER one AFTER INSERT ON holdfast_agent BEGIN SELECT one FROM holdfast_spare; END",
        "trigger two": "CREATE TRIGGER two AFTER INSERT ON holdfast_agent BEGIN SELECT id FROM holdfast_shelf; END",
        "trigger three": "CREATE TRIGGER three AFTER INSERT ON holdfast_shelf BEGIN SELECT 1; END",
    },
}
CASES = [(kind, name) for kind, names in FOREIGN.items() for name in names]


@pytest.mark.every_case
@pytest.mark.parametrize(("kind", "named"), CASES, ids=[f"{kind}-{name}" for kind, name in CASES])
def test_foreign_object_in_the_way_is_named(store: Store, empty_url: str, kind: str, named: str) -> None:
    today = plan_of(store)
    with_gone = release(today, kind, 0)
    if kind == "postgres":
        text = "create or replace function gone() returns trigger language plpgsql as $$ begin return null; end $$;\n"
        with_gone = replace(with_gone, code=Script("code", with_gone.code.sql + text))
    use(store, with_gone)
    store.migrate()
    with closing(open_by_hand(empty_url)) as by_hand:
        by_hand.execute(FOREIGN[kind][named])
    before, marks = catalogue(empty_url), applied(empty_url)
    use(store, release(today, kind, 1))
    with pytest.raises(StoreError, match=named) as refused:
        store.migrate()
    assert refused.value.code == "foreign_objects"
    assert (catalogue(empty_url), applied(empty_url)) == (before, marks)


def test_view_of_the_user_does_not_hinder_a_release_that_adds_columns(store: Store, empty_url: str, kind: str) -> None:
    """`plain` gets another column, and `depots` loses one."""
    today = plan_of(store)
    use(store, release(today, kind, 0))
    store.migrate()
    prefix = "holdfast_" if kind == "sqlite" else ""
    with closing(open_by_hand(empty_url)) as by_hand:
        by_hand.execute(f"create view mine as select id from {prefix}{'plain' if kind == 'postgres' else 'depots'}")
    use(store, release(today, kind, 1))
    assert store.migrate().current
    assert "mine" in str(catalogue(empty_url))


def test_equal_tables_are_not_locked(empty_postgres_url: str) -> None:
    """A release that changes one function needs no lock on a table that workers use."""
    with closing(open_store(empty_postgres_url)) as store:
        store.migrate()
        today = plan_of(store)
        more = "create or replace function added() returns integer language sql as $$ select 1 $$;\n"
        use(store, replace(today, code=Script("code", today.code.sql.replace("-- views\n", more + "-- views\n"))))
        with psycopg.connect(empty_postgres_url) as busy:
            busy.execute(
                "lock table holdfast.job, holdfast.job_state, holdfast.event, holdfast.lease in row exclusive mode"
            )
            assert store.migrate().current
    with psycopg.connect(empty_postgres_url) as connection:
        assert connection.execute("select holdfast.added()").fetchone() == (1,)


def test_owner_who_may_not_create_schemas_is_told(empty_postgres_url: str) -> None:
    name = urlsplit(empty_postgres_url).path.lstrip("/")
    with psycopg.connect(empty_postgres_url, autocommit=True) as admin:
        ensure_roles(admin, OWNER)
        on_database = sql.SQL("create on database {}").format(sql.Identifier(name))
        admin.execute(sql.SQL("grant {} to {}").format(on_database, sql.Identifier(OWNER)))
        with closing(open_store(as_role(empty_postgres_url, OWNER))) as store:
            store.migrate()
            admin.execute(sql.SQL("revoke {} from {}").format(on_database, sql.Identifier(OWNER)))
            use(store, release(plan_of(store), "postgres", 0))
            before = catalogue(empty_postgres_url)
            with pytest.raises(StoreError) as refused:
                store.migrate()
            assert refused.value.code == "migration_needs_create"
            assert catalogue(empty_postgres_url) == before
            admin.execute(sql.SQL("grant {} to {}").format(on_database, sql.Identifier(OWNER)))
            assert store.migrate().current


def test_partitions_of_another_time_stay(empty_postgres_url: str) -> None:
    """The partitions that an installation makes are named after its time."""
    with closing(open_store(empty_postgres_url)) as store:
        store.migrate()
        with psycopg.connect(empty_postgres_url) as connection:
            connection.execute("set search_path = holdfast, pg_catalog")
            ((name,),) = connection.execute("select name from event_partition").fetchall()
            connection.execute("set session_replication_role = replica")
            connection.execute(f"alter table {name} rename to event_20010101_000000")
            connection.execute("update event_partition set name = 'event_20010101_000000'")
        before = [line for lines in catalogue(empty_postgres_url).values() for line in lines if "_20010101_" in line]
        assert len([line for line in before if "refuse_" in line]) == 4
        use(store, release(plan_of(store), "postgres", 1))
        assert store.migrate().current
        after = [line for lines in catalogue(empty_postgres_url).values() for line in lines if "_20010101_" in line]
        assert after == before
        changed = plan_of(store).code.sql.replace(
            "'insert', 'update', 'delete', 'truncate'] loop", "'insert', 'update'] loop"
        )
        use(
            store,
            replace(plan_of(store), code=Script("code", changed.replace("refuse_%s before", "refused_%s before"))),
        )
        assert store.migrate().current
        assert "refused_insert BEFORE INSERT ON holdfast.event_20010101_" in str(catalogue(empty_postgres_url))
        assert name not in str(catalogue(empty_postgres_url)["triggers"])


def test_frozen_list_is_what_the_first_release_installed(empty_url: str, kind: str, previous_release: Frozen) -> None:
    previous_release.migrate(empty_url)
    with closing(open_by_hand(empty_url)) as by_hand:
        found = {name for (name,) in by_hand.execute(IDENTITIES if kind == "postgres" else CODE_OF_SQLITE)}
    assert found == (installed_first() if kind == "postgres" else set(FIRST_INSTALLED.read_text().splitlines()))


def test_all_foreign_objects_are_named_at_once(empty_postgres_url: str) -> None:
    with closing(open_store(empty_postgres_url)) as store:
        today = plan_of(store)
        use(store, release(today, "postgres", 0))
        store.migrate()
        with closing(open_by_hand(empty_postgres_url)) as by_hand:
            for name in ("view mine", "constraint mine on table consumer"):
                by_hand.execute(FOREIGN["postgres"][name])
        use(store, release(today, "postgres", 1))
        with pytest.raises(StoreError, match=r"constraint mine .*; view mine ") as refused:
            store.migrate()
        assert refused.value.code == "foreign_objects"

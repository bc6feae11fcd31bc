"""The PostgreSQL catalogue of the schema: every table has its policy, no function is public.

The tests read the catalogue instead of listing tables and functions, so they cover later additions too.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from holdfast.features.assembly import open_store
from holdfast.features.postgres import PostgresStore

pytestmark = pytest.mark.req("JF-2", "DP-2", "DP-17")

Rows = list[tuple[object, ...]]

# These tables hold no data of a tenant and are readable by every role.
LOCKS = {"lock_dispatch", "lock_seal", "mutex", *(f"lock_subscription_{n}" for n in range(8))}  # empty, or only locked
WITHOUT_TENANT = {
    "clock",
    "migration",
    "installed",
    "cancellation",
    "dispatch",
    "usage_place",
    "upkeep",
    "owed",
    "event_partition",
    "ledger_epoch",
    *LOCKS,
}


class Catalogue:
    def __init__(self, connection: psycopg.Connection[tuple[object, ...]], schema: str) -> None:
        self._connection = connection
        self.schema = schema

    def rows(self, query: str) -> Rows:
        return self._connection.execute(query, {"schema": self.schema}).fetchall()

    def names(self, query: str) -> set[str]:
        return {str(row[0]) for row in self.rows(query)}


@pytest.fixture(params=["owned_postgres_url", pytest.param("another schema", marks=pytest.mark.slow)])
def catalogue(request: pytest.FixtureRequest) -> Iterator[Catalogue]:
    schema = "holdfast"
    if request.param == "another schema":
        url, schema = request.getfixturevalue("empty_postgres_url"), "jobs_x"
        PostgresStore(url, schema=schema).migrate()
    else:
        url = request.getfixturevalue(request.param)
    with psycopg.connect(url, autocommit=True) as connection:
        yield Catalogue(connection, schema)


TABLES = """
select c.relname from pg_class c where c.relnamespace = %(schema)s::regnamespace and c.relkind in ('r', 'p')
"""


def test_core_tables_exist(catalogue: Catalogue) -> None:
    assert catalogue.names(TABLES) >= {"job", "job_state", "event", "lease", "result", "checkpoint", "artifact"}


def test_every_table_forces_row_level_security(catalogue: Catalogue) -> None:
    unguarded = catalogue.names(TABLES + " and not (c.relrowsecurity and c.relforcerowsecurity)")
    assert unguarded == set()


def test_every_table_has_a_policy_for_every_command_and_role(catalogue: Catalogue) -> None:
    covered = catalogue.names(
        "select tablename from pg_policies where schemaname = %(schema)s and cmd = 'ALL'"
        " and permissive = 'PERMISSIVE' and roles = '{public}'"
    )
    assert catalogue.names(TABLES) == covered


def test_every_policy_checks_the_tenant(catalogue: Catalogue) -> None:
    """Except one: a caller that presents a token's hash sees that row, because the token determines its tenant."""
    blind = catalogue.names(
        "select tablename from pg_policies where schemaname = %(schema)s"
        " and (qual not like '%%scope()%%' or qual not like '%%tenant%%')"
        " and (tablename, policyname) <> ('api_token', 'presented')"
    )
    assert blind == WITHOUT_TENANT


def test_every_other_table_has_a_tenant_column(catalogue: Catalogue) -> None:
    having = catalogue.names(
        "select c.relname from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant'"
        " and a.attnotnull where c.relnamespace = %(schema)s::regnamespace and c.relkind in ('r', 'p')"
    )
    assert catalogue.names(TABLES) - having == WITHOUT_TENANT


def test_every_view_runs_as_its_caller(catalogue: Catalogue) -> None:
    views = (
        "select c.relname from pg_class c where c.relnamespace = %(schema)s::regnamespace and c.relkind in ('v', 'm')"
    )
    assert catalogue.names(views) >= {"jobs", "attempts"}
    as_owner = catalogue.names(views + " and not coalesce('security_invoker=true' = any (c.reloptions), false)")
    ((version,),) = catalogue.rows("select current_setting('server_version_num')::integer")
    # Before version 15 views lack this option. Row-level security still applies, because every table forces it.
    if int(str(version)) < 150000:
        assert catalogue.names(TABLES + " and not c.relforcerowsecurity") == set()
    else:
        assert as_owner == set()


def test_every_security_definer_function_pins_its_search_path(catalogue: Catalogue) -> None:
    definers = catalogue.rows(
        "select p.oid::regprocedure::text, coalesce((select split_part(c, '=', 2) from unnest(p.proconfig) c"
        " where c like 'search_path=%%'), '') from pg_proc p"
        " where p.pronamespace = %(schema)s::regnamespace and p.prosecdef"
    )
    assert len(definers) > 20
    loose = [row for row in definers if row[1] != f"{catalogue.schema}, pg_catalog, pg_temp"]
    assert loose == []


def test_no_function_is_public(catalogue: Catalogue) -> None:
    """A null ACL is PostgreSQL's default, and that is EXECUTE for PUBLIC."""
    public = catalogue.names(
        "select p.oid::regprocedure::text from pg_proc p where p.pronamespace = %(schema)s::regnamespace"
        " and (p.proacl is null or exists (select from aclexplode(p.proacl) a where a.grantee = 0))"
    )
    assert public == set()


def test_no_table_or_schema_is_public(catalogue: Catalogue) -> None:
    public = catalogue.names(
        "select c.relname from pg_class c, aclexplode(c.relacl) a"
        " where c.relnamespace = %(schema)s::regnamespace and a.grantee = 0"
        " union all select n.nspname from pg_namespace n, aclexplode(n.nspacl) a"
        " where n.nspname = %(schema)s::text and a.grantee = 0"
    )
    assert public == set()


def test_no_other_role_can_create_in_the_schema(catalogue: Catalogue) -> None:
    """A role that could create there could shadow one of our functions."""
    creators = catalogue.names(
        "select rolname from pg_roles r join pg_namespace n on n.nspname = %(schema)s"
        " where has_schema_privilege(r.oid, n.oid, 'create') and not r.rolsuper and r.oid <> n.nspowner"
    )
    assert creators == set()


@pytest.mark.req("DP-20")
def test_no_extension_is_required(catalogue: Catalogue) -> None:
    assert catalogue.names("select extname from pg_extension") == {"plpgsql"}


@pytest.mark.req("DP-20")
def test_owner_needs_no_special_rights(owned_postgres_url: str) -> None:
    with psycopg.connect(owned_postgres_url) as connection:
        row = connection.execute(
            "select rolsuper, rolbypassrls, rolcreaterole, rolcreatedb, c.relowner = r.oid from pg_roles r,"
            " pg_class c where rolname = current_user and c.oid = 'holdfast.job'::regclass"
        ).fetchone()
    assert row == (False, False, False, False, True)
    store = open_store(owned_postgres_url)
    assert store.schema().current


@pytest.mark.req("CX-21")
def test_every_table_and_column_has_a_comment(catalogue: Catalogue) -> None:
    without = catalogue.names(TABLES + " and not c.relispartition and obj_description(c.oid, 'pg_class') is null")
    without |= catalogue.names(
        "select c.relname || '.' || a.attname"
        " from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0"
        " where c.relnamespace = %(schema)s::regnamespace and c.relkind in ('r', 'p') and not c.relispartition"
        " and not a.attisdropped and col_description(c.oid, a.attnum) is null"
    )
    assert without == set()


@pytest.mark.req("CX-21")
def test_every_view_and_granted_function_has_a_comment(catalogue: Catalogue) -> None:
    without = catalogue.names(
        "select c.relname from pg_class c where c.relnamespace = %(schema)s::regnamespace and c.relkind = 'v'"
        " and obj_description(c.oid, 'pg_class') is null"
    )
    without |= catalogue.names(
        "select p.proname from pg_proc p, pg_roles r where p.pronamespace = %(schema)s::regnamespace"
        " and r.rolname like 'holdfast%%' and r.oid <> p.proowner"
        " and has_function_privilege(r.oid, p.oid, 'execute') and obj_description(p.oid, 'pg_proc') is null"
    )
    assert without == set()

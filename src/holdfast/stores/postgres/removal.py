"""What a migration would do, the way back to an earlier release, and the removal of all that Holdfast installed."""

from __future__ import annotations

from functools import partial
from typing import Any

import psycopg
from psycopg import Connection, sql

from holdfast.stores.migrations import (
    CODE,
    RELEASE,
    SUPPORTS,
    Plan,
    check_nothing_lost,
    foreign_objects,
    unfinished_jobs,
    workers_running,
)
from holdfast.stores.postgres.catalogue import Catalogue, CodeObject, read
from holdfast.stores.postgres.changes import compare, finishing, in_fresh, of_release, partitions_on
from holdfast.stores.postgres.doctor import ROLES
from holdfast.stores.postgres.errors import translate
from holdfast.stores.postgres.migration_steps import split, steps
from holdfast.stores.postgres.migrations import applied, fresh, plan_for, recorded, without_waiting
from holdfast.stores.postgres.runner import run_steps
from holdfast.stores.requests import MigrationStep, Removal

_WORKERS = "select count(*) from lease where ended_at is null and until > clock_timestamp() and name <> 'reservation'"
_UNFINISHED = "select count(*) from job_state where finished_at is null"
_EVERY_TENANT = "select set_config('holdfast.tenant', '*', true)"
_RELATIONS = """
select case c.relkind when 'S' then 'sequence' else 'table' end, quote_ident(c.relname)
  from pg_class c where c.relnamespace = current_schema()::regnamespace
   and c.relkind in ('r', 'p', 'S') and not c.relispartition
union all
select case t.typtype when 'd' then 'domain' else 'type' end, quote_ident(t.typname)
  from pg_type t left join pg_class c on c.oid = t.typrelid
 where t.typnamespace = current_schema()::regnamespace and (t.typtype in ('d', 'e') or c.relkind = 'c')
"""


def plan_on(connection: Connection[Any], plan: Plan, schema: str) -> list[MigrationStep]:
    """The statements that ``migrate`` would run. Nothing is changed or locked."""
    with connection.transaction(force_rollback=True):
        digests = run_steps(connection, applied(schema))
        server_plan = run_steps(connection, plan_for(plan))
        server_plan.check_supported(digests)
        pending = server_plan.pending(digests)
        named: list[tuple[str, str]] = []
        if not digests:
            named = [(each.name, statement) for each in pending for statement in split(each.sql)]
        elif pending:
            target = of_release(connection, schema, fresh(connection, server_plan))
            changes = compare(connection, schema, target, recorded(connection, schema))
            named += [(CODE, each.drop) for each in changes.drop]
            named += [(each.name, statement) for each in pending if each.name != CODE for statement in split(each.sql)]
            late = [*changes.make, *finishing(connection, schema, target)]
            named += [(CODE, statement) for each in late for statement in split(each.create)]
        for script in plan.pending_later(digests):
            named += [(script.name, statement) for statement in split(script.sql)]
        connection.execute(f'set local search_path = "{schema}", pg_catalog')
        return list(steps(connection, named))


def down_on(connection: Connection[Any], plan: Plan, schema: str, release: str) -> list[str]:
    """Return the tables to an earlier release, without code objects: that release installs its own."""
    ways = plan.ways_down(release)
    with connection.transaction():
        plan.check_supported(run_steps(connection, applied(schema)))

    def go() -> None:
        with connection.transaction():
            _begin(connection, schema)
            if connection.execute(_WORKERS).fetchall()[0][0]:
                raise workers_running()
            check_nothing_lost(
                what
                for way in ways
                for condition, what in way.losses
                if connection.execute(f"select {condition}").fetchall()[0][0]
            )
            _drop_code(connection, schema, recorded(connection, schema))
            for way in ways:
                connection.execute(way.sql)
                name = way.name.removesuffix(".down")
                connection.execute("delete from migration where name in (%s, %s)", (name, f"{name}.later"))
            connection.execute("delete from migration where name = any (%s)", ([CODE, RELEASE, SUPPORTS],))

    _refusing(go)
    return [way.name for way in ways]


def uninstall_on(
    connection: Connection[Any], plan: Plan, schema: str, *, dry: bool, force: bool, roles: bool
) -> Removal:
    """Drop everything that Holdfast installed in the schema, and the schema if it is empty then."""
    found: list[Removal] = []

    def go() -> None:
        with connection.transaction(force_rollback=dry):
            if not run_steps(connection, applied(schema)):
                found.append(Removal((), 0))
                return
            _begin(connection, schema)
            unfinished = connection.execute(_UNFINISHED).fetchall()[0][0]
            if unfinished and not (force or dry):
                raise unfinished_jobs(unfinished)
            names = in_fresh(connection, fresh(connection, plan), partial(_relations, connection))
            objects = _drop_code(connection, schema, recorded(connection, schema))
            _check_tables(connection, schema, {name for kind, name in names if kind == "table"})
            for kind in ("table", "sequence", "domain", "type"):
                mine = [f'"{schema}".{name}' for each, name in names if each == kind]
                connection.execute(f"drop {kind} if exists {', '.join(mine)}".encode())
            kept = _drop_schema(connection, schema)
            objects += [f"{kind} {name}" for kind, name in names] + ([] if kept else [f"schema {schema}"])
            found.append(Removal(tuple(sorted(objects)), unfinished, tuple(kept)))

    _refusing(go)
    removal = found[-1]
    if not roles:
        return removal
    objects, kept = _drop_roles(connection, dry=dry)
    return Removal((*removal.objects, *objects), removal.unfinished, (*removal.kept, *kept))


def _begin(connection: Any, schema: str) -> None:
    connection.execute(f'lock table "{schema}".migration in exclusive mode')
    connection.execute("set local lock_timeout = '2s'")
    connection.execute(f'set local search_path = "{schema}", pg_catalog, pg_temp')
    connection.execute(_EVERY_TENANT)


def _refusing(go: Any) -> None:
    try:
        without_waiting(lambda _: go())
    except psycopg.errors.DependentObjectsStillExist as error:
        raise foreign_objects((error.diag.message_detail or str(error)).splitlines()) from error
    except psycopg.Error as error:
        raise translate(error) from error


def _drop_code(connection: Connection[Any], schema: str, recorded: set[str]) -> list[str]:
    live = read(connection, schema)
    partitions = partitions_on(connection)
    tables = {name.rpartition(" on ")[2] for name in recorded if " on " in name} | partitions
    columns = {name: kind for name, kind in live.columns.items() if name.partition(".")[0] not in partitions}
    drop = compare(connection, schema, Catalogue({}, columns), recorded).drop
    late = [each for each in live.objects.values() if each.kind == "grant" or _is_on(each, "security", tables)]
    _run(connection, schema, [each.drop for each in (*late, *drop)])
    return [each.identity for each in drop]


def _is_on(each: CodeObject, kind: str, tables: set[str]) -> bool:
    return each.kind == kind and each.on in tables


def _run(connection: Connection[Any], schema: str, statements: list[str]) -> None:
    connection.execute(f'set local search_path = "{schema}", pg_catalog, pg_temp')
    connection.execute(";\n".join(statements).encode())


def _relations(connection: Connection[Any], schema: str) -> list[tuple[str, str]]:
    connection.execute(f'set local search_path = "{schema}", pg_catalog')
    return [(kind, name) for kind, name in connection.execute(_RELATIONS).fetchall()]


def _check_tables(connection: Connection[Any], schema: str, tables: set[str]) -> None:
    """Triggers and policies of the user would disappear with our tables."""
    found = read(connection, schema).objects.values()
    if foreign := [each.identity for each in found if each.kind in ("trigger", "policy") and each.on in tables]:
        raise foreign_objects(foreign)


def _drop_schema(connection: Connection[Any], schema: str) -> list[str]:
    try:
        with connection.transaction():
            connection.execute(sql.SQL("drop schema {}").format(sql.Identifier(schema)))
    except psycopg.errors.DependentObjectsStillExist as error:
        detail = "; ".join((error.diag.message_detail or "").splitlines())
        return [f"schema {schema}: {detail}"]
    return []


def _drop_roles(connection: Connection[Any], *, dry: bool) -> tuple[list[str], list[str]]:
    dropped, kept = [], []
    for role in ROLES:
        if not connection.execute("select 1 from pg_roles where rolname = %s", (role,)).fetchall():
            continue
        try:
            with connection.transaction(force_rollback=dry):
                connection.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))
            dropped.append(f"role {role}")
        except (psycopg.errors.DependentObjectsStillExist, psycopg.errors.InsufficientPrivilege) as error:
            # With a dry run the grants of this schema are still there.
            reason = str(error).splitlines()[0]
            kept.append(f"role {role}: {reason}")
    return dropped, kept

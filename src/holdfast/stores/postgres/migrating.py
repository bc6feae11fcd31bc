"""Lays the schema: what is pending, on a connection of its own; or all of it, as a script for others to apply."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import Connection

from holdfast.stores.base import SchemaStatus
from holdfast.stores.migrate import CODE, Plan, Script
from holdfast.stores.postgres.applied import applied, plan_for, status
from holdfast.stores.postgres.doctor import ROLES
from holdfast.stores.postgres.running import asked
from holdfast.stores.postgres.translating import translate


def status_on(connection: Connection[Any], plan: Plan, schema: str) -> SchemaStatus:
    return asked(connection, status(plan, schema).start())


# Another process creates the schema at this moment: the names it takes are refused once it has committed.
CREATED_MEANWHILE = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.DuplicateSchema,
    psycopg.errors.DuplicateTable,
    psycopg.errors.DuplicateObject,
)


def migrate_on(connection: Connection[Any], plan: Plan, schema: str) -> SchemaStatus:
    try:
        _migrate(connection, plan, schema, yields=True)
    except CREATED_MEANWHILE:
        _migrate(connection, plan, schema, yields=False)
    return status_on(connection, plan, schema)


def _migrate(connection: Connection[Any], plan: Plan, schema: str, *, yields: bool) -> None:
    # Read in a transaction of its own: whoever waits for the lock below must hold none that the one before it needs.
    with connection.transaction():
        found = asked(connection, applied(schema))
        pending = asked(connection, plan_for(plan)).pending(found)
    with connection.transaction():
        if found and pending:
            # One migrates, and others wait for it. The lock needs the privileges of the owner (docs/adr/0048).
            connection.execute(f'lock table "{schema}".migration in exclusive mode')
        _apply(connection, plan, schema, yields=yields)


def _apply(connection: Connection[Any], plan: Plan, schema: str, *, yields: bool) -> None:
    found = asked(connection, applied(schema))
    created = not found
    wanted = asked(connection, plan_for(plan))
    wanted.check_not_newer(found)
    for script in wanted.pending(found):
        if not found:
            connection.execute(_create(schema))
            found = {"": ""}
        connection.execute(_search_path(schema))
        try:
            connection.execute(script.sql)  # no parameters: several statements in one go
        except psycopg.Error as error:
            if created and yields and isinstance(error, CREATED_MEANWHILE):
                raise
            raise script.failure(translate(error), str(error)) from error
        if script.name == CODE:
            script = asked(connection, plan_for(plan)).code
        connection.execute(*_mark(script))


def migration_script(plan: Plan, schema: str) -> str:
    parts = ["begin;", f"{_create(schema)};", f"{_search_path(schema)};"]
    plan = plan.for_roles(ROLES)  # which the script itself creates
    for script in (*plan.migrations, plan.code):
        parts.append(f"-- {script.name}\n{script.sql}")
        parts.append(f"insert into migration (name, digest) values ('{script.name}', '{script.digest}');")
    return "\n".join([*parts, "commit;\n"])


def _create(schema: str) -> str:
    return f'create schema if not exists "{schema}"'


def _search_path(schema: str) -> str:
    return f'set local search_path = "{schema}", pg_catalog, pg_temp'


def _mark(script: Script) -> tuple[str, tuple[str, str]]:
    return (
        "insert into migration (name, digest) values (%s, %s) on conflict (name)"
        " do update set digest = excluded.digest, applied_at = clock_timestamp()",
        (script.name, script.digest),
    )

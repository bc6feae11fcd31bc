"""Apply or print the plan; the declared order of engine SQL files."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import Connection

from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.migrations import CODE, CodeFiles, Plan, Script
from holdfast.stores.postgres.doctor import ROLES
from holdfast.stores.postgres.errors import translate
from holdfast.stores.postgres.runner import asked
from holdfast.stores.requests import SchemaStatus

# PL/pgSQL resolves names when a function runs, so an engine function may call a hook that a feature defines later.
# SQL functions with a `return` body, views and triggers need what they name to exist when they are created.
CODE_FILES = CodeFiles(
    package="holdfast.stores.postgres",
    store="postgres",
    first=(
        "identity",
        "pins",
        "failure",
        "notify",
        "transition_rules",
        "guards",
        "locks",
        "admission",
        "fair_shares",
        "job_insert",
        "transition_leases",
        "transition",
        "enqueue",
        "retry_as",
        "leases",
        "settle",
        "exchange_pick",
        "exchange",
        "claim",
        "steps",
        "maintenance",
        "quarantine",
        "operators",
        "order",
        "ledger",
        "jobs",
    ),
    last=("views", "by_hand", "tenancy", "grants", "comments"),
)


def plan_for(plan: Plan) -> Steps[Plan]:
    """Grants go to the roles there are, so the code is laid again when there are others."""
    rows = yield Statement("select rolname from pg_roles where rolname = any(%s)", (list(ROLES),), alone=True)
    return plan.for_roles(row[0] for row in rows)


def applied(schema: str) -> Steps[dict[str, str]]:
    there = yield Statement("select to_regclass(%s)", (f'"{schema}".migration',), alone=True)
    if there[0][0] is None:
        return {}
    rows = yield Statement(f'select name, digest from "{schema}".migration', alone=True)
    return {row[0]: row[1] for row in rows}


@flow(writes=False)
def status(plan: Plan, schema: str) -> Steps[SchemaStatus]:
    ours = yield from plan_for(plan)
    return ours.status((yield from applied(schema)))


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
    wanted.check_supported(found)
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


def migrate_within(connection: Any, plan: Plan, schema: str) -> None:
    """The transaction's own search path is put back: the caller goes on in it."""
    path = connection.execute("select current_setting('search_path')").fetchall()[0][0]
    _apply(connection, plan, schema, yields=False)
    connection.execute("select set_config('search_path', %s, true)", (path,))


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

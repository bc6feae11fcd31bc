"""Apply or print the migration plan; the declared order of the engine's SQL files."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

import psycopg
from psycopg import Connection

from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.migrations import CODE, CodeFiles, Plan, Script
from holdfast.stores.postgres.doctor import ROLES
from holdfast.stores.postgres.errors import translate
from holdfast.stores.postgres.runner import run_steps
from holdfast.stores.requests import SchemaStatus

# PL/pgSQL resolves names when a function runs, so an engine function may call a hook that a feature defines later.
# SQL functions with a `return` body, views and triggers need the objects they name to exist when they are created.
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


SCRIPT_SETTINGS = {"standard_conforming_strings": "on"}
_COMMENTED = re.compile(r"((?:^--[^\n]*\n)+)create or replace (?:function|view) (\w+)", re.MULTILINE)


@functools.cache
def comments_on_code(features: tuple[str, ...]) -> Script:
    """The comments on functions and views in the database: the text directly above each in the files."""
    # Created when the pins change (pins.sql).
    texts = {"pinned_tenant": "Return the tenant that the calling login is pinned to; null if it is not pinned."}
    for path in CODE_FILES.paths(features):
        for block, name in _COMMENTED.findall(path.read_text(encoding="utf-8")):
            texts[name] = " ".join(line.removeprefix("--").strip() for line in block.splitlines())
    return Script(
        "comments_on_code",
        f"""do $do$
declare
    v_says jsonb := $comments${json.dumps(texts, ensure_ascii=False)}$comments$;
    v_row  record;
begin
    for v_row in
        select p.oid::regprocedure::text as name, 'function' as what, v_says ->> p.proname as says from pg_proc p
         where p.pronamespace = current_schema()::regnamespace and p.prokind = 'f'
           and obj_description(p.oid, 'pg_proc') is distinct from v_says ->> p.proname
        union all
        select c.oid::regclass::text, 'view', v_says ->> c.relname from pg_class c
         where c.relnamespace = current_schema()::regnamespace and c.relkind = 'v'
           and obj_description(c.oid, 'pg_class') is distinct from v_says ->> c.relname
    loop
        execute format('comment on %s %s is %L', v_row.what, v_row.name, v_row.says);
    end loop;
end $do$;
""",
    )


def plan_for(plan: Plan) -> Steps[Plan]:
    """The plan for the roles of this server: grants go to existing roles, so new roles need the code installed
    again."""
    rows = yield Statement("select rolname from pg_roles where rolname = any(%s)", (list(ROLES),), alone=True)
    return plan.for_roles(row[0] for row in rows)


def applied(schema: str) -> Steps[dict[str, str]]:
    table = yield Statement("select to_regclass(%s)", (f'"{schema}".migration',), alone=True)
    if table[0][0] is None:
        return {}
    rows = yield Statement(f'select name, digest from "{schema}".migration', alone=True)
    return {row[0]: row[1] for row in rows}


@flow(writes=False)
def status(plan: Plan, schema: str) -> Steps[SchemaStatus]:
    server_plan = yield from plan_for(plan)
    return server_plan.status((yield from applied(schema)))


def status_on(connection: Connection[Any], plan: Plan, schema: str) -> SchemaStatus:
    return run_steps(connection, status(plan, schema).start())


# Errors when another process creates the same schema at the same time: its names exist once it has committed.
CREATED_MEANWHILE = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.DuplicateSchema,
    psycopg.errors.DuplicateTable,
    psycopg.errors.DuplicateObject,
)


def migrate_on(connection: Connection[Any], plan: Plan, schema: str) -> SchemaStatus:
    """Migrate in a transaction; once more if another process created the schema at the same time."""
    try:
        _migrate(connection, plan, schema, may_retry=True)
    except CREATED_MEANWHILE:
        _migrate(connection, plan, schema, may_retry=False)
    return status_on(connection, plan, schema)


def _migrate(connection: Connection[Any], plan: Plan, schema: str, *, may_retry: bool) -> None:
    # Read in a separate transaction: a process that waits for the lock below must hold no lock that its holder needs.
    with connection.transaction():
        digests = run_steps(connection, applied(schema))
        pending = run_steps(connection, plan_for(plan)).pending(digests)
    with connection.transaction():
        if digests and pending:
            # One process migrates, others wait. The lock needs the privileges of the owner (docs/adr/0048).
            connection.execute(f'lock table "{schema}".migration in exclusive mode')
        _apply(connection, plan, schema, may_retry=may_retry)


def _apply(connection: Connection[Any], plan: Plan, schema: str, *, may_retry: bool) -> None:
    digests = run_steps(connection, applied(schema))
    is_new = not digests
    server_plan = run_steps(connection, plan_for(plan))
    server_plan.check_supported(digests)
    pending = server_plan.pending(digests)
    if pending and is_new:
        connection.execute(_create(schema))
    for script in pending:
        connection.execute(_search_path(schema))
        try:
            connection.execute(script.sql)  # without parameters several statements are allowed
        except psycopg.Error as error:
            if is_new and may_retry and isinstance(error, CREATED_MEANWHILE):
                raise
            raise script.failure(translate(error), str(error)) from error
        if script.name == CODE:
            script = run_steps(connection, plan_for(plan)).code
        connection.execute(*_mark(script))


def migrate_within(connection: Any, plan: Plan, schema: str) -> None:
    """Migrate in the caller's transaction, and restore its search path and other settings."""
    names = ("search_path", *SCRIPT_SETTINGS)
    shown = ", ".join(f"current_setting('{name}')" for name in names)
    before = connection.execute(f"select {shown}").fetchall()[0]
    _apply(connection, plan, schema, may_retry=False)
    for name, value in zip(names, before, strict=True):
        connection.execute("select set_config(%s, %s, true)", (name, value))


def migration_script(plan: Plan, schema: str) -> str:
    parts = ["begin;", "set local client_encoding = 'UTF8';", f"{_create(schema)};", f"{_search_path(schema)};"]
    plan = plan.for_roles(ROLES)  # the script creates them
    for script in (*plan.migrations, plan.code):
        parts.append(f"-- {script.name}\n{script.sql}")
        parts.append(f"insert into migration (name, digest) values ('{script.name}', '{script.digest}');")
    return "\n".join([*parts, "commit;\n"])


def _create(schema: str) -> str:
    return f'create schema if not exists "{schema}"'


def _search_path(schema: str) -> str:
    """The settings for scripts, which are also applied behind poolers and on callers' connections (session.py)."""
    path = f'set local search_path = "{schema}", pg_catalog, pg_temp'
    return "; ".join([path, *(f"set local {name} = {value}" for name, value in SCRIPT_SETTINGS.items())])


def _mark(script: Script) -> tuple[str, tuple[str, str]]:
    return (
        "insert into migration (name, digest) values (%s, %s) on conflict (name)"
        " do update set digest = excluded.digest, applied_at = clock_timestamp()",
        (script.name, script.digest),
    )

"""Apply or print the migration plan; the declared order of the engine's SQL files."""

from __future__ import annotations

import functools
import json
import random
import re
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib.resources import files
from typing import Any

import psycopg
from psycopg import Connection

from holdfast.engine.states import State, targets
from holdfast.errors import StoreError
from holdfast.stores.action_triggers import postgres_triggers
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.guards import postgres_guards
from holdfast.stores.migrations import CODE, CodeFiles, Plan, Script, foreign_objects, statements_of_later
from holdfast.stores.postgres.catalogue import IDENTITIES, INSTALLED_KINDS, Catalogue
from holdfast.stores.postgres.changes import compare, finishing, of_release
from holdfast.stores.postgres.doctor import ROLES
from holdfast.stores.postgres.errors import translate
from holdfast.stores.postgres.migration_steps import split
from holdfast.stores.postgres.runner import run_steps
from holdfast.stores.requests import SchemaStatus


def _legal_pairs() -> str:
    pairs = {source: ", ".join(f"'{target}'" for target in targets(source)) for source in State}
    return "\n".join(f"    when '{source}' then now_is in ({reached})" for source, reached in pairs.items() if reached)


# PL/pgSQL resolves names when a function runs, so an engine function may call a hook that a feature defines later.
# SQL functions with a `return` body, views and triggers need the objects they name to exist when they are created.
CODE_FILES = CodeFiles(
    package="holdfast.stores.postgres",
    store="postgres",
    first=(
        "identity",
        "positions",
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
    last=("views", "by_hand", "tenancy", "roles", "grants"),
    expanded=(
        # A name in a query is a column first; parameters are qualified with the name of the function.
        (r"\blanguage plpgsql\b[^;$]*\bas \$\$\n(?!#)", r"\g<0>#variable_conflict use_column\n"),
        (r"^.* -- \{legal pairs\}$", _legal_pairs()),
    ),
)


# In place of a record: the names of what 0.1.0 installed (tests/migration/test_any_change.py).
FIRST_INSTALLED = files(CODE_FILES.package).joinpath("sql", "installed_by_0_1_0.txt")
_ROLES = files(CODE_FILES.package).joinpath("sql", "roles.sql")
# A migration under load may wait for a lock too long, or take its locks in another order than the programs at work.
AGAIN = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)
# Seconds to wait for a lock, and to try again and again.
LOCK_TIMEOUT, GIVE_UP_AFTER = 0.5, 120.0
_CONCURRENTLY = re.compile(r"\bcreate (?:unique )?index concurrently (?:if not exists )?(\w+)", re.IGNORECASE)
_IS_VALID = "select indisvalid from pg_index where indexrelid = to_regclass(%s)"
_RECORD_ALL = f"insert into installed (name) {IDENTITIES}"
_COMPILE = "select compile_pins()"
# What a changed function has made in the database, and makes again.
_MADE_BY = {"guard_partition(text)": "select guard_partition(p.name) from event_partition p"}
# In order of creation, which is about the order in which programs at work lock them.
_TABLES = """
select string_agg(c.oid::regclass::text, ', ' order by c.oid) from pg_class c
 where c.relnamespace = to_regnamespace(%s) and c.relkind in ('r', 'p') and not c.relispartition
"""
_CONTENTS = """
select exists (select from pg_class c where c.relnamespace = (select oid from pg_namespace where nspname = %s))
    or exists (select from pg_proc p where p.pronamespace = (select oid from pg_namespace where nspname = %s))
"""

Known = dict[str, Catalogue]
"""The catalogues of releases by the digest of their code: a migration that starts again does not install them again."""

SCRIPT_SETTINGS = {"standard_conforming_strings": "on"}
_COMMENTED = re.compile(r"((?:^--[^\n]*\n)+)create or replace (function|view) (\w+)", re.MULTILINE)


# Cached: the files do not change while a process runs, and a process opens many stores.
@functools.cache
def plan_with(features: tuple[str, ...]) -> Plan:
    guards = Script("guards", postgres_guards())
    triggers = Script("action_triggers", postgres_triggers(CODE_FILES.tables()))
    return Plan.of(CODE_FILES, features, guards, triggers, comments=comments(features))


def comments(features: tuple[str, ...]) -> str:
    """The comments in the database: the text above each function and view, and above and beside tables and columns."""
    # Created when the pins change (pins.sql).
    texts = {"pinned_tenant()": "Return the tenant that the calling login is pinned to; null if it is not pinned."}
    for path in CODE_FILES.paths(features):
        for block, what, name in _COMMENTED.findall(path.read_text(encoding="utf-8")):
            text = " ".join(line.removeprefix("--").strip() for line in block.splitlines())
            texts[f"{name}()" if what == "function" else name] = text
    for table in CODE_FILES.tables():
        texts[table.name] = table.comment
        texts |= {f"{table.name}.{column}": text for column, text in table.columns.items()}
    return f"""do $do$
declare
    v_says jsonb := $comments${json.dumps(texts, ensure_ascii=False)}$comments$;
    v_row  record;
begin
    for v_row in
        select n.what, v_says ->> n.key as says from (
            select format('function %s', p.oid::regprocedure), p.proname || '()', obj_description(p.oid, 'pg_proc')
              from pg_proc p where p.pronamespace = current_schema()::regnamespace and p.prokind = 'f'
            union all
            select format(case c.relkind when 'v' then 'view %s' else 'table %s' end, c.oid::regclass), c.relname::text,
                   obj_description(c.oid, 'pg_class')
              from pg_class c where c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'p', 'v')
            union all
            select format('column %s.%I', c.oid::regclass, a.attname), c.relname || '.' || a.attname,
                   col_description(c.oid, a.attnum)
              from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
             where c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'p')
        ) n(what, key, was) where n.was is distinct from v_says ->> n.key and v_says ? n.key
    loop
        execute format('comment on %s is %L', v_row.what, v_row.says);
    end loop;
end $do$;
"""


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


def migrate_on(
    connection: Connection[Any], plan: Plan, schema: str, another: Callable[[], AbstractContextManager[Connection[Any]]]
) -> SchemaStatus:
    """Migrate in a transaction; once more if another process created the schema at the same time. Then take the steps
    that come after the transaction, each in its own."""
    known: Known = {}
    try:
        without_waiting(lambda again: _migrate(connection, plan, schema, known, may_retry=True, lock=again))
    except CREATED_MEANWHILE:
        _migrate(connection, plan, schema, known, may_retry=False, lock=False)
    if plan.pending_later(run_steps(connection, applied(schema))):
        with another() as guard:
            _take_later_steps(connection, guard, plan, schema)
    return status_on(connection, plan, schema)


def without_waiting(migrate: Callable[[bool], None]) -> None:
    """Run a transaction until it gets its locks; the argument is whether it is run again. A statement that waits for a
    table blocks all that follow, so a migration gives up after ``LOCK_TIMEOUT``, lets them pass and tries again."""
    end, again = time.monotonic() + GIVE_UP_AFTER, False
    while True:
        try:
            return migrate(again)
        except AGAIN as error:
            again = True
            if time.monotonic() > end:
                raise StoreError(
                    "the migration did not get its locks: another transaction uses a table all the time. Nothing has"
                    " changed",
                    code="migration_blocked",
                    fix="End long transactions (holdfast doctor), then run `holdfast migrate` again.",
                ) from error
            time.sleep(random.uniform(0.5, 2) * LOCK_TIMEOUT)


def _migrate(
    connection: Connection[Any], plan: Plan, schema: str, known: Known, *, may_retry: bool, lock: bool
) -> None:
    # Read in a separate transaction: a process that waits for the lock below must hold no lock that its holder needs.
    with connection.transaction():
        digests = run_steps(connection, applied(schema))
        pending = run_steps(connection, plan_for(plan)).pending(digests)
    with connection.transaction():
        if digests and pending:
            # One process migrates, others wait. The lock needs the privileges of the owner (docs/adr/0028).
            connection.execute(f'lock table "{schema}".migration in exclusive mode')
            connection.execute(f"set local lock_timeout = '{LOCK_TIMEOUT}s'")
            if lock:  # before anything else, because programs at work lock the tables in other orders
                ((tables,),) = connection.execute(_TABLES, (f'"{schema}"',)).fetchall()
                connection.execute(f"lock table {tables} in access exclusive mode")
        _apply(connection, plan, schema, known, may_retry=may_retry)


def _apply(connection: Any, plan: Plan, schema: str, known: Known, *, may_retry: bool, at_once: bool = False) -> None:
    digests = run_steps(connection, applied(schema))
    is_new = not digests
    server_plan = run_steps(connection, plan_for(plan))
    server_plan.check_supported(digests)
    pending = server_plan.pending(digests)
    if not pending:
        return
    if is_new:
        connection.execute(_create(schema))
    done = [each for each in pending if each.name != CODE]
    if is_new and _is_empty(connection, schema):
        _install(connection, server_plan, schema, may_retry=may_retry)
        connection.execute(_RECORD_ALL)
        done += plan.later
    else:
        _upgrade(connection, server_plan, schema, known, pending)
        if at_once:
            for script in plan.pending_later(digests):
                _run(connection, _at_once(script), schema)
                done.append(script)
    # With the roles that the migration created.
    for script in (*done, run_steps(connection, plan_for(plan)).code):
        for mark in plan.marks(script).items():
            connection.execute(MARK, mark)


def installed_first() -> set[str]:
    return set(FIRST_INSTALLED.read_text(encoding="utf-8").splitlines())


def _is_empty(connection: Any, schema: str) -> bool:
    found = connection.execute(_CONTENTS, (schema, schema)).fetchall()
    return not found[0][0]


def _install(connection: Any, plan: Plan, schema: str, *, may_retry: bool = False) -> None:
    """Create everything in an empty schema."""
    for script in (*plan.migrations, plan.code, *map(_at_once, plan.later)):
        _run(connection, script, schema, may_retry=may_retry)


def _at_once(script: Script) -> Script:
    """A script of later steps for empty tables."""
    return replace(script, sql=re.sub(r"\b(index) concurrently\b", r"\1", script.sql))


def _upgrade(connection: Any, plan: Plan, schema: str, known: Known, pending: Sequence[Script]) -> None:
    """Bring the tables and the code objects of a database to this release, without touching equal ones."""
    _run(connection, Script("roles", _ROLES.read_text(encoding="utf-8")), schema)
    target = known.get(plan.code.digest) or of_release(connection, schema, fresh(connection, plan))
    known[plan.code.digest] = target
    changes = compare(connection, schema, target, recorded(connection, schema))
    _step(connection, "code", schema, *(each.drop for each in changes.drop))
    for script in pending:
        if script.name != CODE:
            _run(connection, script, schema)
    _step(connection, "code", schema, *(each.create for each in changes.make), _COMPILE)
    again = [_MADE_BY[each.name] for each in changes.make if each.name in _MADE_BY]
    _step(connection, "code", schema, *again)
    _step(connection, "code", schema, *(each.create for each in finishing(connection, schema, target)))
    names = [name for name, each in target.objects.items() if each.kind in INSTALLED_KINDS]
    connection.execute(_search_path(schema))
    connection.execute("delete from installed where name <> all (%s::text[])", (names,))
    connection.execute("insert into installed (name) select unnest(%s::text[]) on conflict do nothing", (names,))


def _run(connection: Any, script: Script, schema: str, *, may_retry: bool = False) -> None:
    connection.execute(_search_path(schema))
    try:
        connection.execute(script.sql)  # without parameters several statements are allowed
    except psycopg.errors.DependentObjectsStillExist as error:
        raise foreign_objects((error.diag.message_detail or str(error)).splitlines()) from error
    except AGAIN:
        raise
    except psycopg.Error as error:
        if may_retry and isinstance(error, CREATED_MEANWHILE):
            raise
        raise script.failure(translate(error), str(error)) from error


def _step(connection: Any, name: str, schema: str, *statements: str) -> None:
    # Bodies may name functions that are made later.
    text = ";\n".join(["set local check_function_bodies = off", *statements])
    _run(connection, Script(name, text), schema)


def fresh(connection: Any, plan: Plan) -> Callable[[str], None]:
    """A function that installs the release into a new schema of this name."""

    def install(name: str) -> None:
        try:
            connection.execute(f'create schema "{name}"')
        except psycopg.errors.InsufficientPrivilege as error:
            raise StoreError(
                "the release is compared in another schema, which this login may not create",
                code="migration_needs_create",
                fix="As an administrator, run: grant create on database DATABASE to LOGIN.",
            ) from error
        _install(connection, plan, name)

    return install


def recorded(connection: Any, schema: str) -> set[str]:
    """What earlier releases installed. The first release recorded nothing."""
    exists = connection.execute("select to_regclass(%s)::text", (f'"{schema}".installed',)).fetchall()[0][0]
    if exists is None:
        return installed_first()
    return {row[0] for row in connection.execute(f'select name from "{schema}".installed').fetchall()}


def _take_later_steps(connection: Connection[Any], guard: Connection[Any], plan: Plan, schema: str) -> None:
    """Indexes and data that a migration leaves for after its transaction. ``guard`` keeps other processes away.
    Each statement can be run again, so a process that is killed costs nothing: the next migration continues."""
    with guard.transaction():
        guard.execute("set local idle_in_transaction_session_timeout = 0")
        guard.execute(f'lock table "{schema}".migration in exclusive mode')
        guard.execute(_search_path(schema))
        for script in plan.pending_later(run_steps(guard, applied(schema))):
            for statement, repeated in statements_of_later(script, split(script.sql)):
                try:
                    _take_step(connection, schema, statement, repeated=repeated)
                except psycopg.Error as error:
                    raise script.failure(translate(error), str(error)) from error
            for mark in plan.marks(script).items():
                guard.execute(MARK, mark)


def _take_step(connection: Connection[Any], schema: str, statement: str, *, repeated: bool) -> None:
    if index := _CONCURRENTLY.search(statement):
        connection.execute(f'set search_path = "{schema}", pg_catalog, pg_temp')
        if valid := connection.execute(_IS_VALID, (index[1],)).fetchall():
            if valid[0][0]:
                return
            connection.execute(f'drop index concurrently "{schema}".{index[1]}')  # of a process that was killed
        connection.execute(statement)
        return
    changed = 1
    while changed > 0:
        with connection.transaction():
            connection.execute(_search_path(schema))
            connection.execute("select set_config('holdfast.tenant', '*', true)")
            done = connection.execute(statement)
            changed = done.rowcount if repeated else 0


def migrate_within(connection: Any, plan: Plan, schema: str) -> None:
    """Migrate in the caller's transaction, and restore its search path and other settings."""
    names = ("search_path", *SCRIPT_SETTINGS)
    shown = ", ".join(f"current_setting('{name}')" for name in names)
    before = connection.execute(f"select {shown}").fetchall()[0]
    _apply(connection, plan, schema, {}, may_retry=False, at_once=True)
    for name, value in zip(names, before, strict=True):
        connection.execute("select set_config(%s, %s, true)", (name, value))


def migration_script(plan: Plan, schema: str) -> str:
    parts = ["begin;", "set local client_encoding = 'UTF8';", f"{_create(schema)};", f"{_search_path(schema)};"]
    plan = plan.for_roles(ROLES)  # the script creates them
    for script in (*plan.migrations, plan.code, *plan.later):
        text = _at_once(script).sql if script in plan.later else script.sql
        parts.append(f"-- {script.name}\n{text}")
        for name, digest in plan.marks(script).items():
            parts.append(f"insert into migration (name, digest) values ('{name}', '{digest}');")
    return "\n".join([*parts, f"{_RECORD_ALL};", "commit;\n"])


def _create(schema: str) -> str:
    return f'create schema if not exists "{schema}"'


def _search_path(schema: str) -> str:
    """The settings for scripts, which are also applied behind poolers and on callers' connections (session.py)."""
    path = f'set local search_path = "{schema}", pg_catalog, pg_temp'
    return "; ".join([path, *(f"set local {name} = {value}" for name, value in SCRIPT_SETTINGS.items())])


MARK = (
    "insert into migration (name, digest) values (%s, %s) on conflict (name)"
    " do update set digest = excluded.digest, applied_at = clock_timestamp()"
)

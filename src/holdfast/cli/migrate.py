"""``holdfast migrate``, ``holdfast uninstall`` and ``holdfast roles``."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import asdict
from typing import Annotated

import typer

from holdfast.cli import options
from holdfast.cli.failures import FAILED
from holdfast.cli.output import Cell, emit, heading, line, say, table, write
from holdfast.cli.session import NoTenant, is_absent, refuse_absent, store_at
from holdfast.engine.declared import Help
from holdfast.features.assembly import Store, open_store
from holdfast.stores.postgres.roles import MAY, functions
from holdfast.stores.requests import MigrationStep, SchemaStatus


def migrate(
    url: options.Url = None,
    check: Annotated[bool, Help("Only check; exit 1 if a migration is pending.")] = False,
    sql: Annotated[bool, Help("Print the whole schema as a SQL script and change nothing.")] = False,
    plan: Annotated[
        bool, Help("Print the statements that would run, with their locks on tables in use, and change nothing.")
    ] = False,
    to: Annotated[
        str | None, Help("Return to this earlier release, such as 0.1, unless information would be lost.")
    ] = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Create or upgrade the tables."""
    if sum((check, sql, plan, to is not None)) > 1:
        raise typer.BadParameter("give only one of --check, --sql, --plan and --to")
    with store_at(url, schema) as store:
        if sql:
            script = store.migration_sql()
            if as_json:
                emit({"sql": script})
            else:
                sys.stdout.write(script)
            return
        if plan:
            _print_plan([] if is_absent(store) else store.migration_plan(), as_json)
            return
        if to is not None:
            refuse_absent(store)
            _print_down(store.migrate_down(to), to, as_json)
            return
        before = _status(store)
        if check:
            _print_status(before, as_json)
            raise typer.Exit(0 if before.current else FAILED)
        after = store.migrate()
    if as_json:
        emit({"migrated": before.pending, "applied": after.applied, "pending": after.pending})
        return
    for name in before.pending:
        write(f"applied {name}")
    if after.supported:
        say("The database was migrated by a newer release, which supports this one: nothing was changed.")
        return
    say("The database is up to date." if before.pending else "The database was up to date already.")


def _status(store: Store) -> SchemaStatus:
    """Return the schema status; for a missing SQLite file, that of an empty database, without creating the file."""
    if not is_absent(store):
        return store.schema()
    with closing(open_store("sqlite:///:memory:")) as blank:
        return blank.schema()


def _print_plan(steps: list[MigrationStep], as_json: bool) -> None:
    if as_json:
        emit({"steps": [asdict(step) for step in steps]})
        return
    if not steps:
        say("Nothing would run.")
        return
    rows: list[list[Cell]] = [
        [step.script, line(step.statement, 80), step.lock, "" if step.seconds is None else f"{step.seconds:.1f} s"]
        for step in steps
    ]
    table(("script", "statement", "lock", "up to"), rows, keep=("script", "lock"))
    say(f"{len(steps)} statements. Nothing was changed.")


def _print_down(scripts: list[str], release: str, as_json: bool) -> None:
    if as_json:
        emit({"applied": scripts})
        return
    for name in scripts:
        write(f"applied {name}")
    say(f"The tables are those of {release}. Install that release now and run its `holdfast migrate`.")


def uninstall(
    url: options.Url = None,
    schema: options.Schema = options.SCHEMA,
    yes: Annotated[bool, Help("Remove it. Without this option nothing is removed.")] = False,
    force: Annotated[bool, Help("Also if jobs have not ended.")] = False,
    roles: Annotated[bool, Help("Drop the database roles too. They belong to the whole server.")] = False,
    as_json: options.Json = False,
) -> None:
    """Remove everything that Holdfast installed in a database: all jobs and their history.

    Objects of other programs are never removed. If they depend on Holdfast's, nothing is removed and they are named.
    """
    with store_at(url, schema) as store:
        refuse_absent(store)
        removal = store.uninstall(dry=not yes, force=force, roles=roles)
    if as_json:
        emit({"removed": yes, **asdict(removal)})
        return
    for name in removal.objects:
        write(f"{'removed' if yes else 'would remove'} {name}")
    for reason in removal.kept:
        write(f"kept {reason}")
    if yes or not removal.objects:
        say("Holdfast is removed." if removal.objects else "Holdfast is not installed here.")
        return
    if removal.unfinished:
        say(f"Jobs that have not ended: {removal.unfinished}. They are removed only with --force.")
    say("Nothing was removed. To remove it: holdfast uninstall --yes")


def _print_status(status: SchemaStatus, as_json: bool) -> None:
    if as_json:
        emit(
            {"current": status.current, "applied": status.applied, "pending": status.pending, "unknown": status.unknown}
        )
        return
    for name in status.pending:
        write(f"pending {name}")
    for name in status.unknown:
        write(f"unknown {name}" if status.unsupported else f"unknown {name} (from a newer release)")
    if status.supported:
        say("The database was migrated by a newer release, which supports this one.")
    elif status.current:
        say("The database is up to date.")
    elif status.unsupported:
        say("The database was created by a development version and cannot be migrated. Create a new one.")
    elif status.unknown:
        say("The database was migrated by a newer release.")
    else:
        say("Run: holdfast migrate")


def roles(
    session: NoTenant,
    grants: Annotated[bool, Help("List the functions that each role may call.", option="--functions")] = False,
) -> None:
    """List the database roles, what each may do, and which logins have them.

    A SQLite file has no roles: who can open it can do everything.
    """
    with store_at(session.url, session.schema) as store:
        embedded, logins = store.embedded, store.logins()
    if session.as_json:
        listed = [{"role": role, "may": may, "functions": sorted(functions()[role])} for role, may in MAY.items()]
        emit({"roles": [] if embedded else listed, "logins": logins})
        return
    if embedded:
        say("SQLite has no roles: who can open the file can do everything.")
        return
    rows: list[list[Cell]] = [
        [role, may, ", ".join(login.name for login in logins if role in login.roles)] for role, may in MAY.items()
    ]
    table(("role", "may", "logins"), rows, keep=("role",))
    if grants:
        for role in MAY:
            heading(role)
            say(line(", ".join(sorted(functions()[role])), 10_000))
    for login in logins:
        if login.tenant is not None:
            say(f"{line(login.name)} is pinned to tenant {line(login.tenant)}.")
        if login.bypasses or login.owns:
            problem = "bypasses row-level security" if login.bypasses else "owns the tables"
            say(f"{line(login.name)} {problem}: use it for migrations only.")
    say("To give a login a role: grant holdfast_producer to LOGIN")

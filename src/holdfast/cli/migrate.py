"""``holdfast migrate``."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import Annotated

import typer

from holdfast.cli import options
from holdfast.cli.failures import FAILED
from holdfast.cli.output import emit, say, write
from holdfast.cli.session import is_absent, store_at
from holdfast.features.assembly import Store, open_store
from holdfast.stores.requests import SchemaStatus


def migrate(
    url: options.Url = None,
    check: Annotated[bool, typer.Option("--check", help="Only check; exit 1 if a migration is pending.")] = False,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print the whole schema as a SQL script and change nothing.")
    ] = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Create or upgrade the tables."""
    if check and sql:
        raise typer.BadParameter("give --check or --sql, not both")
    with store_at(url, schema) as store:
        if sql:
            _print_script(store.migration_sql(), as_json)
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
    say("The database is up to date." if before.pending else "The database was up to date already.")


def _status(store: Store) -> SchemaStatus:
    """Return the schema status; for a missing SQLite file, that of an empty database, without creating the file."""
    if not is_absent(store):
        return store.schema()
    with closing(open_store("sqlite:///:memory:")) as blank:
        return blank.schema()


def _print_script(script: str, as_json: bool) -> None:
    if as_json:
        emit({"sql": script})
    else:
        sys.stdout.write(script)


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
    if status.current:
        say("The database is up to date.")
    elif status.unsupported:
        say("The database was created by a development version and cannot be migrated. Create a new one.")
    elif status.unknown:
        say("The database was migrated by a newer release.")
    else:
        say("Run: holdfast migrate")

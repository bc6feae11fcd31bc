"""``holdfast executors list | add | remove``: who may execute."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli import options
from holdfast.cli.output import Cell, emit, line, say, table
from holdfast.cli.session import connect
from holdfast.cli.words import moment
from holdfast.domain.job import DEFAULT_TENANT
from holdfast.features.executors import Executors

Label = Annotated[str, typer.Argument(metavar="LABEL", help="What a worker is started with as --executor.")]


def list_executors(
    url: options.Url = None, schema: options.Schema = options.SCHEMA, as_json: options.Json = False
) -> None:
    """List who may execute. While the list is empty, everybody may."""
    with connect(url, DEFAULT_TENANT, schema) as client:
        found = Executors(client).list()
    if as_json:
        emit(found)
    elif not found:
        say("The list is empty: every label may execute.")
    else:
        rows: list[list[Cell]] = [
            [line(each.label), each.role, line(each.added_by), moment(each.added_at)] for each in found
        ]
        table(("label", "role", "added by", "added"), rows)


def add(
    label: Label,
    generator: Annotated[bool, typer.Option("--generator", help="It plans work, and never executes it.")] = False,
    url: options.Url = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Put a label on the list. From the first on, only those on it may execute."""
    with connect(url, DEFAULT_TENANT, schema) as client:
        added = Executors(client).add(label, "generator" if generator else "executor")
    if as_json:
        emit(added)
    else:
        say(f"{label} is on the list, as {added.role}.")


def remove(
    label: Label,
    url: options.Url = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Take a label off the list: what it runs may end, and it takes nothing more."""
    with connect(url, DEFAULT_TENANT, schema) as client:
        Executors(client).remove(label)
    if as_json:
        emit({"label": label, "removed": True})
    else:
        say(f"{label} is off the list.")

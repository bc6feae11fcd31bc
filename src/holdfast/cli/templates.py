"""``holdfast templates list | show | versions | put | remove | enqueue``: job definitions with versions."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli import options, planning
from holdfast.cli.output import Cell, emit, facts, line, print_document, say, table, write
from holdfast.cli.reading import document
from holdfast.cli.session import AnyTenant, OneTenant
from holdfast.cli.tree import Commands
from holdfast.cli.words import moment
from holdfast.features.schedules.model import Template
from holdfast.features.schedules.templates import not_found

commands = Commands("Job definitions with a name and versions.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The template's name.")]
Version = Annotated[int | None, typer.Option("--version", metavar="N", min=1, help="This version; else the newest.")]
Payload = Annotated[str, typer.Argument(metavar="PAYLOAD", help="JSON, @file, or - for stdin.")]


@commands.add("list", "holdfast templates list")
def list_templates(session: AnyTenant) -> None:
    """List the templates, each in its newest version."""
    with planning.templating(session) as templates:
        found = templates.list()
    if session.as_json:
        emit(found)
    elif not found:
        say("There are no templates.")
    else:
        _print_table(found)


@commands.add("show", "holdfast templates show monthly --version 3")
def show(session: OneTenant, name: Name, version: Version = None) -> None:
    """Show a template: what jobs made from it begin with."""
    with planning.templating(session) as templates:
        found = templates.get(name, version)
    if found is None:
        raise not_found(name)
    _print(found, session.as_json)


@commands.add("versions", "holdfast templates versions monthly --limit 10")
def versions(session: OneTenant, name: Name, limit: options.Limit = 50) -> None:
    """List the versions of a template, the newest first."""
    with planning.templating(session) as templates:
        found = templates.versions(name, limit=limit)
    if not found:
        raise not_found(name)
    if session.as_json:
        emit(found)
    else:
        _print_table(found)


@commands.add("put", """holdfast templates put monthly report '{"scope": "month"}' --queue slow --max-attempts 3""")
def put(
    session: OneTenant,
    name: Name,
    kind: Annotated[str, typer.Argument(metavar="KIND", help="The kind of its jobs.")],
    payload: Payload = "{}",
    *,
    made: planning.Made,
    app: planning.FromApp = None,
) -> None:
    """Define a template, or change it: that is a new version, and the others stay."""
    with planning.templating(session, app) as templates:
        _print(templates.put(name, kind, document(payload), **made.given), session.as_json)


@commands.add("remove", "holdfast templates remove monthly")
def remove(session: OneTenant, name: Name) -> None:
    """Make no more jobs from a template; its versions stay."""
    with planning.templating(session) as templates:
        templates.remove(name)
    session.answer({"template": name, "removed": True}, f"Template {name} makes no more jobs.")


@commands.add("enqueue", """holdfast templates enqueue monthly '{"month": 3}'""")
def enqueue(
    session: OneTenant, name: Name, payload: Payload = "{}", version: Version = None, app: planning.FromApp = None
) -> None:
    """Enqueue a job made from a template, with these arguments on top, and print its id."""
    with planning.templating(session, app) as templates:
        handle = templates.using(version=version).enqueue(name, **document(payload))
    if session.as_json:
        emit({"id": handle.id, "tenant": handle.tenant, "created": handle.created, "reason": handle.reason})
    else:
        write(handle.id)


def _print_table(found: list[Template]) -> None:
    rows: list[list[Cell]] = [
        [
            line(each.name),
            str(each.version),
            line(each.kind),
            "removed" if each.removed else "",
            moment(each.created_at),
            line(each.created_by),
        ]
        for each in found
    ]
    table(("name", "version", "kind", "", "made", "by"), rows, keep=("name", "version"))


def _print(template: Template, as_json: bool) -> None:
    if as_json:
        emit(template)
        return
    write(template.name)
    facts(
        [
            ("version", str(template.version)),
            ("removed", "yes" if template.removed else None),
            ("kind", template.kind),
            ("tenant", template.tenant),
            ("made", f"{moment(template.created_at)} by {template.created_by}"),
        ]
    )
    if template.payload:
        print_document("Payload", template.payload)
    if template.options:
        print_document("Options", template.options)

"""``holdfast templates list | show | versions | put | remove | enqueue``: job definitions with versions."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli import options, planning
from holdfast.cli.output import Cell, emit, facts, line, print_document, say, table, write
from holdfast.cli.planning import given
from holdfast.cli.reading import document
from holdfast.cli.words import moment
from holdfast.domain.templates import Template
from holdfast.features.templates import not_found

Name = Annotated[str, typer.Argument(metavar="NAME", help="The template's name.")]
Version = Annotated[int | None, typer.Option("--version", metavar="N", min=1, help="This version; else the newest.")]
Payload = Annotated[str, typer.Argument(metavar="PAYLOAD", help="JSON, @file, or - for stdin.")]


def list_templates(
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """List the templates, each in its newest version."""
    with planning.templating(url, tenant, schema, all_tenants=all_tenants) as templates:
        found = templates.list()
    if as_json:
        emit(found)
    elif not found:
        say("There are no templates.")
    else:
        _print_table(found)


def show(
    name: Name,
    version: Version = None,
    url: options.Url = None,
    tenant: options.Tenant = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Show a template: what jobs made from it begin with."""
    with planning.templating(url, tenant, schema) as templates:
        found = templates.get(name, version)
    if found is None:
        raise not_found(name)
    _print(found, as_json)


def versions(
    name: Name,
    url: options.Url = None,
    tenant: options.Tenant = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """List the versions of a template, the newest first."""
    with planning.templating(url, tenant, schema) as templates:
        found = templates.versions(name)
    if not found:
        raise not_found(name)
    if as_json:
        emit(found)
    else:
        _print_table(found)


def put(
    name: Name,
    kind: Annotated[str, typer.Argument(metavar="KIND", help="The kind of its jobs.")],
    payload: Payload = "{}",
    queue: planning.Queue = None,
    priority: planning.Priority = None,
    agent: planning.Agent = None,
    tag: planning.Tags = None,
    max_attempts: planning.Attempts = None,
    deadline: planning.Deadline = None,
    app: planning.FromApp = None,
    url: options.Url = None,
    tenant: options.Tenant = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Define a template, or change it: that is a new version, and the others stay."""
    chosen = given(queue, priority, agent, tag, max_attempts, deadline)
    with planning.templating(url, tenant, schema, app) as templates:
        _print(templates.put(name, kind, document(payload), **chosen), as_json)


def remove(
    name: Name,
    url: options.Url = None,
    tenant: options.Tenant = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Make no more jobs from a template; its versions stay."""
    with planning.templating(url, tenant, schema) as templates:
        templates.remove(name)
    if as_json:
        emit({"template": name, "removed": True})
    else:
        say(f"Template {name} makes no more jobs.")


def enqueue(
    name: Name,
    payload: Payload = "{}",
    version: Version = None,
    app: planning.FromApp = None,
    url: options.Url = None,
    tenant: options.Tenant = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Enqueue a job made from a template, with these arguments on top, and print its id."""
    with planning.templating(url, tenant, schema, app) as templates:
        handle = templates.using(version=version).enqueue(name, **document(payload))
    if as_json:
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

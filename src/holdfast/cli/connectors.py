"""``holdfast connectors list | show | set | remove``: what a tenant's connectors may reach, with secrets by name."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdfast.cli import options
from holdfast.cli.output import Cell, emit, facts, line, say, table, write
from holdfast.cli.reading import pairs
from holdfast.cli.session import connect, scope
from holdfast.cli.words import duration, moment, span
from holdfast.domain.connectors import Connector, ConnectorOptions, secret_in
from holdfast.domain.errors import InvalidSetting
from holdfast.domain.sizes import in_words
from holdfast.features.connectors import Connectors

Name = Annotated[str, typer.Argument(metavar="CONNECTOR", help="The connector: http.request.")]


def list_connectors(
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """List what is set for connectors."""
    with connect(url, scope(tenant, all_tenants), schema) as client:
        found = Connectors(client).list()
    if as_json:
        emit(found)
    elif not found:
        say("Nothing is set for any connector: their jobs are rejected until something is.")
    else:
        rows: list[list[Cell]] = [
            [
                line(each.name),
                line(each.tenant),
                "yes" if each.enabled else "no",
                line(", ".join(each.hosts) or "any public one"),
                line(", ".join(each.secrets)),
            ]
            for each in found
        ]
        table(("connector", "tenant", "enabled", "hosts", "secrets"), rows, keep=("connector", "tenant"))


def show(
    name: Name,
    url: options.Url = None,
    tenant: options.Tenant = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Show what is set for one connector."""
    with connect(url, scope(tenant), schema) as client:
        found = Connectors(client).show(name)
    _print(found, as_json)


def set_connector(
    name: Name,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="HOST", help="A host it may reach, *.example.com, perhaps :port; repeatable."),
    ] = None,
    any_host: Annotated[bool, typer.Option("--any-host", help="Every public host; not together with secrets.")] = False,
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME=TEXT", help="Sent with each request; repeatable.")
    ] = None,
    secret_header: Annotated[
        list[str] | None,
        typer.Option("--secret-header", metavar="NAME=SECRET", help="The same, with a secret by its name; repeatable."),
    ] = None,
    prefix: Annotated[
        str, typer.Option("--prefix", metavar="TEXT", help='What stands before secrets in headers: "Bearer ".')
    ] = "",
    secret: Annotated[
        list[str] | None, typer.Option("--secret", metavar="SECRET", help="A name that jobs may use; repeatable.")
    ] = None,
    timeout: Annotated[str | None, typer.Option("--timeout", metavar="SPAN", help="At most so long: 10s.")] = None,
    max_bytes: Annotated[str | None, typer.Option("--max-bytes", metavar="SIZE", help="The largest answer.")] = None,
    enabled: Annotated[bool | None, typer.Option("--enabled/--disabled", help="Whether it may be used at all.")] = None,
    url: options.Url = None,
    tenant: options.Tenant = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Set what a connector may reach in a tenant. What is not named stays as it was; a list replaces the one there is.

    Secrets are given by name: the workers find the value in HOLDFAST_SECRET_NAME, or ask a secret provider.
    """
    if any_host and host:
        raise InvalidSetting("give --host or --any-host, not both", code="conflicting_options")
    says = ConnectorOptions()
    if host or any_host:
        says["hosts"] = list(host or ())
    if header or secret_header:
        says["headers"] = pairs(header or ()) | _by_name(pairs(secret_header or ()), prefix)
    if secret:
        says["secrets"] = secret
    if timeout is not None:
        says["timeout"] = duration(timeout, "--timeout")
    if max_bytes is not None:
        says["max_bytes"] = int(max_bytes) if max_bytes.isdecimal() else max_bytes
    if enabled is not None:
        says["enabled"] = enabled
    with connect(url, scope(tenant), schema) as client:
        made = Connectors(client).set(name, **says)
    _print(made, as_json)


def remove(
    name: Name,
    url: options.Url = None,
    tenant: options.Tenant = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Forget what is set; jobs of the connector are rejected from then on."""
    with connect(url, scope(tenant), schema) as client:
        Connectors(client).remove(name)
    if as_json:
        emit({"name": name, "removed": True})
    else:
        say("Removed.")


def _by_name(given: dict[str, str], prefix: str) -> dict[str, Any]:
    return {header: {"secret": name} | ({"prefix": prefix} if prefix else {}) for header, name in given.items()}


def _print(found: Connector, as_json: bool) -> None:
    if as_json:
        emit(found)
        return
    write(found.name)
    facts(
        [
            ("tenant", found.tenant),
            ("enabled", "yes" if found.enabled else "no"),
            ("hosts", ", ".join(found.hosts) or "any public one"),
            ("headers", ", ".join(_header(name, value) for name, value in found.headers.items()) or None),
            ("secrets", ", ".join(found.secrets) or None),
            ("timeout", None if found.timeout is None else span(found.timeout)),
            ("max bytes", None if found.max_bytes is None else in_words(found.max_bytes)),
            ("set", f"{moment(found.updated_at)} by {found.set_by}"),
        ]
    )


def _header(name: str, value: Any) -> str:
    wanted = secret_in(value)
    return f"{name}: {value}" if wanted is None else f"{name}: {wanted[1]}the secret {wanted[0]}"

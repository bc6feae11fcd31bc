"""``holdfast connectors list | show | set | remove``: the hosts and secrets that a tenant's connectors may use."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdfast.cli.options import parse_pairs
from holdfast.cli.output import duration, emit, line, moment, print_fields, span, write
from holdfast.cli.session import AnyTenant, OneTenant
from holdfast.cli.tree import Commands
from holdfast.engine.units import size_in_words
from holdfast.errors import InvalidSetting
from holdfast.features.connectors.model import Connector, ConnectorOptions, secret_in
from holdfast.features.connectors.operations import Connectors

commands = Commands("Configure connectors: allowed hosts, and secrets by name.")

Name = Annotated[str, typer.Argument(metavar="CONNECTOR", help="The connector's name: http.request.")]


@commands.add("list", "holdfast connectors list --all-tenants")
def list_connectors(session: AnyTenant) -> None:
    """List the connector settings."""
    with session.connect() as client:
        connectors = Connectors(client).list()
    session.print_list(
        connectors,
        {
            "connector": lambda connector: line(connector.name),
            "tenant": lambda connector: line(connector.tenant),
            "enabled": lambda connector: "yes" if connector.enabled else "no",
            "hosts": lambda connector: line(", ".join(connector.hosts) or "any public one"),
            "secrets": lambda connector: line(", ".join(connector.secrets)),
        },
        none="Nothing is set for any connector: their jobs are rejected until something is.",
        keep=("connector", "tenant"),
    )


@commands.add("show", "holdfast connectors show http.request")
def show(session: OneTenant, name: Name) -> None:
    """Show the settings of one connector."""
    with session.connect() as client:
        connector = Connectors(client).get(name)
    _print(connector, session.as_json)


@commands.add(
    "set",
    "holdfast connectors set http.request --host api.example.com --secret RATES_TOKEN",
    "holdfast connectors set http.request --secret-header Authorization=RATES_TOKEN --prefix 'Bearer '",
    "holdfast connectors set http.request --disabled --tenant acme",
)
def set_connector(
    session: OneTenant,
    name: Name,
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="HOST",
            help="An allowed host: api.example.com, *.example.com, with :port if needed; repeatable.",
        ),
    ] = None,
    any_host: Annotated[
        bool, typer.Option("--any-host", help="Allow every public host; cannot be combined with secrets.")
    ] = False,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME=TEXT", help="A header to send with each request; repeatable."),
    ] = None,
    secret_header: Annotated[
        list[str] | None,
        typer.Option(
            "--secret-header",
            metavar="NAME=SECRET",
            help="A header whose value is a secret, given by name; repeatable.",
        ),
    ] = None,
    prefix: Annotated[
        str, typer.Option("--prefix", metavar="TEXT", help='Text before the secret in the header: "Bearer ".')
    ] = "",
    secret: Annotated[
        list[str] | None,
        typer.Option("--secret", metavar="SECRET", help="Name of a secret that jobs may use; repeatable."),
    ] = None,
    timeout: Annotated[str | None, typer.Option("--timeout", metavar="SPAN", help="Request timeout: 10s.")] = None,
    max_bytes: Annotated[str | None, typer.Option("--max-bytes", metavar="SIZE", help="Maximum response size.")] = None,
    enabled: Annotated[
        bool | None, typer.Option("--enabled/--disabled", help="Enable or disable the connector.")
    ] = None,
) -> None:
    """Set what a connector may reach in a tenant. Other settings stay unchanged; a given list replaces the old
    one.

    Secrets are given by name: the workers read the value from HOLDFAST_SECRET_NAME, or from a secret provider.
    """
    if any_host and host:
        raise InvalidSetting("pass --host or --any-host, not both", code="conflicting_options")
    options = ConnectorOptions()
    if host or any_host:
        options["hosts"] = list(host or ())
    if header or secret_header:
        options["headers"] = parse_pairs(header or ()) | _secret_headers(parse_pairs(secret_header or ()), prefix)
    if secret:
        options["secrets"] = secret
    if timeout is not None:
        options["timeout"] = duration(timeout, "--timeout")
    if max_bytes is not None:
        options["max_bytes"] = int(max_bytes) if max_bytes.isdecimal() else max_bytes
    if enabled is not None:
        options["enabled"] = enabled
    with session.connect() as client:
        connector = Connectors(client).set(name, **options)
    _print(connector, session.as_json)


@commands.add("remove", "holdfast connectors remove http.request")
def remove(session: OneTenant, name: Name) -> None:
    """Remove a connector's settings. Its jobs are rejected from then on."""
    with session.connect() as client:
        Connectors(client).remove(name)
    session.answer({"name": name, "removed": True}, "Removed.")


def _secret_headers(headers: dict[str, str], prefix: str) -> dict[str, Any]:
    return {header: {"secret": name} | ({"prefix": prefix} if prefix else {}) for header, name in headers.items()}


def _print(connector: Connector, as_json: bool) -> None:
    if as_json:
        emit(connector)
        return
    write(connector.name)
    print_fields(
        [
            ("tenant", connector.tenant),
            ("enabled", "yes" if connector.enabled else "no"),
            ("hosts", ", ".join(connector.hosts) or "any public one"),
            ("headers", ", ".join(_header(name, value) for name, value in connector.headers.items()) or None),
            ("secrets", ", ".join(connector.secrets) or None),
            ("timeout", None if connector.timeout is None else span(connector.timeout)),
            ("max bytes", None if connector.max_bytes is None else size_in_words(connector.max_bytes)),
            ("set", f"{moment(connector.updated_at)} by {connector.set_by}"),
        ]
    )


def _header(name: str, value: Any) -> str:
    secret = secret_in(value)
    return f"{name}: {value}" if secret is None else f"{name}: {secret[1]}the secret {secret[0]}"

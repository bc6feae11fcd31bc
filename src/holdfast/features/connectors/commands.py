"""``holdfast connectors list | show | set | remove``: the hosts and secrets that a tenant's connectors may use."""

from __future__ import annotations

from typing import Annotated, Any

from holdfast.cli.derived import derive
from holdfast.cli.options import parse_pairs
from holdfast.cli.output import emit, line, moment, print_fields, span, write
from holdfast.cli.session import AnyTenant, OneTenant
from holdfast.cli.tree import Commands
from holdfast.engine.declared import Help
from holdfast.engine.units import size_in_words
from holdfast.errors import InvalidSetting
from holdfast.features.connectors.model import Connector, secret_in
from holdfast.features.connectors.operations import Connectors

commands = Commands("Configure connectors: allowed hosts, and secrets by name.")


@derive(commands, "list", AnyTenant, Connectors.list, "holdfast connectors list --all-tenants")
def list_connectors(session: AnyTenant, result: list[Connector]) -> None:
    session.print_list(
        result,
        {
            "connector": lambda connector: line(connector.name),
            "tenant": lambda connector: line(connector.tenant),
            "enabled": lambda connector: "yes" if connector.enabled else "no",
            "hosts": lambda connector: line(", ".join(connector.hosts) or "any public one"),
            "secrets": lambda connector: line(", ".join(connector.secrets)),
        },
        none="No connector settings: jobs of connectors are rejected.",
        keep=("connector", "tenant"),
    )


@derive(
    commands,
    "set",
    OneTenant,
    Connectors.set,
    "holdfast connectors set http.request --host api.example.com --secret RATES_TOKEN",
    "holdfast connectors set http.request --secret-header Authorization=RATES_TOKEN --prefix 'Bearer '",
    "holdfast connectors set http.request --disabled --tenant acme",
)
def set_connector(
    session: OneTenant,
    inputs: Any,
    any_host: Annotated[bool, Help("Allow every public host; cannot be combined with secrets.")] = False,
    header: Annotated[list[str] | None, Help("A header to send with each request; repeatable.", "NAME=TEXT")] = None,
    secret_header: Annotated[
        list[str] | None, Help("A header whose value is a secret, given by name; repeatable.", "NAME=SECRET")
    ] = None,
    prefix: Annotated[str, Help('Text before the secret in the header: "Bearer ".', "TEXT")] = "",
) -> None:
    """Set what a connector may reach in a tenant. Other settings stay unchanged; a given list replaces the old
    one.

    Secrets are given by name: the workers read the value from HOLDFAST_SECRET_NAME, or from a secret provider.
    """
    if any_host:
        if "hosts" in inputs:
            raise InvalidSetting("pass --host or --any-host, not both", code="conflicting_options")
        inputs["hosts"] = []
    if header or secret_header:
        inputs["headers"] = parse_pairs(header or ()) | _secret_headers(parse_pairs(secret_header or ()), prefix)
    with session.connect() as client:
        print_connector(session, Connectors(client).set(**inputs))


@derive(commands, "remove", OneTenant, Connectors.remove, "holdfast connectors remove http.request")
def print_removed(session: OneTenant, result: None, name: str) -> None:
    session.answer({"name": name, "removed": True}, "Removed.")


def _secret_headers(headers: dict[str, str], prefix: str) -> dict[str, Any]:
    return {header: {"secret": name} | ({"prefix": prefix} if prefix else {}) for header, name in headers.items()}


@derive(commands, "show", OneTenant, Connectors.get, "holdfast connectors show http.request")
def print_connector(session: OneTenant, result: Connector) -> None:
    if session.as_json:
        emit(result)
        return
    write(result.name)
    print_fields(
        [
            ("tenant", result.tenant),
            ("enabled", "yes" if result.enabled else "no"),
            ("hosts", ", ".join(result.hosts) or "any public one"),
            ("headers", ", ".join(_header(name, value) for name, value in result.headers.items()) or None),
            ("secrets", ", ".join(result.secrets) or None),
            ("timeout", None if result.timeout is None else span(result.timeout)),
            ("max bytes", None if result.max_bytes is None else size_in_words(result.max_bytes)),
            ("set", f"{moment(result.updated_at)} by {result.set_by}"),
        ]
    )


def _header(name: str, value: Any) -> str:
    secret = secret_in(value)
    return f"{name}: {value}" if secret is None else f"{name}: {secret[1]}the secret {secret[0]}"

"""``holdfast rules list | show | set | delete | check``: what may be in a payload."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli import options
from holdfast.cli.output import Cell, emit, facts, line, say, table, write
from holdfast.cli.reading import document
from holdfast.cli.session import connect, scope
from holdfast.cli.words import moment
from holdfast.client import Client
from holdfast.domain.errors import NotFound
from holdfast.domain.rules import EACH_KIND, PayloadRule, RuleDraft
from holdfast.domain.sizes import in_words
from holdfast.features.payload_rules import PayloadRules

Kind = Annotated[str, typer.Argument(metavar="[KIND]", help="The kind; without one the rule for each kind.")]
DeclaredBy = Annotated[
    str, typer.Option("--declared-by", metavar="NAME", help="The one that a program has in its code.")
]


def list_rules(
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """List the rules for payloads: those of the tenant, and those of every tenant."""
    with connect(url, scope(tenant, all_tenants), schema) as client:
        found = _rules(client).list()
    if as_json:
        emit(found)
    elif not found:
        say("There are no rules for payloads.")
    else:
        rows: list[list[Cell]] = [
            [line(rule.kind), line(rule.tenant), line(_says(rule)), line(rule.declared_by or rule.set_by)]
            for rule in found
        ]
        table(("kind", "tenant", "says", "by"), rows, keep=("kind", "tenant"))


def show(
    kind: Kind = EACH_KIND,
    declared_by: DeclaredBy = "",
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Show one rule."""
    with connect(url, scope(tenant, all_tenants), schema) as client:
        found = _found(client, kind, declared_by)
    _print(found, as_json)


def set_rule(
    kind: Kind = EACH_KIND,
    signal_only: Annotated[
        bool, typer.Option("--signal-only", help="Refuse payloads with forbidden keys, at any depth.")
    ] = False,
    forbid: Annotated[
        list[str] | None,
        typer.Option("--forbid", metavar="KEY", help="With --signal-only, in place of the usual list; repeatable."),
    ] = None,
    restricted: Annotated[bool, typer.Option("--restricted", help="Show and log nothing of the payload.")] = False,
    max_bytes: Annotated[
        str | None, typer.Option("--max-bytes", metavar="SIZE", help="The largest payload: 4096, 64KB.")
    ] = None,
    max_result_bytes: Annotated[
        str | None, typer.Option("--max-result-bytes", metavar="SIZE", help="The largest result.")
    ] = None,
    store: Annotated[
        bool | None, typer.Option("--store/--no-store", help="What is larger goes to the artifact store, or never.")
    ] = None,
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Set the rule for a kind (or each) in a tenant (or all), in place of the one there is. It holds at once."""
    draft = RuleDraft.of(
        kind,
        signal_only=signal_only,
        forbidden=forbid or None,
        restricted=restricted,
        max_bytes=_size(max_bytes),
        max_result_bytes=_size(max_result_bytes),
        store=store,
    )
    with connect(url, scope(tenant, all_tenants), schema) as client:
        made = client.run(client.verbs.set_payload_rule(draft, client.actor, client.tenant))
    _print(made, as_json)


def delete(
    kind: Kind = EACH_KIND,
    declared_by: DeclaredBy = "",
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Delete a rule. One that a running program declares comes back when its next worker starts."""
    with connect(url, scope(tenant, all_tenants), schema) as client:
        _rules(client).delete(kind, declared_by=declared_by)
    if as_json:
        emit({"kind": kind, "deleted": True})
    else:
        say("Deleted.")


def check(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="The kind.")],
    payload: Annotated[str, typer.Argument(metavar="PAYLOAD", help="JSON, @file, or - for stdin.")] = "-",
    url: options.Url = None,
    tenant: options.Tenant = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Say whether the rules would let a payload be enqueued. Nothing is."""
    value = document(payload)
    with connect(url, scope(tenant), schema) as client:
        refusal = _rules(client).check(kind, value)
    if refusal is not None:
        raise refusal
    if as_json:
        emit({"kind": kind, "allowed": True})
    else:
        say("No rule objects.")


def _rules(client: Client) -> PayloadRules:
    return PayloadRules(client, client.name)


def _found(client: Client, kind: str, declared_by: str) -> PayloadRule:
    wanted = (client.tenant, kind, declared_by)
    for rule in _rules(client).list():
        if (rule.tenant, rule.kind, rule.declared_by) == wanted:
            return rule
    raise NotFound(f"there is no rule for {kind} in tenant {client.tenant}", code="rule_not_found")


def _size(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdecimal() else text


def _says(rule: PayloadRule) -> str:
    parts = ["signal only"] if rule.signal_only else []
    parts += ["restricted"] if rule.classification == "restricted" else []
    parts += [] if rule.max_bytes is None else [f"payload up to {in_words(rule.max_bytes)}"]
    parts += [] if rule.max_result_bytes is None else [f"result up to {in_words(rule.max_result_bytes)}"]
    parts += [] if rule.store is None else ["larger is stored" if rule.store else "nothing is stored"]
    return ", ".join(parts)


def _print(rule: PayloadRule, as_json: bool) -> None:
    if as_json:
        emit(rule)
        return
    write("each kind" if rule.kind == EACH_KIND else rule.kind)
    facts(
        [
            ("tenant", "every tenant" if rule.tenant == "*" else rule.tenant),
            ("says", _says(rule)),
            ("forbidden", ", ".join(rule.forbidden) if rule.signal_only else None),
            ("declared by", rule.declared_by or None),
            ("set", f"{moment(rule.updated_at)} by {rule.set_by}"),
        ]
    )

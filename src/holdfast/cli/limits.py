"""``holdfast limits list | show | set | remove``: how many jobs run at once, and how many are begun in a time."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli import options
from holdfast.cli.output import Cell, emit, facts, line, say, table, write
from holdfast.cli.session import connect, scope
from holdfast.cli.words import moment, span
from holdfast.client import Client
from holdfast.domain.errors import NotFound
from holdfast.domain.job import EVERY_TENANT
from holdfast.domain.limits import Limit, Rule, counted
from holdfast.features.limits import Limits

Queue = Annotated[str | None, typer.Option("--queue", metavar="NAME", help="The jobs of a queue; '*' is each queue.")]
Kind = Annotated[str | None, typer.Option("--kind", metavar="NAME", help="The jobs of a kind; '*' is each kind.")]
Key = Annotated[str | None, typer.Option("--key", metavar="NAME", help="The jobs with a limit key; '*' is each key.")]
Resource = Annotated[
    str | None, typer.Option("--resource", metavar="NAME", help="The jobs that use a resource; '*' is each.")
]
Agent = Annotated[str | None, typer.Option("--agent", metavar="ID", help="The jobs of an agent; '*' is each agent.")]
OfTenant = Annotated[
    str | None,
    typer.Option("--of-tenant", metavar="NAME", help="With --all-tenants: the jobs of a tenant; '*' is each."),
]


def list_limits(
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """List the limits, with how many jobs run under each and how many it holds back."""
    with connect(url, scope(tenant, all_tenants), schema) as client:
        found = Limits(client).list()
    if as_json:
        emit(found)
    elif not found:
        say("Nothing is limited.")
    else:
        headers = ["what", "tenant", "at once", "rate", "running", "held back"]
        rows: list[list[Cell]] = [
            [
                line(_what(limit)),
                line(limit.tenant),
                "" if limit.concurrency is None else f"{limit.concurrency:,}",
                _rate(limit) or "",
                f"{limit.running:,}",
                f"{limit.waiting:,}",
            ]
            for limit in found
        ]
        table(headers, rows, keep=("what", "at once", "rate", "running", "held back"))


def show(
    queue: Queue = None,
    kind: Kind = None,
    key: Key = None,
    resource: Resource = None,
    agent: Agent = None,
    of_tenant: OfTenant = None,
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Show one limit; without a name the one on all jobs."""
    wanted = counted(queue=queue, kind=kind, key=key, resource=resource, agent=agent, tenant=of_tenant)
    with connect(url, scope(tenant, all_tenants), schema) as client:
        found = [
            each for each in Limits(client).list() if (each.tenant, each.scope, each.name) == (client.tenant, *wanted)
        ]
        if not found:
            raise NotFound(f"there is no limit on {' '.join(wanted)} in tenant {client.tenant}", code="limit_not_found")
    _print(found[0], as_json)


def set_limit(
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", metavar="N", min=0, max=1_000_000, help="At most so many at once.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="N/SPAN", help="At most so many begun in a time: 10/s, 100/5m.")
    ] = None,
    burst: Annotated[
        int | None, typer.Option("--burst", metavar="N", min=1, help="So many of a rate at once; else the whole rate.")
    ] = None,
    queue: Queue = None,
    kind: Kind = None,
    key: Key = None,
    resource: Resource = None,
    agent: Agent = None,
    of_tenant: OfTenant = None,
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Limit the jobs of a queue, a kind, a key, a resource or an agent; without a name all jobs. It holds at once."""
    what = counted(queue=queue, kind=kind, key=key, resource=resource, agent=agent, tenant=of_tenant)
    rule = Rule.of(*what, concurrency, rate, burst)
    with connect(url, scope(tenant, all_tenants), schema) as client:
        client.run(client.verbs.set_limit(rule, client.actor, client.tenant))
        found = [
            each for each in Limits(client).list() if (each.tenant, each.scope, each.name) == (client.tenant, *what)
        ]
    _print(found[0], as_json)


def remove(
    queue: Queue = None,
    kind: Kind = None,
    key: Key = None,
    resource: Resource = None,
    agent: Agent = None,
    of_tenant: OfTenant = None,
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Remove a limit; what it held back goes on."""
    names = {"queue": queue, "kind": kind, "key": key, "resource": resource, "agent": agent, "tenant": of_tenant}
    given = {name: value for name, value in names.items() if value is not None}
    with connect(url, scope(tenant, all_tenants), schema) as client:
        Limits(client).remove(**given)
    if as_json:
        emit({"removed": True})
    else:
        say("Removed.")


def _find(client: Client, what: tuple[str, str]) -> Limit:
    wanted = (client.tenant, *what)
    for each in Limits(client).list():
        if (each.tenant, each.scope, each.name) == wanted:
            return each
    raise NotFound(f"there is no limit on {' '.join(what)} in tenant {client.tenant}", code="limit_not_found")


def _what(limit: Limit) -> str:
    if limit.scope == "all":
        return "all jobs"
    return f"each {limit.scope}" if limit.name == "*" else f"{limit.scope} {limit.name}"


def _rate(limit: Limit) -> str | None:
    if limit.rate is None or limit.per is None:
        return None
    text = f"{limit.rate:,} in {span(limit.per)}"
    return text if limit.burst == limit.rate else f"{text}, {limit.burst:,} at once"


def _print(limit: Limit, as_json: bool) -> None:
    if as_json:
        emit(limit)
        return
    write(_what(limit))
    facts(
        [
            ("tenant", "every tenant together" if limit.tenant == EVERY_TENANT else limit.tenant),
            ("at once", None if limit.concurrency is None else f"{limit.concurrency:,}"),
            ("rate", _rate(limit)),
            ("running", f"{limit.running:,}"),
            ("held back", f"{limit.waiting:,}"),
            ("set", f"{moment(limit.updated_at)} by {limit.set_by}"),
        ]
    )

"""``holdfast limits list | show | set | remove``: how many jobs run at once, and how many are begun in a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from holdfast.cli.output import emit, facts, line, write
from holdfast.cli.session import AnyTenant
from holdfast.cli.tree import Commands
from holdfast.cli.words import moment, rate
from holdfast.engine.job import EVERY_TENANT
from holdfast.errors import NotFound
from holdfast.features.limits.model import Limit, Rule, counted
from holdfast.features.limits.operations import Limits
from holdfast.stores.session import Client

commands = Commands("Limit how many jobs run at once, or begin in a time.")


@dataclass(frozen=True, kw_only=True)
class What:
    """The jobs that a limit is on; without a name all of them."""

    queue: Annotated[
        str | None, typer.Option("--queue", metavar="NAME", help="The jobs of a queue; '*' is each queue.")
    ] = None
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="NAME", help="The jobs of a kind; '*' is each kind.")
    ] = None
    key: Annotated[
        str | None, typer.Option("--key", metavar="NAME", help="The jobs with a limit key; '*' is each key.")
    ] = None
    resource: Annotated[
        str | None, typer.Option("--resource", metavar="NAME", help="The jobs that use a resource; '*' is each.")
    ] = None
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="ID", help="The jobs of an agent; '*' is each agent.")
    ] = None
    of_tenant: Annotated[
        str | None,
        typer.Option("--of-tenant", metavar="NAME", help="With --all-tenants: the jobs of a tenant; '*' is each."),
    ] = None

    @property
    def named(self) -> dict[str, str]:
        names = {"queue": self.queue, "kind": self.kind, "key": self.key, "resource": self.resource}
        names |= {"agent": self.agent, "tenant": self.of_tenant}
        return {name: value for name, value in names.items() if value is not None}


@commands.add("list", "holdfast limits list")
def list_limits(session: AnyTenant) -> None:
    """List the limits, with how many jobs run under each and how many it holds back."""
    with session.connect() as client:
        found = Limits(client).list()
    session.print_list(
        found,
        {
            "what": lambda limit: line(_what(limit)),
            "tenant": lambda limit: line(limit.tenant),
            "at once": lambda limit: "" if limit.concurrency is None else f"{limit.concurrency:,}",
            "rate": lambda limit: rate(limit.rate, limit.per, limit.burst) or "",
            "running": lambda limit: f"{limit.running:,}",
            "held back": lambda limit: f"{limit.waiting:,}",
        },
        none="Nothing is limited.",
        keep=("what", "at once", "rate", "running", "held back"),
    )


@commands.add("show", "holdfast limits show --queue mail")
def show(session: AnyTenant, what: What) -> None:
    """Show one limit; without a name the one on all jobs."""
    with session.connect() as client:
        found = _find(client, counted(**what.named))
    _print(found, session.as_json)


@commands.add(
    "set",
    "holdfast limits set --queue mail --concurrency 5",
    "holdfast limits set --kind call --rate 100/m --burst 10",
    "holdfast limits set --key '*' --concurrency 1",
    "holdfast limits set --all-tenants --of-tenant '*' --concurrency 20",
)
def set_limit(
    session: AnyTenant,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", metavar="N", min=0, max=1_000_000, help="At most so many at once.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="N/SPAN", help="At most so many begun in a time: 10/s, 100/5m.")
    ] = None,
    burst: Annotated[
        int | None, typer.Option("--burst", metavar="N", min=1, help="So many of a rate at once; else the whole rate.")
    ] = None,
    *,
    what: What,
) -> None:
    """Limit the jobs of a queue, a kind, a key, a resource or an agent; without a name all jobs. It holds at once."""
    rule = Rule.of(*counted(**what.named), concurrency, rate, burst)
    with session.connect() as client:
        client.run(client.verbs.set_limit(rule, client.actor, client.tenant))
        found = _find(client, (rule.scope, rule.name))
    _print(found, session.as_json)


@commands.add("remove", "holdfast limits remove --queue mail")
def remove(session: AnyTenant, what: What) -> None:
    """Remove a limit; what it held back goes on."""
    with session.connect() as client:
        Limits(client).remove(**what.named)
    session.answer({"removed": True}, "Removed.")


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


def _print(limit: Limit, as_json: bool) -> None:
    if as_json:
        emit(limit)
        return
    write(_what(limit))
    facts(
        [
            ("tenant", "every tenant together" if limit.tenant == EVERY_TENANT else limit.tenant),
            ("at once", None if limit.concurrency is None else f"{limit.concurrency:,}"),
            ("rate", rate(limit.rate, limit.per, limit.burst)),
            ("running", f"{limit.running:,}"),
            ("held back", f"{limit.waiting:,}"),
            ("set", f"{moment(limit.updated_at)} by {limit.set_by}"),
        ]
    )

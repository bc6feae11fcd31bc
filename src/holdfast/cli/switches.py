"""``holdfast pause``, ``resume`` and ``switches``: what is not begun for now, why, and until when."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from holdfast.cli import options
from holdfast.cli.output import Cell, emit, facts, line, say, table, write
from holdfast.cli.session import connect, scope
from holdfast.cli.words import duration, instant, moment
from holdfast.domain.errors import InvalidSetting
from holdfast.domain.job import EVERY_TENANT
from holdfast.domain.switches import Named, Switch
from holdfast.features.switches import Switches

Queue = Annotated[str | None, typer.Option("--queue", metavar="NAME", help="The jobs of a queue.")]
Kind = Annotated[str | None, typer.Option("--kind", metavar="NAME", help="The jobs of a kind.")]
Agent = Annotated[str | None, typer.Option("--agent", metavar="ID", help="The jobs of an agent.")]
Whose = Annotated[
    str | None, typer.Option("--tenant", metavar="NAME", help="Of this tenant alone; else of every tenant.")
]
Everything = Annotated[bool, typer.Option("--all", help="Everything: the whole system.")]


def pause(
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; whoever is refused is told.")],
    queue: Queue = None,
    kind: Kind = None,
    agent: Agent = None,
    tenant: Whose = None,
    everything: Everything = False,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME|SPAN", help="When it goes on by itself: a time, or 2h.")
    ] = None,
    refuse_enqueue: Annotated[
        bool | None,
        typer.Option("--refuse-enqueue/--accept-enqueue", help="New jobs too; by itself only with --all."),
    ] = None,
    url: options.Url = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Begin nothing more of a queue, a kind, an agent, a tenant, or everything. What runs may end."""
    what = Named(queue=queue, kind=kind, agent=agent, tenant=tenant, everything=everything)
    with connect(url, EVERY_TENANT if tenant is None else tenant, schema) as client:
        found = Switches(client).pause(
            reason=reason, until=None if until is None else _when(until), refuse_enqueue=refuse_enqueue, **what
        )
    if as_json:
        emit(found)
        return
    write(f"{found.what} is paused")
    facts(
        [
            ("reason", found.reason),
            ("since", f"{moment(found.since)} by {found.set_by}"),
            ("until", "somebody resumes it" if found.until is None else moment(found.until)),
            ("new jobs", "refused" if found.refuse_enqueue else "accepted, and wait"),
        ]
    )


def resume(
    queue: Queue = None,
    kind: Kind = None,
    agent: Agent = None,
    tenant: Whose = None,
    everything: Everything = False,
    url: options.Url = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Go on with what was paused; it is named as it was then."""
    what = Named(queue=queue, kind=kind, agent=agent, tenant=tenant, everything=everything)
    with connect(url, scope(tenant), schema) as client:
        Switches(client).resume(**what)
    if as_json:
        emit({"resumed": True})
    else:
        say("It goes on.")


def switches(
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """List what is paused, of a tenant's and of everybody's; disabled agents are among it."""
    with connect(url, scope(tenant, all_tenants), schema) as client:
        found = Switches(client).list()
    if as_json:
        emit(found)
    elif not found:
        say("Nothing is paused.")
    else:
        table(["what", "since", "by", "until", "new jobs", "reason"], [_row(each) for each in found], keep=("what",))


def _row(switch: Switch) -> list[Cell]:
    until = "" if switch.until is None else moment(switch.until)
    accepted = "refused" if switch.refuse_enqueue else "wait"
    return [line(switch.what), moment(switch.since), line(switch.set_by), until, accepted, line(switch.reason)]


def _when(text: str) -> float | datetime:
    try:
        return duration(text, "--until")
    except InvalidSetting:
        return instant(text, "--until")

"""``holdfast pause``, ``resume`` and ``switches``: what is not begun for now, why, and until when."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.output import emit, facts, line, write
from holdfast.cli.session import AnyTenant, NoTenant
from holdfast.cli.words import moment, time_or_span
from holdfast.engine.job import EVERY_TENANT
from holdfast.features.limits.model import Named
from holdfast.features.limits.operations import Switches

Queue = Annotated[str | None, typer.Option("--queue", metavar="NAME", help="The jobs of a queue.")]
Kind = Annotated[str | None, typer.Option("--kind", metavar="NAME", help="The jobs of a kind.")]
Agent = Annotated[str | None, typer.Option("--agent", metavar="ID", help="The jobs of an agent.")]
Whose = Annotated[
    str | None, typer.Option("--tenant", metavar="NAME", help="Of this tenant alone; else of every tenant.")
]
Everything = Annotated[bool, typer.Option("--all", help="Everything: the whole system.")]


def pause(
    session: NoTenant,
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
) -> None:
    """Begin nothing more of a queue, a kind, an agent, a tenant, or everything. What runs may end."""
    what = Named(queue=queue, kind=kind, agent=agent, tenant=tenant, everything=everything)
    with session.connect(EVERY_TENANT if tenant is None else tenant) as client:
        found = Switches(client).pause(
            reason=reason,
            until=None if until is None else time_or_span(until, "--until"),
            refuse_enqueue=refuse_enqueue,
            **what,
        )
    if session.as_json:
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
    session: NoTenant,
    queue: Queue = None,
    kind: Kind = None,
    agent: Agent = None,
    tenant: Whose = None,
    everything: Everything = False,
) -> None:
    """Go on with what was paused; it is named as it was then."""
    what = Named(queue=queue, kind=kind, agent=agent, tenant=tenant, everything=everything)
    with session.connect() as client:
        Switches(client).resume(**what)
    session.answer({"resumed": True}, "It goes on.")


def switches(session: AnyTenant) -> None:
    """List what is paused, of a tenant's and of everybody's; disabled agents are among it."""
    with session.connect() as client:
        found = Switches(client).list()
    session.print_list(
        found,
        {
            "what": lambda switch: line(switch.what),
            "since": lambda switch: moment(switch.since),
            "by": lambda switch: line(switch.set_by),
            "until": lambda switch: "" if switch.until is None else moment(switch.until),
            "new jobs": lambda switch: "refused" if switch.refuse_enqueue else "wait",
            "reason": lambda switch: line(switch.reason),
        },
        none="Nothing is paused.",
        keep=("what",),
    )

"""``holdfast limits, pause, resume, pauses, reservations, queues``."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli import options
from holdfast.cli.derived import derive
from holdfast.cli.output import (
    duration,
    emit,
    line,
    moment,
    print_fields,
    rate,
    say,
    span,
    state_text,
    time_or_span,
    write,
)
from holdfast.cli.session import AnyTenant, NoTenant
from holdfast.cli.tree import Commands
from holdfast.engine.ids import parse_id
from holdfast.engine.job import EVERY_TENANT
from holdfast.features.limits.model import Limit, PauseTarget, Reservation
from holdfast.features.limits.operations import Limits, Pauses, Queues, Reservations

commands = Commands("Limit how many jobs run at once or start per period.")


@derive(commands, "list", AnyTenant, Limits.list, "holdfast limits list")
def list_limits(session: AnyTenant, result: list[Limit]) -> None:
    session.print_list(
        result,
        {
            "what": lambda limit: line(_target(limit)),
            "tenant": lambda limit: line(limit.tenant),
            "concurrency": lambda limit: "" if limit.concurrency is None else f"{limit.concurrency:,}",
            "rate": lambda limit: rate(limit.rate, limit.per, limit.burst) or "",
            "running": lambda limit: f"{limit.running:,}",
            "held back": lambda limit: f"{limit.waiting:,}",
        },
        none="No limits.",
        keep=("what", "concurrency", "rate", "running", "held back"),
    )


@derive(commands, "show", AnyTenant, Limits.get, "holdfast limits show --queue mail")
@derive(
    commands,
    "set",
    AnyTenant,
    Limits.set,
    "holdfast limits set --queue mail --concurrency 5",
    "holdfast limits set --kind call --rate 100/m --burst 10",
    "holdfast limits set --key '*' --concurrency 1",
    "holdfast limits set --all-tenants --of-tenant '*' --concurrency 20",
)
def print_limit(session: AnyTenant, result: Limit) -> None:
    _print(result, session.as_json)


@derive(commands, "remove", AnyTenant, Limits.remove, "holdfast limits remove --queue mail")
def remove_limit(session: AnyTenant, result: None) -> None:
    session.answer({"removed": True}, "Removed.")


def _target(limit: Limit) -> str:
    if limit.scope == "all":
        return "all jobs"
    return f"each {limit.scope}" if limit.name == "*" else f"{limit.scope} {limit.name}"


def _print(limit: Limit, as_json: bool) -> None:
    if as_json:
        emit(limit)
        return
    write(_target(limit))
    print_fields(
        [
            ("tenant", "every tenant together" if limit.tenant == EVERY_TENANT else limit.tenant),
            ("concurrency", None if limit.concurrency is None else f"{limit.concurrency:,}"),
            ("rate", rate(limit.rate, limit.per, limit.burst)),
            ("running", f"{limit.running:,}"),
            ("held back", f"{limit.waiting:,}"),
            ("set", f"{moment(limit.updated_at)} by {limit.set_by}"),
        ]
    )


Queue = Annotated[str | None, typer.Option("--queue", metavar="NAME", help="Pause a queue.")]
Kind = Annotated[str | None, typer.Option("--kind", metavar="NAME", help="Pause a kind.")]
Agent = Annotated[str | None, typer.Option("--agent", metavar="ID", help="Pause an agent.")]
Whose = Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Only this tenant; default: every tenant.")]
Everything = Annotated[bool, typer.Option("--all", help="Everything: the whole system.")]


def pause(
    session: NoTenant,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="The reason, shown to callers whose job is refused.")
    ],
    queue: Queue = None,
    kind: Kind = None,
    agent: Agent = None,
    tenant: Whose = None,
    everything: Everything = False,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME|SPAN", help="When to resume automatically: a time, or 2h.")
    ] = None,
    refuse_enqueue: Annotated[
        bool | None,
        typer.Option("--refuse-enqueue/--accept-enqueue", help="Refuse new jobs as well; the default with --all."),
    ] = None,
) -> None:
    """Pause a queue, a kind, an agent, a tenant or everything. Running jobs finish."""
    what = PauseTarget(queue=queue, kind=kind, agent=agent, tenant=tenant, everything=everything)
    with session.connect(EVERY_TENANT if tenant is None else tenant) as client:
        paused = Pauses(client).set(
            reason=reason,
            until=None if until is None else time_or_span(until, "--until"),
            refuse_enqueue=refuse_enqueue,
            **what,
        )
    if session.as_json:
        emit(paused)
        return
    write(f"{paused.what} is paused")
    print_fields(
        [
            ("reason", paused.reason),
            ("since", f"{moment(paused.since)} by {paused.set_by}"),
            ("until", "it is resumed" if paused.until is None else moment(paused.until)),
            ("new jobs", "refused" if paused.refuse_enqueue else "accepted, and wait"),
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
    """Resume what was paused. Name it with the same options."""
    what = PauseTarget(queue=queue, kind=kind, agent=agent, tenant=tenant, everything=everything)
    with session.connect() as client:
        Pauses(client).remove(**what)
    session.answer({"resumed": True}, "Resumed.")


def pauses(session: AnyTenant) -> None:
    """List what is paused, for a tenant and for all tenants, including disabled agents."""
    with session.connect() as client:
        paused = Pauses(client).list()
    session.print_list(
        paused,
        {
            "what": lambda pause: line(pause.what),
            "since": lambda pause: moment(pause.since),
            "by": lambda pause: line(pause.set_by),
            "until": lambda pause: "" if pause.until is None else moment(pause.until),
            "new jobs": lambda pause: "refused" if pause.refuse_enqueue else "wait",
            "reason": lambda pause: line(pause.reason),
        },
        none="Nothing is paused.",
        keep=("what",),
    )


queue_commands = Commands("Configure queues: raise the priority of jobs that wait long.")


@queue_commands.add("list", "holdfast queues list")
def list_queues(session: AnyTenant) -> None:
    """List the queues with settings."""
    with session.connect() as client:
        settings = Queues(client).list()
    session.print_list(
        settings,
        {
            "queue": lambda setting: line(setting.queue),
            "tenant": lambda setting: line(setting.tenant),
            "ages every": lambda setting: span(setting.aging),
            "by": lambda setting: str(setting.aging_step),
            "up to": lambda setting: str(setting.aging_most),
        },
        none="No queue has settings.",
        keep=("queue", "ages every"),
    )


@queue_commands.add(
    "age",
    "holdfast queues age reports --every 10m --most 20",
    "holdfast queues age reports --never",
)
def age(
    session: AnyTenant,
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.")],
    every: Annotated[str | None, typer.Option("--every", metavar="SPAN", help="Waiting time per step: 10m.")] = None,
    never: Annotated[bool, typer.Option("--never", help="Stop raising priorities; raised ones stay.")] = False,
    step: Annotated[
        int, typer.Option("--step", metavar="N", min=1, max=32_767, help="Priority increase per step.")
    ] = 1,
    most: Annotated[
        int, typer.Option("--most", metavar="N", min=-32_768, max=32_767, help="Highest priority to reach.")
    ] = 100,
) -> None:
    """Raise the priority of jobs the longer they wait in a queue."""
    if (every is None) != never:
        raise typer.BadParameter("pass --every or --never")
    with session.connect() as client:
        interval = None if every is None else duration(every, "--every")
        setting = Queues(client).set_aging(queue, every=interval, step=step, most=most)
    if session.as_json:
        emit(setting)
    elif setting is None:
        say(f"Jobs in {queue} keep their priority.")
    else:
        say(f"Jobs in {queue} age every {span(setting.aging)}.")


reservation_commands = Commands("List and release reservations.")


@reservation_commands.add("list", "holdfast reservations list --ended")
def list_reservations(
    session: AnyTenant,
    ended: Annotated[bool, typer.Option("--ended", help="Include ended reservations, newest first.")] = False,
    limit: options.Limit = 50,
) -> None:
    """List reservations and the callers waiting for them, in order."""
    with session.connect() as client:
        reservations = Reservations(client).list(ended=ended, limit=limit)
    session.print_list(
        reservations,
        {
            "id": lambda reservation: reservation.id,
            "what": lambda reservation: line(reservation.what),
            "state": lambda reservation: state_text(reservation.state),
            "holder": lambda reservation: line(reservation.holder),
            "since": lambda reservation: moment(reservation.reserved_at or reservation.asked_at),
            "job": lambda reservation: reservation.job_id or "",
            "until": lambda reservation: moment(reservation.ended_at or reservation.expires_at),
            "why": lambda reservation: line(_why(reservation)),
        },
        none="Nothing is reserved.",
        keep=("id", "what", "state"),
    )


@reservation_commands.add(
    "release", "holdfast reservations release 01a1de74-eb8c-70f1-843b-cac5f6817387 --reason 'it hangs'"
)
def release(
    session: AnyTenant,
    reservation: Annotated[str, typer.Argument(metavar="ID", help="The reservation's full id.")],
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="The reason, stored with the reservation.")
    ] = "released by an operator",
) -> None:
    """Release a reservation. Jobs start there again and its holder is notified."""
    with session.connect() as client:
        Reservations(client).release(parse_id(reservation), reason=reason)
    session.answer({"released": reservation}, "Released.")


def _why(reservation: Reservation) -> str:
    """The reason of the reservation; once it has ended, how it ended."""
    return (reservation.reason or "") if reservation.ended_why is None else reservation.ended_why

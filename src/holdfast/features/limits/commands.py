"""``holdfast limits, pause, resume, pauses, reservations, queues``."""

from __future__ import annotations

from holdfast.cli.derived import derive, derived_command
from holdfast.cli.output import emit, line, moment, print_fields, rate, say, span, state_text, write
from holdfast.cli.session import AnyTenant, NoTenant
from holdfast.cli.tree import Commands
from holdfast.engine.job import EVERY_TENANT
from holdfast.features.limits.model import Limit, Pause, QueueSetting, Reservation
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


@derived_command(NoTenant, Pauses.set)
def pause(session: NoTenant, result: Pause) -> None:
    if session.as_json:
        emit(result)
        return
    write(f"{result.what} is paused")
    print_fields(
        [
            ("reason", result.reason),
            ("since", f"{moment(result.since)} by {result.set_by}"),
            ("until", "it is resumed" if result.until is None else moment(result.until)),
            ("new jobs", result.new_jobs),
        ]
    )


@derived_command(NoTenant, Pauses.remove)
def resume(session: NoTenant, result: None) -> None:
    session.answer({"resumed": True}, "Resumed.")


@derived_command(AnyTenant, Pauses.list)
def pauses(session: AnyTenant, result: list[Pause]) -> None:
    session.print_list(
        result,
        {
            "what": lambda pause: line(pause.what),
            "since": lambda pause: moment(pause.since),
            "by": lambda pause: line(pause.set_by),
            "until": lambda pause: "" if pause.until is None else moment(pause.until),
            "new jobs": lambda pause: pause.new_jobs,
            "reason": lambda pause: line(pause.reason),
        },
        none="No pauses.",
        keep=("what",),
    )


queue_commands = Commands("Configure queues: raise the priority of jobs that wait long.")


@derive(queue_commands, "list", AnyTenant, Queues.list, "holdfast queues list")
def list_queues(session: AnyTenant, result: list[QueueSetting]) -> None:
    session.print_list(
        result,
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


@derive(
    queue_commands,
    "set-aging",
    AnyTenant,
    Queues.set_aging,
    "holdfast queues set-aging reports --every 10m --most 20",
    "holdfast queues set-aging reports --every none",
)
def print_aging(session: AnyTenant, result: QueueSetting | None, queue: str) -> None:
    if session.as_json:
        emit(result)
    elif result is None:
        say(f"Jobs in {queue} keep their priority.")
    else:
        say(f"Jobs in {queue} age every {span(result.aging)}.")


reservation_commands = Commands("List and release reservations.")


@derive(reservation_commands, "list", AnyTenant, Reservations.list, "holdfast reservations list --ended")
def list_reservations(session: AnyTenant, result: list[Reservation]) -> None:
    session.print_list(
        result,
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
        none="No reservations.",
        keep=("id", "what", "state"),
    )


@derive(
    reservation_commands,
    "show",
    AnyTenant,
    Reservations.get,
    "holdfast reservations show 01a1de74-eb8c-70f1-843b-cac5f6817387",
)
def print_reservation(session: AnyTenant, result: Reservation) -> None:
    if session.as_json:
        emit(result)
        return
    write(result.what)
    print_fields(
        [
            ("state", state_text(result.state)),
            ("tenant", result.tenant),
            ("holder", result.holder),
            ("requested", moment(result.asked_at)),
            ("reserved", None if result.reserved_at is None else moment(result.reserved_at)),
            ("until", moment(result.ended_at or result.expires_at)),
            ("job", result.job_id),
            ("why", _why(result) or None),
        ]
    )


@derive(
    reservation_commands,
    "release",
    AnyTenant,
    Reservations.release,
    "holdfast reservations release 01a1de74-eb8c-70f1-843b-cac5f6817387 --reason 'it hangs'",
)
def print_released(session: AnyTenant, result: None, reservation_id: str) -> None:
    session.answer({"released": reservation_id}, "Released.")


def _why(reservation: Reservation) -> str:
    """The reason of the reservation; once it has ended, how it ended."""
    return (reservation.reason or "") if reservation.ended_why is None else reservation.ended_why

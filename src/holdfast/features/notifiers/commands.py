"""``holdfast notifiers``: channels that tell people what needs them."""

from __future__ import annotations

from rich.text import Text

from holdfast.cli.derived import derive
from holdfast.cli.output import emit, line, moment, print_fields, span, write
from holdfast.cli.session import AnyTenant, OneTenant
from holdfast.cli.tree import Commands
from holdfast.features.notifiers.model import Notifier
from holdfast.features.notifiers.operations import Notifiers

commands = Commands("Manage notifiers: channels that tell people.")


@derive(commands, "list", AnyTenant, Notifiers.list, "holdfast notifiers list")
def list_notifiers(session: AnyTenant, result: list[Notifier]) -> None:
    session.print_list(
        result,
        {
            "name": lambda each: line(each.name),
            **session.tenants,
            "channel": lambda each: line(each.channel),
            "tells": lambda each: line(", ".join(each.wants)),
            "quiet": lambda each: line(each.quiet or ""),
            "escalates to": lambda each: line(each.escalation or ""),
            "state": lambda each: Text("enabled", "green") if each.enabled else Text("disabled", "bold red"),
        },
        none="No notifiers.",
        keep=("name", "state"),
    )


@derive(commands, "show", OneTenant, Notifiers.get, "holdfast notifiers show ops")
@derive(
    commands,
    "set",
    OneTenant,
    Notifiers.set,
    "holdfast notifiers set ops --channel slack --secret OPS_SLACK --dashboard https://jobs.example.com",
    "holdfast notifiers set night --channel email --secret MAIL --from jobs@example.com --to ada@example.com",
    "holdfast notifiers set ops --quiet '22:00-07:00 Europe/Paris' --escalate-after 30m --escalation night",
)
def print_notifier(session: OneTenant, result: Notifier) -> None:
    if session.as_json:
        emit(result)
        return
    write(result.name)
    escalation = f"to {result.escalation} after {span(result.escalate_after)}" if result.escalate_after else None
    print_fields(
        [
            ("state", "enabled" if result.enabled else "disabled"),
            ("tenant", result.tenant),
            ("channel", result.channel),
            ("secrets", ", ".join(result.secrets)),
            ("tells", ", ".join(result.wants)),
            ("of kind", result.kind),
            ("from", result.sender),
            ("to", ", ".join(result.recipients) or None),
            ("dashboard", result.dashboard),
            ("quiet hours", result.quiet),
            ("escalates", escalation),
            ("set", f"{moment(result.updated_at)} by {result.set_by}"),
        ]
    )


@derive(
    commands,
    "test",
    OneTenant,
    Notifiers.test,
    "holdfast notifiers test ops",
    help="Send a test message, also in quiet hours. A worker sends it; `holdfast jobs show` shows the result.",
)
def print_job(session: OneTenant, result: str) -> None:
    if session.as_json:
        emit({"job_id": result})
    else:
        write(result)


@derive(commands, "remove", OneTenant, Notifiers.remove, "holdfast notifiers remove ops")
def print_removed(session: OneTenant, result: None, name: str) -> None:
    session.answer({"name": name, "removed": True}, f"Removed {name}.")

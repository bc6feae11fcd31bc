"""``holdfast webhooks``: manage webhooks and their deliveries."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from holdfast.cli import options
from holdfast.cli.output import Cell, emit, line, moment, print_fields, say, table, write
from holdfast.cli.session import AnyTenant, OneTenant
from holdfast.cli.tree import Commands
from holdfast.features.events.model import JobOptions
from holdfast.features.webhooks.model import NOTICES, Webhook, WebhookDelivery
from holdfast.features.webhooks.operations import Changes, DeliveryFilter, Webhooks
from holdfast.webhooks import new_secret

commands = Commands("Manage webhooks and their deliveries.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The webhook's name.")]
Wants = Annotated[
    list[str] | None,
    typer.Option("--on", metavar="EVENT", help=f"Event types to send: {', '.join(NOTICES)}, order.*; repeatable."),
]
OfKind = Annotated[
    str | None, typer.Option("--kind", metavar="NAME", help="Only events of jobs of this kind; * matches any.")
]
OfQueue = Annotated[
    str | None, typer.Option("--of-queue", metavar="NAME", help="Only events of jobs enqueued in this queue.")
]
Queue = Annotated[str | None, typer.Option("--queue", metavar="NAME", help="Queue for the deliveries.")]
Secret = Annotated[
    list[str],
    typer.Option(
        "--secret",
        metavar="VARIABLE",
        help="Name of a signing secret, newest first (the name, not the secret); repeatable.",
    ),
]


@commands.add("list", "holdfast webhooks list")
def list_webhooks(session: AnyTenant) -> None:
    """List the webhooks with their URLs and event types."""
    with session.connect() as client:
        webhooks = Webhooks(client).list()
    session.print_list(
        webhooks,
        {
            "name": lambda webhook: line(webhook.name),
            **session.tenants,
            "url": lambda webhook: line(webhook.shown_url),
            "events": lambda webhook: line(", ".join(webhook.wants)),
            "state": _state,
        },
        none="There are no webhooks.",
        keep=("name", "state"),
        described=lambda webhook: webhook.described(),
    )


@commands.add("show", "holdfast webhooks show ops")
def show(session: OneTenant, name: Name) -> None:
    """Show a webhook and its last delivery attempts."""
    with session.connect() as client:
        feature = Webhooks(client)
        webhook, log = feature.get(name), feature.deliveries(name, limit=10)
    if session.as_json:
        emit(webhook.described() | {"deliveries": [delivery.described() for delivery in log]})
        return
    _print(webhook)
    if log:
        _print_deliveries(log)


@commands.add(
    "add",
    "holdfast webhooks add ops https://ops.example.com/hooks --secret OPS_HOOK",
    "holdfast webhooks add shop https://shop.example.com/hooks --secret SHOP_HOOK \\",
    "  --on job.succeeded --kind 'order*'",
)
def add(
    session: OneTenant,
    name: Name,
    to: Annotated[str, typer.Argument(metavar="URL", help="URL to post messages to.")],
    secret: Secret,
    wants: Wants = None,
    kind: OfKind = None,
    of_queue: OfQueue = None,
    queue: Queue = None,
) -> None:
    """Add a webhook: post signed messages (Standard Webhooks) to a URL."""
    job_options = JobOptions() if queue is None else JobOptions(queue=queue)
    if of_queue is not None:
        job_options["of_queue"] = of_queue
    with session.connect() as client:
        webhook = Webhooks(client).add(name, to, secrets=secret, wants=wants or None, kind=kind, **job_options)
    _report(webhook, session.as_json)


@commands.add("change", "holdfast webhooks change ops --on job.dead_letter --on job.crashed")
def change(
    session: OneTenant,
    name: Name,
    to: Annotated[str | None, typer.Option("--to", metavar="URL", help="URL to post messages to.")] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            "--secret", metavar="VARIABLE", help="Names of the signing secrets, newest first; replaces the old list."
        ),
    ] = None,
    wants: Wants = None,
    kind: OfKind = None,
    of_queue: OfQueue = None,
    queue: Queue = None,
) -> None:
    """Change a webhook's URL, secrets, queue or event types."""
    job_options = {name: value for name, value in (("queue", queue), ("of_queue", of_queue)) if value is not None}
    given = {"url": to, "secrets": secret or None, "wants": wants or None, "kind": kind, "options": job_options or None}
    changes = Changes(**{key: value for key, value in given.items() if value is not None})  # type: ignore[typeddict-item]
    with session.connect() as client:
        _report(Webhooks(client).set(name, **changes), session.as_json)


@commands.add(
    "rotate",
    "holdfast webhooks rotate ops OPS_HOOK_2",
    "holdfast webhooks rotate ops OPS_HOOK_2 --keep 0",
)
def rotate(
    session: OneTenant,
    name: Name,
    secret: Annotated[str, typer.Argument(metavar="VARIABLE", help="The name of the new secret.")],
    keep: Annotated[
        int, typer.Option("--keep", metavar="N", min=0, max=4, help="Number of old secrets that still sign.")
    ] = 1,
) -> None:
    """Add a new signing secret. The last one still signs, unless you pass --keep 0."""
    with session.connect() as client:
        _report(Webhooks(client).rotate_secret(name, secret, keep=keep), session.as_json)


@commands.add("disable", "holdfast webhooks disable ops --reason 'it is moved'")
def disable(
    session: OneTenant, name: Name, reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="The reason.")]
) -> None:
    """Disable a webhook. Events that arrive meanwhile are kept until it is enabled."""
    with session.connect() as client:
        _report(Webhooks(client).disable(name, reason=reason), session.as_json)


@commands.add("enable", "holdfast webhooks enable ops --skip")
def enable(
    session: OneTenant,
    name: Name,
    skip: Annotated[
        bool, typer.Option("--skip", help="Skip events that arrived while the webhook was disabled.")
    ] = False,
) -> None:
    """Enable a webhook and send the events that arrived meanwhile."""
    with session.connect() as client:
        _report(Webhooks(client).enable(name, skip=skip), session.as_json)


@commands.add("remove", "holdfast webhooks remove ops")
def remove(session: OneTenant, name: Name) -> None:
    """Remove a webhook and the log of its deliveries."""
    with session.connect() as client:
        Webhooks(client).remove(name)
    session.answer({"name": name, "removed": True}, f"Removed {name}.")


@commands.add("test", "holdfast webhooks test ops")
def ping(session: OneTenant, name: Name) -> None:
    """Send a ping to a webhook. A worker delivers it; `holdfast webhooks deliveries` shows the result."""
    with session.connect() as client:
        _enqueued(Webhooks(client).test(name), session.as_json)


@commands.add("deliveries", "holdfast webhooks deliveries ops --failed")
def deliveries(
    session: OneTenant,
    name: Name,
    failed: Annotated[bool, typer.Option("--failed", help="Only failed attempts.")] = False,
    message: Annotated[
        str | None, typer.Option("--message", metavar="ID", help="Only attempts for this message.")
    ] = None,
    before: Annotated[
        str | None, typer.Option("--before", metavar="ID", help="Next page: only attempts before this id.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=200, help="Maximum number of results.")] = 50,
) -> None:
    """List delivery attempts of a webhook, newest first."""
    wanted = DeliveryFilter(failed=failed, limit=limit)
    if message is not None:
        wanted["message"] = message
    if before is not None:
        wanted["before"] = before
    with session.connect() as client:
        log = Webhooks(client).deliveries(name, **wanted)
    if session.as_json:
        emit([delivery.described() for delivery in log])
    elif not log:
        say("There are no deliveries.")
    else:
        _print_deliveries(log)


@commands.add("resend", "holdfast webhooks resend ops msg_01a1de74eb8c70f1843bcac5f6817387")
def resend(
    session: OneTenant,
    name: Name,
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="The message id: msg_….")],
) -> None:
    """Send a message again, unchanged and under the same id."""
    with session.connect() as client:
        _enqueued(Webhooks(client).resend(name, message), session.as_json)


@commands.add("secret", "holdfast webhooks secret")
def secret(as_json: options.Json = False) -> None:
    """Generate a signing secret. It is printed once and not stored: give it to the workers and to the receiver."""
    text = new_secret()
    if as_json:
        emit({"secret": text})
    else:
        write(text)


def _enqueued(job: str, as_json: bool) -> None:
    if as_json:
        emit({"job_id": job})
    else:
        write(job)


def _report(webhook: Webhook, as_json: bool) -> None:
    if as_json:
        emit(webhook.described())
    else:
        _print(webhook)


def _state(webhook: Webhook) -> Text:
    return Text("enabled", "green") if webhook.enabled else Text("disabled", "bold red")


def _print(webhook: Webhook) -> None:
    disabled = None
    if webhook.disabled_at is not None:
        disabled = f"since {moment(webhook.disabled_at)} by {webhook.disabled_by}: {webhook.disabled_reason}"
    write(webhook.name)
    print_fields(
        [
            ("state", _state(webhook)),
            ("disabled", disabled),
            ("tenant", webhook.tenant),
            ("url", webhook.shown_url),
            ("events", ", ".join(webhook.wants)),
            ("of kind", webhook.kind),
            ("of queue", webhook.job_options.get("of_queue")),
            ("secrets", ", ".join(webhook.secrets)),
            ("created", f"{moment(webhook.created_at)} by {webhook.created_by}"),
        ]
    )


def _print_deliveries(log: list[WebhookDelivery]) -> None:
    rows: list[list[Cell]] = [
        [
            moment(delivery.at) if delivery.at else "",
            line(delivery.type),
            line(delivery.message),
            str(delivery.attempt),
            "" if delivery.status is None else str(delivery.status),
            Text("delivered", "green") if delivery.delivered else Text(line(delivery.error_code or ""), "red"),
            f"{delivery.duration_ms:,} ms",
        ]
        for delivery in log
    ]
    table(("at", "type", "message", "attempt", "status", "result", "duration"), rows, keep=("message", "status"))

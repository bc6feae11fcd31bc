"""``holdfast webhooks``: manage webhooks and their deliveries."""

from __future__ import annotations

from rich.text import Text

from holdfast.cli import options
from holdfast.cli.derived import derive
from holdfast.cli.output import emit, line, moment, print_fields, write
from holdfast.cli.session import AnyTenant, Columns, OneTenant
from holdfast.cli.tree import Commands
from holdfast.features.webhooks.model import Webhook, WebhookDelivery
from holdfast.features.webhooks.operations import Webhooks
from holdfast.webhooks import new_secret

commands = Commands("Manage webhooks and their deliveries.")


@derive(commands, "list", AnyTenant, Webhooks.list, "holdfast webhooks list")
def list_webhooks(session: AnyTenant, result: list[Webhook]) -> None:
    session.print_list(
        result,
        {
            "name": lambda webhook: line(webhook.name),
            **session.tenants,
            "url": lambda webhook: line(webhook.shown_url),
            "events": lambda webhook: line(", ".join(webhook.wants)),
            "state": _state,
        },
        none="No webhooks.",
        keep=("name", "state"),
        described=Webhook.described,
    )


@derive(
    commands,
    "show",
    OneTenant,
    Webhooks.get,
    "holdfast webhooks show ops",
    help="Show a webhook and its last delivery attempts.",
)
def show(session: OneTenant, result: Webhook, namespace: Webhooks) -> None:
    log = namespace.deliveries(result.name, limit=10)
    if session.as_json:
        emit(result.described() | {"deliveries": [delivery.described() for delivery in log]})
        return
    print_webhook(session, result)
    if log:
        session.print_list(log, DELIVERIES, none="", keep=("message", "status"))


@derive(
    commands,
    "add",
    OneTenant,
    Webhooks.add,
    "holdfast webhooks add ops https://ops.example.com/hooks --secret OPS_HOOK",
    "holdfast webhooks add shop https://shop.example.com/hooks --secret SHOP_HOOK \\",
    "  --on job.succeeded --kind 'order*'",
)
@derive(commands, "set", OneTenant, Webhooks.set, "holdfast webhooks set ops --on job.dead_letter --on job.crashed")
@derive(
    commands,
    "rotate-secret",
    OneTenant,
    Webhooks.rotate_secret,
    "holdfast webhooks rotate-secret ops OPS_HOOK_2",
    "holdfast webhooks rotate-secret ops OPS_HOOK_2 --keep 0",
)
@derive(commands, "disable", OneTenant, Webhooks.disable, "holdfast webhooks disable ops --reason 'it is moved'")
@derive(commands, "enable", OneTenant, Webhooks.enable, "holdfast webhooks enable ops --skip")
def print_webhook(session: OneTenant, result: Webhook) -> None:
    if session.as_json:
        emit(result.described())
        return
    disabled = None
    if result.disabled_at is not None:
        disabled = f"since {moment(result.disabled_at)} by {result.disabled_by}: {result.disabled_reason}"
    write(result.name)
    print_fields(
        [
            ("state", _state(result)),
            ("disabled", disabled),
            ("tenant", result.tenant),
            ("url", result.shown_url),
            ("events", ", ".join(result.wants)),
            ("of kind", result.kind),
            ("of queue", result.job_options.get("of_queue")),
            ("secrets", ", ".join(result.secrets)),
            ("created", f"{moment(result.created_at)} by {result.created_by}"),
        ]
    )


@derive(commands, "remove", OneTenant, Webhooks.remove, "holdfast webhooks remove ops")
def print_removed(session: OneTenant, result: None, name: str) -> None:
    session.answer({"name": name, "removed": True}, f"Removed {name}.")


@derive(
    commands,
    "test",
    OneTenant,
    Webhooks.test,
    "holdfast webhooks test ops",
    help="Send a ping to a webhook. A worker delivers it; `holdfast webhooks deliveries` shows the result.",
)
@derive(
    commands,
    "resend",
    OneTenant,
    Webhooks.resend,
    "holdfast webhooks resend ops msg_01a1de74eb8c70f1843bcac5f6817387",
)
def print_job(session: OneTenant, result: str) -> None:
    if session.as_json:
        emit({"job_id": result})
    else:
        write(result)


@derive(commands, "deliveries", OneTenant, Webhooks.deliveries, "holdfast webhooks deliveries ops --failed")
def deliveries(session: OneTenant, result: list[WebhookDelivery]) -> None:
    session.print_list(
        result,
        DELIVERIES,
        none="No deliveries.",
        keep=("message", "status"),
        described=WebhookDelivery.described,
    )


@commands.add("secret", "holdfast webhooks secret")
def secret(as_json: options.Json = False) -> None:
    """Generate a signing secret. It is printed once and not stored: give it to the workers and to the receiver."""
    text = new_secret()
    if as_json:
        emit({"secret": text})
    else:
        write(text)


def _state(webhook: Webhook) -> Text:
    return Text("enabled", "green") if webhook.enabled else Text("disabled", "bold red")


DELIVERIES: Columns[WebhookDelivery] = {
    "at": lambda delivery: moment(delivery.at) if delivery.at else "",
    "type": lambda delivery: line(delivery.type),
    "message": lambda delivery: line(delivery.message),
    "attempt": lambda delivery: str(delivery.attempt),
    "status": lambda delivery: "" if delivery.status is None else str(delivery.status),
    "result": lambda delivery: (
        Text("delivered", "green") if delivery.delivered else Text(line(delivery.error_code or ""), "red")
    ),
    "duration": lambda delivery: f"{delivery.duration_ms:,} ms",
}

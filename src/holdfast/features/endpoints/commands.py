"""``holdfast endpoints``: manage inbound webhooks."""

from __future__ import annotations

from rich.text import Text

from holdfast.cli.derived import derive
from holdfast.cli.output import emit, line, moment, print_fields, span, write
from holdfast.cli.session import AnyTenant, OneTenant
from holdfast.cli.tree import Commands
from holdfast.features.endpoints.model import Endpoint
from holdfast.features.endpoints.operations import Endpoints

commands = Commands("Manage endpoints: URLs that receive webhooks of providers.")


@derive(commands, "list", AnyTenant, Endpoints.list, "holdfast endpoints list")
def list_endpoints(session: AnyTenant, result: list[Endpoint]) -> None:
    session.print_list(
        result,
        {
            "name": lambda each: line(each.name),
            **session.tenants,
            "provider": lambda each: line(each.provider),
            "becomes": lambda each: line(_becomes(each)),
            "secrets": lambda each: line(", ".join(each.secrets)),
            "state": lambda each: Text("enabled", "green") if each.enabled else Text("disabled", "bold red"),
        },
        none="No endpoints.",
        keep=("name", "state"),
    )


@derive(commands, "show", OneTenant, Endpoints.get, "holdfast endpoints show github")
@derive(
    commands,
    "set",
    OneTenant,
    Endpoints.set,
    "holdfast endpoints set github --provider github --secret GITHUB_HOOK --kind deploy",
    "holdfast endpoints set stripe --provider stripe --secret STRIPE_HOOK --event 'stripe.*'",
    "holdfast endpoints set stripe --disabled",
)
def print_endpoint(session: OneTenant, result: Endpoint) -> None:
    if session.as_json:
        emit(result)
        return
    write(result.name)
    print_fields(
        [
            ("state", "enabled" if result.enabled else "disabled"),
            ("tenant", result.tenant),
            ("url", f"POST {result.path}"),
            ("provider", result.provider),
            ("secrets", ", ".join(result.secrets)),
            ("becomes", _becomes(result)),
            ("queue", result.queue),
            ("tolerance", span(result.tolerance)),
            ("set", f"{moment(result.updated_at)} by {result.set_by}"),
        ]
    )


@derive(commands, "remove", OneTenant, Endpoints.remove, "holdfast endpoints remove github")
def print_removed(session: OneTenant, result: None, name: str) -> None:
    session.answer({"name": name, "removed": True}, f"Removed {name}.")


def _becomes(endpoint: Endpoint) -> str:
    return f"job {endpoint.kind}" if endpoint.kind is not None else f"event {endpoint.event or endpoint.name + '.*'}"

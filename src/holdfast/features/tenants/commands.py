"""``holdfast tenants``: limits of tenants, fair sharing of queues, and logins pinned to one tenant."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from holdfast.cli import output
from holdfast.cli.derived import derive
from holdfast.cli.output import emit, line, moment, print_fields, say, write
from holdfast.cli.session import NoTenant
from holdfast.cli.tree import Commands
from holdfast.features.tenants.model import Pin, Tenant, fair_text
from holdfast.features.tenants.operations import Tenants

commands = Commands("Manage tenants, their limits, fair sharing and pinned logins.")


@derive(commands, "list", NoTenant, Tenants.list, "holdfast tenants list")
def list_tenants(session: NoTenant, result: list[Tenant]) -> None:
    session.print_list(
        result,
        {
            "tenant": lambda tenant: line(tenant.name),
            "title": lambda tenant: line(tenant.title or ""),
            "waiting": lambda tenant: _of(tenant.pending, tenant.max_pending),
            "running": lambda tenant: _of(tenant.running, tenant.max_running),
            "rate": lambda tenant: output.rate(tenant.rate, tenant.per, tenant.burst) or "",
            "weight": lambda tenant: str(tenant.weight),
            "share": lambda tenant: _share(tenant) or "",
        },
        none="No tenants.",
        keep=("tenant", "waiting", "running", "share"),
    )


@derive(commands, "show", NoTenant, Tenants.get, "holdfast tenants show acme")
@derive(
    commands,
    "set",
    NoTenant,
    Tenants.set,
    "holdfast tenants set acme --max-pending 100000 --max-running 20 --rate 50/s",
    "holdfast tenants set acme --weight 3",
    "holdfast tenants set acme --max-running none",
)
def print_tenant(session: NoTenant, result: Tenant) -> None:
    _print(result, session.as_json)


@derive(commands, "remove", NoTenant, Tenants.remove, "holdfast tenants remove acme")
def remove_tenant(session: NoTenant, result: None, name: str) -> None:
    session.answer({"tenant": name, "removed": True}, f"Removed the settings of tenant {name}. Its jobs stay.")


State = Annotated[
    Literal["on", "off"] | None,
    typer.Argument(metavar="[on|off]", help="State to set: on or off; without it, print the current setting."),
]


@derive(
    commands,
    "fair-queues",
    NoTenant,
    Tenants.set_fair_queues,
    "holdfast tenants fair-queues on",
    "holdfast tenants fair-queues off",
    without=("on",),
)
def fair_queues(session: NoTenant, inputs: dict[str, str], state: State = None) -> None:
    """Turn fair sharing between tenants on or off. By default queues with jobs of several tenants are shared."""
    with session.namespace(Tenants) as tenants:
        shared = tenants.fair_queues() if state is None else tenants.set_fair_queues(state == "on", **inputs)
    if session.as_json:
        emit({"fair_queues": shared})
    elif not shared:
        say("No queue is shared: jobs are claimed in queue order, whichever tenant they belong to.")
    else:
        say(f"{fair_text(shared)}.")


@derive(commands, "pin", NoTenant, Tenants.pin, "holdfast tenants pin shop_web acme")
def pin(session: NoTenant, result: Pin) -> None:
    session.answer(result, f"Login {line(result.login)} may act for tenant {line(result.tenant)} only.")


@derive(commands, "unpin", NoTenant, Tenants.unpin, "holdfast tenants unpin shop_web")
def unpin(session: NoTenant, result: None, login: str) -> None:
    session.answer({"login": login, "pinned": False}, f"Login {line(login)} is no longer pinned.")


@derive(commands, "pins", NoTenant, Tenants.pins, "holdfast tenants pins")
def pins(session: NoTenant, result: list[Pin]) -> None:
    session.print_list(
        result,
        {
            "login": lambda entry: line(entry.login),
            "tenant": lambda entry: line(entry.tenant),
            "set by": lambda entry: line(entry.set_by),
            "since": lambda entry: moment(entry.created_at),
            "": lambda entry: "" if entry.exists else "no such login",
        },
        none="No login is pinned to a tenant.",
        keep=("login", "tenant"),
    )


@commands.add("registered-only", "holdfast tenants registered-only on")
def registered_only(session: NoTenant, state: State = None) -> None:
    """Turn on or off that only registered tenants may enqueue. Waiting jobs still run."""
    with session.namespace(Tenants) as tenants:
        if state is not None:
            tenants.set_registered_only(state == "on")
        on = tenants.registered_only() if state is None else state == "on"
        others = [tenant.name for tenant in tenants.list() if tenant.updated_at is None] if on else []
    if session.as_json:
        emit({"registered_only": on, "unregistered": others})
        return
    say("Only registered tenants may have jobs." if on else "Any tenant may have jobs.")
    if others:
        say(f"Not registered, and with jobs: {', '.join(map(line, others))}.")


def _of(used: int, most: int | None) -> str:
    return f"{used:,}" if most is None else f"{used:,} of {most:,}"


def _share(tenant: Tenant) -> str | None:
    return None if tenant.share is None else f"{tenant.share:.1%}"


def _print(tenant: Tenant, as_json: bool) -> None:
    if as_json:
        emit(tenant)
        return
    write(tenant.name)
    print_fields(
        [
            ("title", tenant.title),
            ("waiting", _of(tenant.pending, tenant.max_pending)),
            ("running", _of(tenant.running, tenant.max_running)),
            ("rate", output.rate(tenant.rate, tenant.per, tenant.burst)),
            ("weight", str(tenant.weight)),
            ("share", _share(tenant)),
            ("set", "never" if tenant.updated_at is None else f"{moment(tenant.updated_at)} by {tenant.set_by}"),
        ]
    )

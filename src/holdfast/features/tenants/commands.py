"""``holdfast tenants``: limits of tenants, fair sharing of queues, and logins pinned to one tenant."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from holdfast.cli import output
from holdfast.cli.output import emit, line, moment, print_fields, say, write
from holdfast.cli.session import NoTenant
from holdfast.cli.tree import Commands
from holdfast.features.tenants.model import MOST_PENDING, MOST_WEIGHT, Tenant, TenantOptions, fair_text
from holdfast.features.tenants.operations import Tenants

commands = Commands("Manage tenants, their limits, fair sharing and pinned logins.")

Name = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant's name.")]
NONE = "none"


@commands.add("list", "holdfast tenants list")
def list_tenants(session: NoTenant) -> None:
    """List tenants that are registered or have jobs, with their usage and limits."""
    with session.connect() as client:
        tenants = Tenants(client).list()
    session.print_list(
        tenants,
        {
            "tenant": lambda tenant: line(tenant.name),
            "title": lambda tenant: line(tenant.title or ""),
            "waiting": lambda tenant: _of(tenant.pending, tenant.max_pending),
            "running": lambda tenant: _of(tenant.running, tenant.max_running),
            "rate": lambda tenant: output.rate(tenant.rate, tenant.per, tenant.burst) or "",
            "weight": lambda tenant: str(tenant.weight),
            "share": lambda tenant: _share(tenant) or "",
        },
        none="There is no tenant.",
        keep=("tenant", "waiting", "running", "share"),
    )


@commands.add("show", "holdfast tenants show acme")
def show(session: NoTenant, name: Name) -> None:
    """Show one tenant."""
    with session.connect() as client:
        tenant = Tenants(client).get(name)
    _print(tenant, session.as_json)


@commands.add(
    "set",
    "holdfast tenants set acme --max-pending 100000 --max-running 20 --rate 50/s",
    "holdfast tenants set acme --weight 3",
    "holdfast tenants set acme --max-running none",
)
def set_tenant(
    session: NoTenant,
    name: Name,
    title: Annotated[str | None, typer.Option("--title", metavar="TEXT", help="Display name.")] = None,
    max_pending: Annotated[
        str | None,
        typer.Option(
            "--max-pending", metavar="N", help="Maximum waiting jobs; more are refused. 'none' removes the limit."
        ),
    ] = None,
    max_running: Annotated[
        str | None,
        typer.Option("--max-running", metavar="N", help="Maximum running jobs; more wait. 'none' removes the limit."),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option("--rate", metavar="N/SPAN", help="Maximum starts per period: 10/s. 'none' removes the limit."),
    ] = None,
    burst: Annotated[
        int | None,
        typer.Option("--burst", metavar="N", min=1, help="Maximum starts at the same moment (1: evenly spread)."),
    ] = None,
    weight: Annotated[
        str | None,
        typer.Option("--weight", metavar="N", help="Share relative to other tenants; 'none' resets it to 1."),
    ] = None,
) -> None:
    """Register or change a tenant. Other settings stay."""
    options = TenantOptions()
    if title is not None:
        options["title"] = None if title == NONE else title
    if max_pending is not None:
        options["max_pending"] = _number(max_pending, "--max-pending", 0, MOST_PENDING)
    if max_running is not None:
        options["max_running"] = _number(max_running, "--max-running", 0, 1_000_000)
    if weight is not None:
        options["weight"] = _number(weight, "--weight", 1, MOST_WEIGHT)
    if rate is not None:
        options["rate"] = None if rate == NONE else rate
    if burst is not None:
        options["burst"] = burst
    with session.connect() as client:
        tenant = Tenants(client).set(name, **options)
    _print(tenant, session.as_json)


@commands.add("delete", "holdfast tenants delete acme")
def delete(session: NoTenant, name: Name) -> None:
    """Remove a tenant's registration and settings. Its jobs stay."""
    with session.connect() as client:
        Tenants(client).remove(name)
    session.answer({"tenant": name, "deleted": True}, f"Removed the settings of tenant {name}. Its jobs stay.")


@commands.add(
    "fair",
    "holdfast tenants fair on",
    "holdfast tenants fair off",
)
def fair(
    session: NoTenant,
    state: Annotated[
        Literal["on", "off"] | None,
        typer.Argument(metavar="[on|off]", help="State to set: on or off; without it, print the current setting."),
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="NAME", help="Only this queue; default: all queues.")
    ] = None,
) -> None:
    """Turn fair sharing between tenants on or off. By default queues with jobs of several tenants are shared."""
    with session.connect() as client:
        tenants = Tenants(client)
        shared = tenants.fair_queues() if state is None else tenants.set_fair_queues(state == "on", queue=queue)
    if session.as_json:
        emit({"fair": shared})
    elif not shared:
        say("No queue is shared: jobs are claimed in queue order, whichever tenant they belong to.")
    else:
        say(f"{fair_text(shared)}.")


Login = Annotated[str, typer.Argument(metavar="LOGIN", help="A login of the PostgreSQL database.")]


@commands.add("pin", "holdfast tenants pin shop_web acme")
def pin(session: NoTenant, login: Login, name: Name) -> None:
    """Pin a database login to one tenant: it cannot act for another, whatever its roles are. PostgreSQL only."""
    with session.connect() as client:
        result = Tenants(client).pin(login, name)
    session.answer(result, f"Login {line(result.login)} may act for tenant {line(result.tenant)} only.")


@commands.add("unpin", "holdfast tenants unpin shop_web")
def unpin(session: NoTenant, login: Login) -> None:
    """Remove the pin of a database login. Its roles decide again what it may do."""
    with session.connect() as client:
        Tenants(client).unpin(login)
    session.answer({"login": login, "pinned": False}, f"Login {line(login)} is no longer pinned.")


@commands.add("pins", "holdfast tenants pins")
def pins(session: NoTenant) -> None:
    """List database logins that are pinned to one tenant."""
    with session.connect() as client:
        logins = Tenants(client).pins()
    session.print_list(
        logins,
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
def registered_only(
    session: NoTenant,
    state: Annotated[
        Literal["on", "off"] | None,
        typer.Argument(metavar="[on|off]", help="State to set: on or off; without it, print the current setting."),
    ] = None,
) -> None:
    """Turn on or off that only registered tenants may enqueue. Waiting jobs still run."""
    with session.connect() as client:
        tenants = Tenants(client)
        if state is not None:
            tenants.set_registration_required(state == "on")
        on = tenants.registration_required() if state is None else state == "on"
        others = [tenant.name for tenant in tenants.list() if tenant.updated_at is None] if on else []
    if session.as_json:
        emit({"registered_only": on, "unregistered": others})
        return
    say("Only registered tenants may have jobs." if on else "Any tenant may have jobs.")
    if others:
        say(f"Not registered, and with jobs: {', '.join(map(line, others))}.")


def _number(text: str, option: str, least: int, most: int) -> int | None:
    if text == NONE:
        return None
    if not text.isascii() or not text.isdecimal() or not least <= int(text) <= most:
        raise typer.BadParameter(f"{option} must be a number from {least} to {most:,}, or {NONE}")
    return int(text)


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

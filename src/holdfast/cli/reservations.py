"""``holdfast reservations list | release``: what is reserved, and by whom."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli import options
from holdfast.cli.output import Cell, emit, line, say, state_text, table
from holdfast.cli.session import connect, scope
from holdfast.cli.words import moment
from holdfast.domain.ids import parse_id
from holdfast.domain.reservations import Reservation
from holdfast.features.reservations import Reservations


def list_reservations(
    ended: Annotated[bool, typer.Option("--ended", help="Also those that are over, the newest first.")] = False,
    limit: options.Limit = 50,
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """List what is reserved and who waits for it, in their order."""
    with connect(url, scope(tenant, all_tenants), schema) as client:
        found = Reservations(client).list(ended=ended, limit=limit)
    if as_json:
        emit(found)
    elif not found:
        say("Nothing is reserved.")
    else:
        headers = ["id", "what", "state", "holder", "since", "until", "why"]
        rows: list[list[Cell]] = [
            [
                each.id,
                line(each.what),
                state_text(each.state),
                line(each.holder),
                moment(each.reserved_at or each.asked_at),
                moment(each.ended_at or each.expires_at),
                line(_why(each)),
            ]
            for each in found
        ]
        table(headers, rows, keep=("id", "what", "state"))


def release(
    reservation: Annotated[str, typer.Argument(metavar="ID", help="A reservation's id, in full.")],
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept with it.")
    ] = "released by an operator",
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """End somebody's reservation: jobs are begun there again, and its holder is told."""
    with connect(url, scope(tenant, all_tenants), schema) as client:
        Reservations(client).release(parse_id(reservation), reason=reason)
    if as_json:
        emit({"released": reservation})
    else:
        say("Released.")


def _why(reservation: Reservation) -> str:
    """What it is for while it lasts, and how it ended."""
    return (reservation.reason or "") if reservation.ended_why is None else reservation.ended_why

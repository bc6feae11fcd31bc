"""``holdfast reservations list | release``: what is reserved, and by whom."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli import options
from holdfast.cli.output import line, state_text
from holdfast.cli.session import AnyTenant
from holdfast.cli.tree import Commands
from holdfast.cli.words import moment
from holdfast.engine.ids import parse_id
from holdfast.features.limits.model import Reservation
from holdfast.features.limits.operations import Reservations

commands = Commands("Look at what is reserved, and end it.")


@commands.add("list", "holdfast reservations list --ended")
def list_reservations(
    session: AnyTenant,
    ended: Annotated[bool, typer.Option("--ended", help="Also those that are over, the newest first.")] = False,
    limit: options.Limit = 50,
) -> None:
    """List what is reserved and who waits for it, in their order."""
    with session.connect() as client:
        found = Reservations(client).list(ended=ended, limit=limit)
    session.print_list(
        found,
        {
            "id": lambda each: each.id,
            "what": lambda each: line(each.what),
            "state": lambda each: state_text(each.state),
            "holder": lambda each: line(each.holder),
            "since": lambda each: moment(each.reserved_at or each.asked_at),
            "until": lambda each: moment(each.ended_at or each.expires_at),
            "why": lambda each: line(_why(each)),
        },
        none="Nothing is reserved.",
        keep=("id", "what", "state"),
    )


@commands.add("release", "holdfast reservations release 01a1de74-eb8c-70f1-843b-cac5f6817387 --reason 'it hangs'")
def release(
    session: AnyTenant,
    reservation: Annotated[str, typer.Argument(metavar="ID", help="A reservation's id, in full.")],
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept with it.")
    ] = "released by an operator",
) -> None:
    """End somebody's reservation: jobs are begun there again, and its holder is told."""
    with session.connect() as client:
        Reservations(client).release(parse_id(reservation), reason=reason)
    session.answer({"released": reservation}, "Released.")


def _why(reservation: Reservation) -> str:
    """What it is for while it lasts, and how it ended."""
    return (reservation.reason or "") if reservation.ended_why is None else reservation.ended_why

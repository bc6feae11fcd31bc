"""``holdfast consumers list | reset | remove``: who reads events with a place that is kept."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.output import line
from holdfast.cli.session import AnyTenant
from holdfast.cli.subscriptions import From, behind_by
from holdfast.cli.tree import Commands
from holdfast.cli.words import moment
from holdfast.features.events.operations import Consumers

commands = Commands("Who reads events with a place that is kept for it.")
Name = Annotated[str, typer.Argument(metavar="NAME", help="The consumer's name.")]


@commands.add("list", "holdfast consumers list")
def list_consumers(session: AnyTenant) -> None:
    """List who reads events with a place that is kept, and how far behind each is."""
    with session.connect() as client:
        found = Consumers(client).list()
    session.print_list(
        found,
        {
            "name": lambda each: line(each.name),
            "tenant": lambda each: line(each.tenant),
            "reads": lambda each: each.of,
            "behind": lambda each: behind_by(each.behind),
            "moved": lambda each: moment(each.updated_at),
        },
        none="There are no consumers.",
        keep=("behind", "moved"),
    )


@commands.add("reset", "holdfast consumers reset billing --to now")
def reset_consumer(
    session: AnyTenant,
    name: Name,
    to: Annotated[From, typer.Option("--to", metavar="WHEN", help="the beginning, or now.")] = From.BEGINNING,
) -> None:
    """Have a consumer read everything again, or nothing of what there is."""
    with session.connect() as client:
        Consumers(client).reset(name, to.value)
    session.answer(
        {"name": name, "to": to.value}, f"{name} goes on from {'the beginning' if to is From.BEGINNING else 'now'}."
    )


@commands.add("remove", "holdfast consumers remove billing")
def remove_consumer(session: AnyTenant, name: Name) -> None:
    """Forget a consumer's place; reading under its name begins anew."""
    with session.connect() as client:
        Consumers(client).remove(name)
    session.answer({"name": name, "removed": True}, f"{name} is gone.")

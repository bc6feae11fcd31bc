"""``holdfast executors list | add | remove``: who may execute."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.output import line
from holdfast.cli.session import NoTenant
from holdfast.cli.tree import Commands
from holdfast.cli.words import moment
from holdfast.features.agents.operations import Executors

commands = Commands("Who may execute: a list of labels.")

Label = Annotated[str, typer.Argument(metavar="LABEL", help="What a worker is started with as --executor.")]


@commands.add("list", "holdfast executors list")
def list_executors(session: NoTenant) -> None:
    """List who may execute. While the list is empty, everybody may."""
    with session.connect() as client:
        found = Executors(client).list()
    session.print_list(
        found,
        {
            "label": lambda each: line(each.label),
            "role": lambda each: each.role,
            "added by": lambda each: line(each.added_by),
            "added": lambda each: moment(each.added_at),
        },
        none="The list is empty: every label may execute.",
    )


@commands.add(
    "add",
    "holdfast executors add gpu",
    "holdfast executors add planner --generator",
)
def add(
    session: NoTenant,
    label: Label,
    generator: Annotated[bool, typer.Option("--generator", help="It plans work, and never executes it.")] = False,
) -> None:
    """Put a label on the list. From the first on, only those on it may execute."""
    with session.connect() as client:
        added = Executors(client).add(label, "generator" if generator else "executor")
    session.answer(added, f"{label} is on the list, as {added.role}.")


@commands.add("remove", "holdfast executors remove gpu")
def remove(session: NoTenant, label: Label) -> None:
    """Take a label off the list: what it runs may end, and it takes nothing more."""
    with session.connect() as client:
        Executors(client).remove(label)
    session.answer({"label": label, "removed": True}, f"{label} is off the list.")

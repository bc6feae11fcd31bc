"""``holdfast operations start | list | show | cancel | wait``: what people do to many jobs, and how far it is."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any, cast

import typer

from holdfast.cli import options
from holdfast.cli.failures import FAILED
from holdfast.cli.output import console, emit, facts, line, plain, say, write
from holdfast.cli.session import AnyTenant
from holdfast.cli.tree import Commands
from holdfast.cli.which import Which
from holdfast.cli.words import duration, moment
from holdfast.engine.states import State
from holdfast.errors import NotFound
from holdfast.features.dead_letters.model import Operation
from holdfast.features.dead_letters.operations import Operations, Wanted
from holdfast.stores.ids import new_id
from holdfast.stores.session import Client

commands = Commands("What is done to many jobs at once: start, watch, cancel.")


class Verb(StrEnum):
    CANCEL = "cancel"
    REDRIVE = "redrive"
    DISCARD = "discard"


OperationId = Annotated[str, typer.Argument(metavar="ID", help="An operation's id, in full.")]
Rate = Annotated[float | None, typer.Option("--rate", metavar="N", help="At most so many jobs a second.")]
Wait = Annotated[bool, typer.Option("--wait", help="Work on it here, and return when it is over.")]
All = Annotated[bool, typer.Option("--all", help="All there are, where nothing says which.")]


def chosen(client: Client, which: Which, everything: bool, state: State | None = None) -> Wanted:
    """A filter of what was given. One that leaves nothing out must be meant."""
    wanted = which.wanted(client.run(client.verbs.now()))
    if state is not None:
        wanted["state"] = state
    if not wanted and not everything:
        raise typer.BadParameter("say which jobs, or --all")
    return cast(Wanted, wanted)


def begun(client: Client, operation: Operation, wait: bool, as_json: bool) -> None:
    """What was started, or with ``--wait`` what came of it."""
    if wait:
        operation = Operations(client, new_id).run(operation.id, watch=None if as_json else _watch())
    print_operation(operation, as_json)
    if not wait:
        say(f"Workers do it from now on; see: holdfast operations wait {operation.id}")


@commands.add(
    "start",
    "holdfast operations start cancel --kind import --tag spring --reason 'wrong file'",
    "holdfast operations start redrive --queue mail --rate 50 --wait",
)
def start(
    session: AnyTenant,
    verb: Annotated[Verb, typer.Argument(metavar="VERB", help=f"What to do: {', '.join(Verb)}.")],
    state: Annotated[
        State | None, typer.Option("--state", metavar="STATE", help="Only in this state (for cancel).")
    ] = None,
    *,
    which: Which,
    everything: All = False,
    rate: Rate = None,
    reason: options.Reason = None,
    wait: Wait = False,
) -> None:
    """Do something to all jobs that match: in small batches, by the workers, at a bounded rate."""
    with session.connect() as client:
        wanted = chosen(client, which, everything, state)
        started = Operations(client, new_id).start(verb.value, reason=reason, rate=rate, **wanted)
        begun(client, started, wait, session.as_json)


@commands.add("list", "holdfast operations list --running")
def list_operations(
    session: AnyTenant,
    running: Annotated[bool, typer.Option("--running", help="Only those that are not over.")] = False,
    limit: options.Limit = 50,
    after: options.After = None,
) -> None:
    """List bulk operations, newest first, with how far they are."""
    with session.connect() as client:
        found = Operations(client, new_id).list(running=running, limit=limit, before=after)
    session.print_list(
        found,
        {
            "id": lambda each: each.id,
            "verb": lambda each: each.verb,
            "which": lambda each: line(_which(each)),
            "state": lambda each: each.state,
            "done": lambda each: _progress(each),
            "by": lambda each: line(each.created_by),
        },
        none="There are no such operations.",
        keep=("id", "verb", "state", "done"),
    )


@commands.add("show", "holdfast operations show 01a1de74-eb8c-70f1-843b-cac5f6817387")
def show(session: AnyTenant, operation: OperationId) -> None:
    """Show an operation: what is done to which jobs, by whom, and how far it is."""
    with session.connect() as client:
        found = Operations(client, new_id).get(operation)
    if found is None:
        raise NotFound(f"there is no operation {operation} in this tenant", code="operation_not_found")
    print_operation(found, session.as_json)


@commands.add("cancel", "holdfast operations cancel ID --reason 'too early'")
def cancel(session: AnyTenant, operation: OperationId, reason: options.Reason = None) -> None:
    """End an operation before it is done; what it has done stays so."""
    with session.connect() as client:
        print_operation(Operations(client, new_id).cancel(operation, reason=reason), session.as_json)


@commands.add("wait", "holdfast operations wait ID --timeout 10m")
def wait(
    session: AnyTenant,
    operation: OperationId,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="SPAN", help="At most so long: 90, 5m, 1h30m.")
    ] = None,
) -> None:
    """Wait until an operation is over, and show how far it is meanwhile. Exit code 1 if it was cancelled."""
    limit = None if timeout is None else duration(timeout, "--timeout")
    with session.connect() as client:
        found = Operations(client, new_id).wait(operation, timeout=limit, watch=None if session.as_json else _watch())
    print_operation(found, session.as_json)
    if found.state == "cancelled":
        raise typer.Exit(FAILED)


def print_operation(found: Operation, as_json: bool) -> None:
    if as_json:
        emit(found)
        return
    write(f"{found.verb}  {found.id}")
    ended = None if found.finished_at is None else moment(found.finished_at)
    facts(
        [
            ("state", found.state),
            ("which", _which(found)),
            ("done", _progress(found)),
            ("refused", ", ".join(f"{count:,} {why}" for why, count in sorted(found.refusals.items()))),
            ("rate", None if found.rate is None else f"{found.rate:g} a second"),
            ("tries", None if found.max_retries is None else str(found.max_retries + 1)),
            ("reason", found.reason),
            ("tenant", found.tenant),
            ("started", f"{moment(found.created_at)} by {found.created_by}"),
            ("ended", ended if found.cancelled_by is None else f"{ended} by {found.cancelled_by}"),
            ("because", found.cancelled_reason),
        ]
    )


def _watch() -> Any:
    """A line on stderr that is written over where that is a terminal; into a file only what is new of it."""
    screen, told = console(stderr=True), [""]

    def tell(found: Operation) -> None:
        text = f"{found.verb}: {_progress(found)}"
        if text != told[0]:
            told[0] = text
            if screen.is_terminal:
                screen.print(plain(text), end="\r")
            else:
                say(text)

    return tell


def _which(found: Operation) -> str:
    given = {name: value for name, value in found.wanted.items() if (name, value) != ("state", "dead_letter")}
    said = ", ".join(
        f"{name} {value if isinstance(value, str) else json.dumps(value)}" for name, value in given.items()
    )
    return said or "all"


def _progress(found: Operation) -> str:
    """``1,200 of 5,000 (24 %)``"""
    many = f"{found.total:,}{'+' if found.capped else ''}"
    share = "" if found.fraction is None else f" ({found.fraction:.0%})".replace("%", " %")
    return f"{found.done:,} of {many}{share}"

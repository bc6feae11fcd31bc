"""``holdfast dead-letters, operations``.

``holdfast dead-letters list | show | note | redrive | discard``: what failed for good, in groups.

One job by its id is redriven and discarded by ``holdfast jobs``; here it is a group, or all that match.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any, cast

import typer

from holdfast.cli import options
from holdfast.cli.failures import FAILED
from holdfast.cli.options import Kind, Queue, Which
from holdfast.cli.output import (
    age,
    console,
    duration,
    emit,
    facts,
    heading,
    line,
    moment,
    plain,
    say,
    since,
    table,
    write,
)
from holdfast.cli.session import AnyTenant
from holdfast.cli.tree import Commands
from holdfast.engine.states import State
from holdfast.errors import InvalidSetting
from holdfast.features.dead_letters.model import DeadLetterGroup, Operation
from holdfast.features.dead_letters.operations import Operations, Wanted
from holdfast.features.jobs.operator_commands import MaxAttempts, letters_of
from holdfast.stores.ids import new_id
from holdfast.stores.session import Session

operation_commands = Commands("Start, watch and cancel bulk operations.")


class ActionChoice(StrEnum):
    CANCEL = "cancel"
    REDRIVE = "redrive"
    DISCARD = "discard"


OperationId = Annotated[str, typer.Argument(metavar="ID", help="The operation's full id.")]
Rate = Annotated[float | None, typer.Option("--rate", metavar="N", help="Maximum jobs per second.")]
Wait = Annotated[bool, typer.Option("--wait", help="Run the operation in this process and wait until it has finished.")]
All = Annotated[bool, typer.Option("--all", help="Select all jobs, if no other option selects some.")]


def chosen(client: Session, which: Which, everything: bool, state: State | None = None) -> Wanted:
    """A filter of what was given. One that leaves nothing out must be meant."""
    wanted = which.wanted(client.run(client.store.clock.now()))
    if state is not None:
        wanted["state"] = state
    if not wanted and not everything:
        raise typer.BadParameter("say which jobs, or --all")
    return cast(Wanted, wanted)


def begun(client: Session, operation: Operation, wait: bool, as_json: bool) -> None:
    """What was started, or with ``--wait`` what came of it."""
    if wait:
        operation = Operations(client, new_id).run(operation.id, watch=None if as_json else _watch())
    print_operation(operation, as_json)
    if not wait:
        say(f"Workers do it from now on; see: holdfast operations wait {operation.id}")


@operation_commands.add(
    "start",
    "holdfast operations start cancel --kind import --tag spring --reason 'wrong file'",
    "holdfast operations start redrive --queue mail --rate 50 --wait",
)
def start(
    session: AnyTenant,
    action: Annotated[
        ActionChoice, typer.Argument(metavar="ACTION", help=f"Operation to run: {', '.join(ActionChoice)}.")
    ],
    state: Annotated[
        State | None, typer.Option("--state", metavar="STATE", help="Only jobs in this state (for cancel).")
    ] = None,
    *,
    which: Which,
    everything: All = False,
    rate: Rate = None,
    reason: options.Reason = None,
    wait: Wait = False,
) -> None:
    """Start an operation on all matching jobs. Workers run it in small batches at a bounded rate."""
    with session.connect() as client:
        wanted = chosen(client, which, everything, state)
        started = Operations(client, new_id).start(action.value, reason=reason, rate=rate, **wanted)
        begun(client, started, wait, session.as_json)


@operation_commands.add("list", "holdfast operations list --running")
def list_operations(
    session: AnyTenant,
    running: Annotated[bool, typer.Option("--running", help="Only running operations.")] = False,
    limit: options.Limit = 50,
    after: options.After = None,
) -> None:
    """List bulk operations with their progress, newest first."""
    with session.connect() as client:
        found = Operations(client, new_id).list(running=running, limit=limit, before=after)
    session.print_list(
        found,
        {
            "id": lambda each: each.id,
            "action": lambda each: each.action,
            "which": lambda each: line(_which(each)),
            "state": lambda each: each.state,
            "done": lambda each: _progress(each),
            "by": lambda each: line(each.created_by),
        },
        none="There are no such operations.",
        keep=("id", "action", "state", "done"),
    )


@operation_commands.add("show", "holdfast operations show 01a1de74-eb8c-70f1-843b-cac5f6817387")
def show_operation(session: AnyTenant, operation: OperationId) -> None:
    """Show an operation: what it does to which jobs, who started it, and its progress."""
    with session.connect() as client:
        found = Operations(client, new_id).get(operation)
    print_operation(found, session.as_json)


@operation_commands.add("cancel", "holdfast operations cancel ID --reason 'too early'")
def cancel(session: AnyTenant, operation: OperationId, reason: options.Reason = None) -> None:
    """Cancel an operation. Jobs it has already changed stay changed."""
    with session.connect() as client:
        print_operation(Operations(client, new_id).cancel(operation, reason=reason), session.as_json)


@operation_commands.add("wait", "holdfast operations wait ID --timeout 10m")
def wait(
    session: AnyTenant,
    operation: OperationId,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="SPAN", help="Maximum time to wait: 90, 5m, 1h30m.")
    ] = None,
) -> None:
    """Wait until an operation has finished and show its progress. Exit 1 if it was cancelled."""
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
    write(f"{found.action}  {found.id}")
    ended = None if found.finished_at is None else moment(found.finished_at)
    facts(
        [
            ("state", found.state),
            ("which", _which(found)),
            ("done", _progress(found)),
            ("refused", ", ".join(f"{count:,} {why}" for why, count in sorted(found.refusals.items()))),
            ("rate", None if found.rate is None else f"{found.rate:g} a second"),
            ("attempts", None if found.max_attempts is None else str(found.max_attempts)),
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
        text = f"{found.action}: {_progress(found)}"
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


commands = Commands("List, redrive and discard dead letters, grouped by error.")


class Sort(StrEnum):
    LAST = "last"
    COUNT = "count"


Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name, as printed by `dead-letters list`.")]
SomeGroup = Annotated[
    str | None, typer.Argument(metavar="[GROUP]", help="Name of the group; without it, the options select the jobs.")
]
SHOWN = 10


@commands.add(
    "list",
    "holdfast dead-letters list --sort count",
    "holdfast dead-letters list --since 1d --json",
)
def list_groups(
    session: AnyTenant,
    kind: Kind = None,
    queue: Queue = None,
    text: Annotated[
        str | None,
        typer.Option("--text", metavar="TEXT", help="Only groups with this text in the error, location or note."),
    ] = None,
    newer: Annotated[str | None, typer.Option("--since", metavar="TIME", help="Seen since: 1h, or a time.")] = None,
    sort: Annotated[
        Sort, typer.Option("--sort", metavar="ORDER", help="Sort by last (most recent first) or count (largest first).")
    ] = Sort.LAST,
    resolved: Annotated[bool, typer.Option("--resolved", help="Include groups without open dead letters.")] = False,
    limit: options.Limit = 50,
    after: Annotated[
        str | None,
        typer.Option("--after", metavar="CURSOR", help="Cursor of the next page, printed by the previous one."),
    ] = None,
) -> None:
    """List dead letters, grouped by error."""
    with session.connect() as client:
        now = client.run(client.store.clock.now())
        given: dict[str, Any] = {"kind": kind, "queue": queue, "text": text, "after": after}
        given["since"] = since(newer, "--since", lambda: now)
        wanted = {name: value for name, value in given.items() if value is not None}
        most = min(limit + 1, 1000)
        groups = letters_of(client).groups(order=sort.value, resolved=resolved, limit=most, **wanted)
    found, more = groups[:limit], len(groups) > limit
    session.print_list(
        found,
        {
            "group": lambda each: each.fingerprint,
            "kind": lambda each: line(each.kind),
            "open": lambda each: f"{each.open:,}",
            "times": lambda each: f"{each.times:,}",
            "last seen": lambda each: age(each.last_at, now),
            "error": lambda each: line(f"{each.error_code}: {each.error_message}", 80),
            "note": lambda each: line(each.note or "", 60),
        },
        none="There are no such dead letters.",
        keep=("group", "open", "times", "last seen"),
    )
    if more:
        say(f"There are more: --after {found[-1].cursor}")


@commands.add("show", "holdfast dead-letters show 3f2a9c0b1d4e5f60")
def show(session: AnyTenant, group: Group) -> None:
    """Show a group: error, location, count, first and last failure, and its newest jobs."""
    with session.connect() as client:
        letters = letters_of(client)
        found = letters.group(group)
        jobs = letters.jobs(group, limit=SHOWN)
    if session.as_json:
        emit({"group": found, "jobs": jobs})
        return
    _print(found)
    if jobs:
        heading("Jobs" if found.open <= SHOWN else f"The newest {SHOWN} of {found.open:,} jobs")
        rows = [
            [each.id, str(each.attempt), moment(each.created_at), line(each.error_message or "", 80)] for each in jobs
        ]
        table(("id", "try", "enqueued", "error"), rows, keep=("id", "try", "enqueued"))


@commands.add("note", "holdfast dead-letters note 3f2a9c0b1d4e5f60 'the bank is down'")
def note(
    session: AnyTenant,
    group: Group,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The note; '' removes it.")],
) -> None:
    """Set a note on a group. It stays when more dead letters join the group."""
    with session.connect() as client:
        found = letters_of(client).note(group, text or None)
    if session.as_json:
        emit(found)
    else:
        _print(found)


@commands.add(
    "redrive",
    "holdfast dead-letters redrive 3f2a9c0b1d4e5f60 --rate 20",
    "holdfast dead-letters redrive --kind pay --since 1d --reason 'the bank is back' --wait",
)
def redrive(
    session: AnyTenant,
    group: SomeGroup = None,
    *,
    which: Which,
    everything: All = False,
    rate: Rate = None,
    max_attempts: MaxAttempts = None,
    reason: options.Reason = None,
    wait: Wait = False,
) -> None:
    """Redrive the dead letters of a group, or all that match, back into their queues.

    A bulk operation, done by the workers; --wait does it here.
    """
    with session.connect() as client:
        wanted = chosen(client, which, _everything(group, everything))
        letters = letters_of(client)
        how: dict[str, Any] = {"reason": reason, "rate": rate, "max_attempts": max_attempts}
        begun(client, letters.redrive(group, **how, **wanted), wait, session.as_json)  # type: ignore[misc]


@commands.add(
    "discard",
    "holdfast dead-letters discard 3f2a9c0b1d4e5f60 --reason 'nobody wants them'",
    "holdfast dead-letters discard --all --until 90d --reason 'too old'",
)
def discard(
    session: AnyTenant,
    group: SomeGroup = None,
    *,
    reason: options.NeededReason,
    which: Which,
    everything: All = False,
    rate: Rate = None,
    wait: Wait = False,
) -> None:
    """Discard the dead letters of a group, or all that match.

    A bulk operation, done by the workers; --wait does it here.
    """
    with session.connect() as client:
        wanted = chosen(client, which, _everything(group, everything))
        begun(client, letters_of(client).discard(group, reason=reason, rate=rate, **wanted), wait, session.as_json)  # type: ignore[misc]


def _everything(group: str | None, everything: bool) -> bool:
    """A group says which; to say all besides could mean two things."""
    if group is not None and everything:
        raise InvalidSetting("pass a group or --all, not both", code="conflicting_options")
    return everything or group is not None


def _print(found: DeadLetterGroup) -> None:
    write(f"{found.kind}  {found.fingerprint}")
    noted = None if found.noted_at is None else f"{found.note} ({found.noted_by}, {moment(found.noted_at)})"
    facts(
        [
            ("error", f"{found.error_code}: {found.error_message}"),
            ("where", found.frame),
            ("open", f"{found.open:,}"),
            ("times", f"{found.times:,}"),
            ("first seen", moment(found.first_at)),
            ("last seen", moment(found.last_at)),
            ("sample", found.sample_job),
            ("tenant", found.tenant),
            ("note", noted),
        ]
    )

"""``holdfast dead-letters`` and ``holdfast operations``.

These commands change whole groups of dead letters, or all jobs that match. ``holdfast jobs`` redrives and discards
single jobs by id.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any, cast

import typer

from holdfast.cli import options
from holdfast.cli.failures import FAILED
from holdfast.cli.options import JobFilterOptions, Kind, Queue
from holdfast.cli.output import (
    age,
    console,
    duration,
    emit,
    heading,
    line,
    moment,
    plain,
    print_fields,
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
from holdfast.features.dead_letters.operations import JobSelection, Operations
from holdfast.features.jobs.operator_commands import MaxAttempts, StartDelay, StartTime, letters_of, start_time
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


def _selection(client: Session, which: JobFilterOptions, everything: bool, state: State | None = None) -> JobSelection:
    """The options as a selection. Selecting all jobs needs ``--all``."""
    selection = which.wanted(client.run(client.store.clock.now()))
    if state is not None:
        selection["state"] = state
    if not selection and not everything:
        raise typer.BadParameter("select jobs with options, or pass --all")
    return cast(JobSelection, selection)


def _print_started(client: Session, operation: Operation, wait: bool, as_json: bool) -> None:
    """Print the operation that was started; with ``--wait``, run it first."""
    if wait:
        operation = Operations(client, new_id).run(operation.id, watch=None if as_json else _watch())
    _print_operation(operation, as_json)
    if not wait:
        say(f"Workers execute it from now on; see: holdfast operations wait {operation.id}")


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
    which: JobFilterOptions,
    everything: All = False,
    rate: Rate = None,
    at: StartTime = None,
    delay: StartDelay = None,
    reason: options.Reason = None,
    wait: Wait = False,
) -> None:
    """Start an operation on all matching jobs. Workers run it in small batches at a bounded rate."""
    with session.connect() as client:
        selection = _selection(client, which, everything, state)
        started = Operations(client, new_id).start(
            action.value, reason=reason, rate=rate, **start_time(at, delay), **selection
        )
        _print_started(client, started, wait, session.as_json)


@operation_commands.add("list", "holdfast operations list --running")
def list_operations(
    session: AnyTenant,
    running: Annotated[bool, typer.Option("--running", help="Only running operations.")] = False,
    limit: options.Limit = 50,
    after: options.After = None,
) -> None:
    """List bulk operations with their progress, newest first."""
    with session.connect() as client:
        operations = Operations(client, new_id).list(running=running, limit=limit, before=after)
    session.print_list(
        operations,
        {
            "id": lambda operation: operation.id,
            "action": lambda operation: operation.action,
            "which": lambda operation: line(_which(operation)),
            "state": lambda operation: operation.state,
            "done": lambda operation: _progress(operation),
            "by": lambda operation: line(operation.created_by),
        },
        none="There are no such operations.",
        keep=("id", "action", "state", "done"),
    )


@operation_commands.add("show", "holdfast operations show 01a1de74-eb8c-70f1-843b-cac5f6817387")
def show_operation(session: AnyTenant, operation: OperationId) -> None:
    """Show an operation: what it does to which jobs, who started it, and its progress."""
    with session.connect() as client:
        result = Operations(client, new_id).get(operation)
    _print_operation(result, session.as_json)


@operation_commands.add("cancel", "holdfast operations cancel ID --reason 'too early'")
def cancel(session: AnyTenant, operation: OperationId, reason: options.Reason = None) -> None:
    """Cancel an operation. Jobs it has already changed stay changed."""
    with session.connect() as client:
        _print_operation(Operations(client, new_id).cancel(operation, reason=reason), session.as_json)


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
        result = Operations(client, new_id).wait(operation, timeout=limit, watch=None if session.as_json else _watch())
    _print_operation(result, session.as_json)
    if result.state == "cancelled":
        raise typer.Exit(FAILED)


def _print_operation(operation: Operation, as_json: bool) -> None:
    if as_json:
        emit(operation)
        return
    write(f"{operation.action}  {operation.id}")
    ended = None if operation.finished_at is None else moment(operation.finished_at)
    print_fields(
        [
            ("state", operation.state),
            ("which", _which(operation)),
            ("done", _progress(operation)),
            ("refused", ", ".join(f"{count:,} {reason}" for reason, count in sorted(operation.refusals.items()))),
            ("rate", None if operation.rate is None else f"{operation.rate:g} a second"),
            ("jobs start", None if operation.run_at is None else moment(operation.run_at)),
            ("attempts", None if operation.max_attempts is None else str(operation.max_attempts)),
            ("reason", operation.reason),
            ("tenant", operation.tenant),
            ("started", f"{moment(operation.created_at)} by {operation.created_by}"),
            ("ended", ended if operation.cancelled_by is None else f"{ended} by {operation.cancelled_by}"),
            ("because", operation.cancelled_reason),
        ]
    )


def _watch() -> Any:
    """A callback that shows the progress on stderr: one line that is overwritten on a terminal, and otherwise a line
    for each change."""
    screen, last = console(stderr=True), ""

    def show_progress(operation: Operation) -> None:
        nonlocal last
        text = f"{operation.action}: {_progress(operation)}"
        if text != last:
            last = text
            if screen.is_terminal:
                screen.print(plain(text), end="\r")
            else:
                say(text)

    return show_progress


def _which(operation: Operation) -> str:
    shown = {name: value for name, value in operation.wanted.items() if (name, value) != ("state", "dead_letter")}
    text = ", ".join(
        f"{name} {value if isinstance(value, str) else json.dumps(value)}" for name, value in shown.items()
    )
    return text or "all"


def _progress(operation: Operation) -> str:
    """``1,200 of 5,000 (24 %)``"""
    total = f"{operation.total:,}{'+' if operation.capped else ''}"
    share = "" if operation.fraction is None else f" ({operation.fraction:.0%})".replace("%", " %")
    return f"{operation.done:,} of {total}{share}"


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
        filters: dict[str, Any] = {"kind": kind, "queue": queue, "text": text, "after": after}
        filters["since"] = since(newer, "--since", lambda: now)
        filters = {name: value for name, value in filters.items() if value is not None}
        one_more = min(limit + 1, 1000)
        groups = letters_of(client).groups(order=sort.value, resolved=resolved, limit=one_more, **filters)
    page, more = groups[:limit], len(groups) > limit
    session.print_list(
        page,
        {
            "group": lambda group: group.fingerprint,
            "kind": lambda group: line(group.kind),
            "open": lambda group: f"{group.open:,}",
            "times": lambda group: f"{group.times:,}",
            "last seen": lambda group: age(group.last_at, now),
            "error": lambda group: line(f"{group.error_code}: {group.error_message}", 80),
            "note": lambda group: line(group.note or "", 60),
        },
        none="There are no such dead letters.",
        keep=("group", "open", "times", "last seen"),
    )
    if more:
        say(f"There are more: --after {page[-1].cursor}")


@commands.add("show", "holdfast dead-letters show 3f2a9c0b1d4e5f60")
def show(session: AnyTenant, group: Group) -> None:
    """Show a group: error, location, count, first and last failure, and its newest jobs."""
    with session.connect() as client:
        letters = letters_of(client)
        result = letters.group(group)
        jobs = letters.jobs(group, limit=SHOWN)
    if session.as_json:
        emit({"group": result, "jobs": jobs})
        return
    _print(result)
    if jobs:
        heading("Jobs" if result.open <= SHOWN else f"The newest {SHOWN} of {result.open:,} jobs")
        rows = [[job.id, str(job.attempt), moment(job.created_at), line(job.error_message or "", 80)] for job in jobs]
        table(("id", "try", "enqueued", "error"), rows, keep=("id", "try", "enqueued"))


@commands.add("note", "holdfast dead-letters note 3f2a9c0b1d4e5f60 'the bank is down'")
def note(
    session: AnyTenant,
    group: Group,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The note; '' removes it.")],
) -> None:
    """Set a note on a group. It stays when more dead letters join the group."""
    with session.connect() as client:
        result = letters_of(client).note(group, text or None)
    if session.as_json:
        emit(result)
    else:
        _print(result)


@commands.add(
    "redrive",
    "holdfast dead-letters redrive 3f2a9c0b1d4e5f60 --rate 20",
    "holdfast dead-letters redrive --kind pay --since 1d --reason 'the bank is back' --wait",
)
def redrive(
    session: AnyTenant,
    group: SomeGroup = None,
    *,
    which: JobFilterOptions,
    everything: All = False,
    rate: Rate = None,
    max_attempts: MaxAttempts = None,
    at: StartTime = None,
    delay: StartDelay = None,
    reason: options.Reason = None,
    wait: Wait = False,
) -> None:
    """Redrive the dead letters of a group, or all that match, back into their queues.

    A bulk operation, done by the workers; --wait does it here.
    """
    with session.connect() as client:
        selection = _selection(client, which, _everything(group, everything))
        started = letters_of(client).redrive(
            group,
            reason=reason,
            rate=rate,
            max_attempts=max_attempts,
            **start_time(at, delay),
            **selection,  # type: ignore[misc]
        )
        _print_started(client, started, wait, session.as_json)


@commands.add(
    "discard",
    "holdfast dead-letters discard 3f2a9c0b1d4e5f60 --reason 'no longer needed'",
    "holdfast dead-letters discard --all --until 90d --reason 'too old'",
)
def discard(
    session: AnyTenant,
    group: SomeGroup = None,
    *,
    reason: options.NeededReason,
    which: JobFilterOptions,
    everything: All = False,
    rate: Rate = None,
    wait: Wait = False,
) -> None:
    """Discard the dead letters of a group, or all that match.

    A bulk operation, done by the workers; --wait does it here.
    """
    with session.connect() as client:
        selection = _selection(client, which, _everything(group, everything))
        started = letters_of(client).discard(group, reason=reason, rate=rate, **selection)  # type: ignore[misc]
        _print_started(client, started, wait, session.as_json)


def _everything(group: str | None, everything: bool) -> bool:
    """Whether no further selection is needed. A group together with ``--all`` is ambiguous."""
    if group is not None and everything:
        raise InvalidSetting("pass a group or --all, not both", code="conflicting_options")
    return everything or group is not None


def _print(group: DeadLetterGroup) -> None:
    write(f"{group.kind}  {group.fingerprint}")
    noted = None if group.noted_at is None else f"{group.note} ({group.noted_by}, {moment(group.noted_at)})"
    print_fields(
        [
            ("error", f"{group.error_code}: {group.error_message}"),
            ("where", group.frame),
            ("open", f"{group.open:,}"),
            ("times", f"{group.times:,}"),
            ("first seen", moment(group.first_at)),
            ("last seen", moment(group.last_at)),
            ("sample", group.sample_job),
            ("tenant", group.tenant),
            ("note", noted),
        ]
    )

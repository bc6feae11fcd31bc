"""``holdfast dead-letters`` and ``holdfast operations``.

These commands change whole groups of dead letters, or all jobs that match. ``holdfast jobs`` redrives and discards
single jobs by id.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from holdfast.cli.derived import derive
from holdfast.cli.failures import FAILED
from holdfast.cli.options import JobFilterOptions
from holdfast.cli.output import age, console, emit, heading, line, moment, plain, print_fields, say, table, write
from holdfast.cli.session import AnyTenant
from holdfast.cli.tree import Commands
from holdfast.engine.declared import Help
from holdfast.engine.operation import operation
from holdfast.engine.states import State
from holdfast.errors import InvalidSetting
from holdfast.features.dead_letters.model import DeadLetterGroup, Operation
from holdfast.features.dead_letters.operations import DeadLetters, Operations
from holdfast.features.jobs.operator_commands import letters_of
from holdfast.stores.job_filters import BY_NAME
from holdfast.stores.session import Session

operation_commands = Commands("Start, watch and cancel bulk operations.")


Wait = Annotated[bool, Help("Run the operation in this process and wait until it has finished.")]
All = Annotated[bool, Help("Select all jobs, if no other option selects some.", option="--all")]


def _selection(client: Session, which: JobFilterOptions, everything: bool) -> dict[str, Any]:
    """The options as a selection. Selecting all jobs needs ``--all``."""
    selection: dict[str, Any] = which.wanted(client.run(client.store.clock.now()))
    if not selection and not everything:
        raise typer.BadParameter("select jobs with options, or pass --all")
    return selection


def _print_started(client: Session, operation: Operation, wait: bool, as_json: bool) -> None:
    """Print the operation that was started; with ``--wait``, run it first."""
    if wait:
        operation = Operations(client).run(operation.id, watch=None if as_json else _watch())
    _print_operation(operation, as_json)
    if not wait:
        say(f"Workers execute it from now on; see: holdfast operations wait {operation.id}")


@derive(
    operation_commands,
    "start",
    AnyTenant,
    Operations.start,
    "holdfast operations start cancel --kind import --tag spring --reason 'wrong file'",
    "holdfast operations start redrive --queue mail --rate 50 --wait",
    without=tuple(BY_NAME),
)
def start(
    session: AnyTenant,
    inputs: dict[str, Any],
    state: Annotated[State | None, Help(f"{BY_NAME['state'].help} For cancel.", "STATE")] = None,
    *,
    which: JobFilterOptions,
    wait: Wait = False,
) -> None:
    with session.connect() as client:
        selection = _selection(client, which, inputs["everything"] or state is not None)
        selection |= {} if state is None else {"state": state}
        _print_started(client, Operations(client).start(**inputs, **selection), wait, session.as_json)


@derive(operation_commands, "list", AnyTenant, Operations.list, "holdfast operations list --running")
def list_operations(session: AnyTenant, result: list[Operation]) -> None:
    session.print_list(
        result,
        {
            "id": lambda operation: operation.id,
            "action": lambda operation: operation.action,
            "which": lambda operation: line(_which(operation)),
            "state": lambda operation: operation.state,
            "done": lambda operation: _progress(operation),
            "by": lambda operation: line(operation.created_by),
        },
        none="No matching operations.",
        keep=("id", "action", "state", "done"),
    )


@derive(
    operation_commands,
    "show",
    AnyTenant,
    Operations.get,
    "holdfast operations show 01a1de74-eb8c-70f1-843b-cac5f6817387",
)
@derive(
    operation_commands, "cancel", AnyTenant, Operations.cancel, "holdfast operations cancel ID --reason 'too early'"
)
def print_operation(session: AnyTenant, result: Operation) -> None:
    _print_operation(result, session.as_json)


@derive(
    operation_commands,
    "wait",
    AnyTenant,
    Operations.wait,
    "holdfast operations wait ID --timeout 10m",
    without=("watch",),
)
def wait(session: AnyTenant, inputs: dict[str, Any]) -> None:
    """Wait until an operation has finished and show its progress. Exit 1 if it was cancelled."""
    with session.connect() as client:
        result = Operations(client).wait(**inputs, watch=None if session.as_json else _watch())
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


SHOWN = 10


@derive(
    commands,
    "list",
    AnyTenant,
    DeadLetters.groups,
    "holdfast dead-letters list --sort count",
    "holdfast dead-letters list --since 1d --json",
)
def list_groups(session: AnyTenant, inputs: dict[str, Any]) -> None:
    limit = inputs["limit"]
    with session.connect() as client:
        now = client.run(client.store.clock.now())
        groups = letters_of(client).groups(**inputs | {"limit": min(limit + 1, 1000)})
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
        none="No matching dead letters.",
        keep=("group", "open", "times", "last seen"),
    )
    if more:
        say(f"There are more: --after {page[-1].cursor}")


@derive(commands, "show", AnyTenant, DeadLetters.group, "holdfast dead-letters show 3f2a9c0b1d4e5f60")
def show(session: AnyTenant, inputs: dict[str, Any]) -> None:
    """Show a group: error, location, count, first and last failure, and its newest jobs."""
    with session.connect() as client:
        letters = letters_of(client)
        result = letters.group(**inputs)
        jobs = letters.jobs(**inputs, limit=SHOWN)
    if session.as_json:
        emit({"group": result, "jobs": jobs})
        return
    _print(result)
    if jobs:
        heading("Jobs" if result.open <= SHOWN else f"The newest {SHOWN} of {result.open:,} jobs")
        rows = [[job.id, str(job.attempt), moment(job.created_at), line(job.error_message or "", 80)] for job in jobs]
        table(("id", "try", "enqueued", "error"), rows, keep=("id", "try", "enqueued"))


@derive(commands, "note", AnyTenant, DeadLetters.note, "holdfast dead-letters note 3f2a9c0b1d4e5f60 'the bank is down'")
def note(session: AnyTenant, inputs: dict[str, Any]) -> None:
    with session.connect() as client:
        result = letters_of(client).note(inputs["group"], inputs["note"] or None)
    if session.as_json:
        emit(result)
    else:
        _print(result)


@derive(
    commands,
    "redrive",
    AnyTenant,
    DeadLetters.redrive,
    "holdfast dead-letters redrive 3f2a9c0b1d4e5f60 --rate 20",
    "holdfast dead-letters redrive --kind pay --since 1d --reason 'the bank is back' --wait",
    without=tuple(BY_NAME),
)
def redrive(
    session: AnyTenant,
    inputs: dict[str, Any],
    *,
    which: JobFilterOptions,
    everything: All = False,
    wait: Wait = False,
) -> None:
    """Redrive the dead letters of a group, or all that match, back into their queues.

    A bulk operation, done by the workers; --wait does it here.
    """
    _resolve(session, DeadLetters.redrive, inputs, which, everything, wait)


@derive(
    commands,
    "discard",
    AnyTenant,
    DeadLetters.discard,
    "holdfast dead-letters discard 3f2a9c0b1d4e5f60 --reason 'no longer needed'",
    "holdfast dead-letters discard --all --until 90d --reason 'too old'",
    without=tuple(BY_NAME),
)
def discard(
    session: AnyTenant,
    inputs: dict[str, Any],
    *,
    which: JobFilterOptions,
    everything: All = False,
    wait: Wait = False,
) -> None:
    """Discard the dead letters of a group, or all that match.

    A bulk operation, done by the workers; --wait does it here.
    """
    _resolve(session, DeadLetters.discard, inputs, which, everything, wait)


def _resolve(
    session: AnyTenant,
    form: operation[..., Operation],
    inputs: dict[str, Any],
    which: JobFilterOptions,
    everything: bool,
    wait: bool,
) -> None:
    with session.connect() as client:
        selection = _selection(client, which, _everything(inputs.get("group"), everything))
        started = getattr(letters_of(client), form.program.__name__)(**inputs, **selection)
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

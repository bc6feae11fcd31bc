"""``holdfast dead-letters list | show | note | redrive | discard``: what failed for good, in groups.

One job by its id is redriven and discarded by ``holdfast jobs``; here it is a group, or all that match.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from holdfast.cli import options
from holdfast.cli.operate import MaxAttempts, letters_of
from holdfast.cli.operations import All, Rate, Wait, begun, chosen
from holdfast.cli.output import emit, facts, heading, line, say, table, write
from holdfast.cli.session import AnyTenant
from holdfast.cli.tree import Commands
from holdfast.cli.which import Kind, Queue, Which
from holdfast.cli.words import age, moment, since
from holdfast.errors import InvalidSetting, NotFound
from holdfast.features.dead_letters.model import DeadLetterGroup

commands = Commands("What failed for good, in groups: look, redrive, discard.")


class Sort(StrEnum):
    LAST = "last"
    COUNT = "count"


Group = Annotated[str, typer.Argument(metavar="GROUP", help="A group's name, as `dead-letters list` shows it.")]
SomeGroup = Annotated[
    str | None, typer.Argument(metavar="[GROUP]", help="A group's name; without one the options say which.")
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
        str | None, typer.Option("--text", metavar="TEXT", help="With this in its error, its place or its note.")
    ] = None,
    newer: Annotated[str | None, typer.Option("--since", metavar="TIME", help="Seen since: 1h, or a time.")] = None,
    sort: Annotated[
        Sort, typer.Option("--sort", metavar="ORDER", help="last: seen last first; count: the largest first.")
    ] = Sort.LAST,
    resolved: Annotated[bool, typer.Option("--resolved", help="Also those in which nothing is open.")] = False,
    limit: options.Limit = 50,
    after: Annotated[
        str | None, typer.Option("--after", metavar="CURSOR", help="The next page: what the last one has said.")
    ] = None,
) -> None:
    """List dead letters in groups that failed for the same reason."""
    with session.connect() as client:
        now = client.run(client.verbs.now())
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
    """Show a group: what failed where, how often, since when, and the newest of its jobs."""
    with session.connect() as client:
        letters = letters_of(client)
        found = letters.group(group)
        if found is None:
            raise NotFound(f"there is no group of dead letters {group} in this tenant", code="group_not_found")
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
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What is known about it; '' takes it away.")],
) -> None:
    """Write down what is known about a group; it stays while more of them come."""
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
    """Put the dead letters of a group, or all that match, back into their queues.

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
    """Give the dead letters of a group, or all that match, up for good.

    A bulk operation, done by the workers; --wait does it here.
    """
    with session.connect() as client:
        wanted = chosen(client, which, _everything(group, everything))
        begun(client, letters_of(client).discard(group, reason=reason, rate=rate, **wanted), wait, session.as_json)  # type: ignore[misc]


def _everything(group: str | None, everything: bool) -> bool:
    """A group says which; to say all besides could mean two things."""
    if group is not None and everything:
        raise InvalidSetting("give a group or --all, not both", code="conflicting_options")
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

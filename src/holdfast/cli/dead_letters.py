"""``holdfast dead-letters list | show | note | redrive | discard``: what failed for good, in groups.

One job by its id is redriven and discarded by ``holdfast jobs``; here it is a group, or all that match.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from holdfast.cli import options
from holdfast.cli.operate import MaxAttempts, letters_of
from holdfast.cli.operations import Agent, All, Kind, Queue, Rate, Since, Tag, Until, Wait, begun, chosen
from holdfast.cli.output import Cell, emit, facts, heading, line, say, table, write
from holdfast.cli.session import connect, scope
from holdfast.cli.words import moment, since, span
from holdfast.domain.dead_letters import DeadLetterGroup
from holdfast.domain.errors import InvalidSetting, NotFound


class Sort(StrEnum):
    LAST = "last"
    COUNT = "count"


Group = Annotated[str, typer.Argument(metavar="GROUP", help="A group's name, as `dead-letters list` shows it.")]
SomeGroup = Annotated[
    str | None, typer.Argument(metavar="[GROUP]", help="A group's name; without one the options say which.")
]
SHOWN = 10


def list_groups(
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
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """List dead letters in groups that failed for the same reason."""
    with connect(url, scope(tenant, all_tenants), schema) as client:
        now = client.run(client.verbs.now())
        given: dict[str, Any] = {"kind": kind, "queue": queue, "text": text, "after": after}
        given["since"] = since(newer, "--since", lambda: now)
        wanted = {name: value for name, value in given.items() if value is not None}
        most = min(limit + 1, 1000)
        groups = letters_of(client).groups(order=sort.value, resolved=resolved, limit=most, **wanted)
    found, more = groups[:limit], len(groups) > limit
    if as_json:
        emit(found)
    elif not found:
        say("There are no such dead letters.")
    else:
        rows: list[list[Cell]] = [
            [
                each.fingerprint,
                line(each.kind),
                f"{each.open:,}",
                f"{each.times:,}",
                span(max(0.0, (now - each.last_at).total_seconds())),
                line(f"{each.error_code}: {each.error_message}", 80),
                line(each.note or "", 60),
            ]
            for each in found
        ]
        headers = ("group", "kind", "open", "times", "last seen", "error", "note")
        table(headers, rows, keep=("group", "open", "times", "last seen"))
    if more:
        say(f"There are more: --after {found[-1].cursor}")


def show(
    group: Group,
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Show a group: what failed where, how often, since when, and the newest of its jobs."""
    with connect(url, scope(tenant, all_tenants), schema) as client:
        letters = letters_of(client)
        found = letters.group(group)
        if found is None:
            raise NotFound(f"there is no group of dead letters {group} in this tenant", code="group_not_found")
        jobs = letters.jobs(group, limit=SHOWN)
    if as_json:
        emit({"group": found, "jobs": jobs})
        return
    _print(found)
    if jobs:
        heading("Jobs" if found.open <= SHOWN else f"The newest {SHOWN} of {found.open:,} jobs")
        rows = [
            [each.id, str(each.attempt), moment(each.created_at), line(each.error_message or "", 80)] for each in jobs
        ]
        table(("id", "try", "enqueued", "error"), rows, keep=("id", "try", "enqueued"))


def note(
    group: Group,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What is known about it; '' takes it away.")],
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Write down what is known about a group; it stays while more of them come."""
    with connect(url, scope(tenant, all_tenants), schema) as client:
        found = letters_of(client).note(group, text or None)
    if as_json:
        emit(found)
    else:
        _print(found)


def redrive(
    group: SomeGroup = None,
    kind: Kind = None,
    queue: Queue = None,
    agent: Agent = None,
    tag: Tag = None,
    newer: Since = None,
    older: Until = None,
    everything: All = False,
    rate: Rate = None,
    max_attempts: MaxAttempts = None,
    reason: options.Reason = None,
    wait: Wait = False,
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Put the dead letters of a group, or all that match, back into their queues.

    A bulk operation, done by the workers; --wait does it here.
    """
    with connect(url, scope(tenant, all_tenants), schema) as client:
        given = {"kind": kind, "queue": queue, "agent": agent, "tag": tag}
        wanted = chosen(client, given, newer, older, _everything(group, everything))
        letters = letters_of(client)
        how: dict[str, Any] = {"reason": reason, "rate": rate, "max_attempts": max_attempts}
        begun(client, letters.redrive(group, **how, **wanted), wait, as_json)  # type: ignore[misc]


def discard(
    group: SomeGroup = None,
    *,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept in the ledger.")],
    kind: Kind = None,
    queue: Queue = None,
    agent: Agent = None,
    tag: Tag = None,
    newer: Since = None,
    older: Until = None,
    everything: All = False,
    rate: Rate = None,
    wait: Wait = False,
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Give the dead letters of a group, or all that match, up for good.

    A bulk operation, done by the workers; --wait does it here.
    """
    with connect(url, scope(tenant, all_tenants), schema) as client:
        given = {"kind": kind, "queue": queue, "agent": agent, "tag": tag}
        wanted = chosen(client, given, newer, older, _everything(group, everything))
        begun(client, letters_of(client).discard(group, reason=reason, rate=rate, **wanted), wait, as_json)  # type: ignore[misc]


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

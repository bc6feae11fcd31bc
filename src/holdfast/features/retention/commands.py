"""``holdfast retention`` and ``holdfast usage``."""

from __future__ import annotations

import csv
import dataclasses
import sys
from typing import Annotated

import typer

from holdfast import config
from holdfast.cli import options
from holdfast.cli.output import Cell, duration, emit, line, moment, say, span, table
from holdfast.cli.session import AnyTenant
from holdfast.cli.tree import Commands
from holdfast.features.retention.model import COUNTS, PREVIEWED, Preview, Retention, Usage, check_groups
from holdfast.features.retention.operations import RetentionPolicies, UsageReport
from holdfast.stores.artifacts import open_artifacts

commands = Commands("Configure how long finished jobs are kept.")

Kind = Annotated[str | None, typer.Option("--kind", metavar="NAME", help="Only jobs of this kind.")]
State = Annotated[
    str | None,
    typer.Option(
        "--state",
        metavar="STATE",
        help="Only jobs that ended as: succeeded, failed, cancelled, dead_letter; default: all but dead letters.",
    ),
]


@commands.add("list", "holdfast retention list --all-tenants")
def list_policies(session: AnyTenant) -> None:
    """List the policies. For a job, the most specific one applies: first by tenant, then kind, then state."""
    with session.connect() as client:
        policies = RetentionPolicies(client).list()
    if session.as_json:
        emit(policies)
    elif not policies:
        say("There is no policy: finished jobs are kept for ever.")
    else:
        _print(policies)


@commands.add(
    "set",
    "holdfast retention set --clean-after 30d --purge-after 52w",
    "holdfast retention set --kind heartbeat --purge-after 1d",
    "holdfast retention set --kind invoice --for-ever",
    "holdfast retention set --state dead_letter --purge-after 26w --all-tenants",
)
def set_policy(
    session: AnyTenant,
    clean_after: Annotated[
        str | None,
        typer.Option(
            "--clean-after",
            metavar="SPAN",
            help="Remove payload, result, checkpoint and logs; tombstone and ledger stay.",
        ),
    ] = None,
    purge_after: Annotated[
        str | None, typer.Option("--purge-after", metavar="SPAN", help="Remove the job together with its ledger.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--for-ever", help="Keep these jobs forever, whatever a wider policy says.")
    ] = False,
    archive: Annotated[
        bool, typer.Option("--archive", help='Keep jobs until they are archived ("holdfast archives").')
    ] = False,
    kind: Kind = None,
    state: State = None,
) -> None:
    """Set how long jobs are kept after their end: 12h, 30d, 52w. Replaces the policy with the same selection."""
    ages = (clean_after, purge_after)
    if keep == any(age is not None for age in ages):
        raise typer.BadParameter("give --clean-after, --purge-after, or both; or --for-ever")
    clean, purge = (None if age is None else duration(age, "age") for age in ages)
    with session.connect() as client:
        policy = RetentionPolicies(client).set(
            kind=kind, state=state, clean_after=clean, purge_after=purge, archive=archive
        )
    if session.as_json:
        emit(policy)
    else:
        _print([policy])


@commands.add("delete", "holdfast retention delete --kind heartbeat")
def delete(session: AnyTenant, kind: Kind = None, state: State = None) -> None:
    """Remove a policy. The next wider one applies; without any, jobs are kept forever."""
    with session.connect() as client:
        RetentionPolicies(client).remove(kind=kind, state=state)
    session.answer({"removed": True}, "Removed.")


@commands.add("preview", "holdfast retention preview")
def preview(session: AnyTenant) -> None:
    """Show what each policy would remove now, and which consumers delay a purge. Changes nothing."""
    with session.connect() as client:
        previews = RetentionPolicies(client).preview()
    if session.as_json:
        emit(previews)
        return
    if not previews:
        say("There is no policy: finished jobs are kept for ever.")
        return
    rows: list[list[Cell]] = [
        [
            line(entry.tenant),
            line(entry.kind),
            entry.state,
            entry.action,
            due_text(entry),
            "" if entry.oldest_at is None else moment(entry.oldest_at),
            "" if entry.held_by is None else f"{entry.held:,} by {line(entry.held_by)}",
        ]
        for entry in previews
    ]
    table(["tenant", "kind", "state", "what", "due", "oldest end", "held back"], rows, keep=("kind", "what", "due"))


@commands.add("run", "holdfast retention run --all-tenants --limit 1000000")
def run(
    session: AnyTenant,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=100_000_000, help="Stop after this many jobs.")
    ] = 100_000,
) -> None:
    """Remove everything that is due now, without the pauses that workers take between batches."""
    with session.connect() as client:
        artifacts = open_artifacts(config.artifact_location(config.database_url(session.url)))
        policies = RetentionPolicies(client, artifacts)
        done = policies.sweep(limit=limit)
        held = [] if session.as_json else [entry for entry in policies.preview() if entry.held_by is not None]
    session.answer(
        done,
        f"{done['clean']:,} cleaned, {done['purge']:,} purged, {done['prune']:,} rows of bookkeeping pruned,"
        f" {done['delete']:,} deleted in the artifact store.",
    )
    for entry in held:
        say(f"{entry.held:,} held back by {line(entry.held_by)}; a later run purges them.")


@commands.add("orphans", "holdfast retention orphans --all-tenants")
def orphans(session: AnyTenant) -> None:
    """Find orphaned files in the artifact store: older than a week, and of no job or a cleaned one. Workers, or
    "run", delete them. Only this database may use the store."""
    with session.connect() as client:
        artifacts = open_artifacts(config.artifact_location(config.database_url(session.url)))
        count = RetentionPolicies(client, artifacts).remove_orphans()
    session.answer({"found": count}, f"{count:,} orphaned files found.")


def due_text(entry: Preview) -> str:
    """A preview reads a limited number of jobs, so its count may be too low."""
    if not entry.capped:
        return f"{entry.due:,}"
    return f"{entry.due:,}+" if entry.due else f"0 of the first {PREVIEWED:,}"


def _print(policies: list[Retention]) -> None:
    rows: list[list[Cell]] = [
        [
            line(policy.tenant),
            line(policy.kind),
            policy.state,
            "never" if policy.clean_after is None else span(policy.clean_after),
            "never" if policy.purge_after is None else span(policy.purge_after),
            "yes" if policy.archive else "no",
            f"{line(policy.set_by)}{' (declared)' if policy.declared else ''}",
        ]
        for policy in policies
    ]
    table(["tenant", "kind", "state", "clean after", "purge after", "archive", "set by"], rows, keep=("kind", "state"))


_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
_HIDDEN = ("crashed", "cancelled", "expired")


def usage(
    session: AnyTenant,
    by: Annotated[
        str, typer.Option("--by", metavar="A,B", help="Group by tenant, kind, day; an empty text gives one total.")
    ] = "kind,day",
    since: Annotated[
        str | None, typer.Option("--since", metavar="DAY", help="First day (UTC): 2027-01-31, or 30d for 30 days ago.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="DAY", help="Last day, inclusive.")] = None,
    kind: Annotated[str | None, typer.Option("--kind", metavar="NAME", help="Only jobs of this kind.")] = None,
    count: Annotated[
        bool, typer.Option("--count/--no-count", help="Update the counts first, or show the stored ones.")
    ] = True,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, with times in seconds.")] = False,
) -> None:
    """Show usage: jobs, attempts, run time, wait time and cost. Usage stays after jobs are purged."""
    if as_csv and session.as_json:
        raise typer.BadParameter("give --csv or --json, not both")
    groups = check_groups(options.listed(by))
    with session.connect() as client:
        rows = UsageReport(client).list(by=groups, since=_day(since), until=_day(until), kind=kind, count=count)
    if session.as_json:
        emit(rows)
    elif as_csv:
        _write_csv(rows)
    elif not rows:
        say("Nothing was counted.")
    else:
        _print_usage(rows, groups)


def _day(text: str | None) -> str | int | None:
    """``30d`` is 30 days ago."""
    return int(text[:-1]) if text is not None and text[-1:] == "d" and text[:-1].isdecimal() else text


def _write_csv(rows: list[Usage]) -> None:
    names = [field.name for field in dataclasses.fields(Usage)]
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(names)
    for row in rows:
        out.writerow([_safe(getattr(row, name)) for name in names])


def _safe(value: object) -> object:
    """Quote a name that a spreadsheet would treat as a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULAS) else value


def _print_usage(sums: list[Usage], groups: tuple[str, ...]) -> None:
    counts = [name for name in COUNTS if name not in _HIDDEN or any(getattr(entry, name) for entry in sums)]
    rows: list[list[Cell]] = [
        [
            *(line(getattr(entry, group)) for group in groups),
            *(f"{getattr(entry, name):,}" for name in counts),
            span(entry.run_time),
            span(entry.wait_time),
            f"{entry.cost:,.6f}".rstrip("0").rstrip("."),
        ]
        for entry in sums
    ]
    headers = [*groups, *counts, "run time", "wait time", "cost"]
    table(headers, rows, keep=(*groups, "succeeded", "run time", "cost"))

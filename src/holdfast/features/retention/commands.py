"""``holdfast retention`` and ``holdfast usage``."""

from __future__ import annotations

import csv
import dataclasses
import sys
from typing import Annotated, Any

import typer

from holdfast.cli import options
from holdfast.cli.derived import derive, derived_command
from holdfast.cli.output import Cell, emit, line, moment, say, span, table
from holdfast.cli.session import AnyTenant, Columns, WithArtifacts
from holdfast.cli.tree import Commands
from holdfast.engine.declared import Help
from holdfast.features.retention.model import COUNTS, PREVIEWED, Preview, Retention, Usage, check_groups
from holdfast.features.retention.operations import RetentionPolicies, UsageReport

commands = Commands("Configure how long finished jobs are kept.")

_NO_POLICY = "No policies: finished jobs are kept for ever."


@derive(commands, "list", AnyTenant, RetentionPolicies.list, "holdfast retention list --all-tenants")
def list_policies(session: AnyTenant, result: list[Retention]) -> None:
    session.print_list(result, COLUMNS, none=_NO_POLICY, keep=("kind", "state"))


@derive(
    commands,
    "set",
    AnyTenant,
    RetentionPolicies.set,
    "holdfast retention set --clean-after 30d --purge-after 52w",
    "holdfast retention set --kind heartbeat --purge-after 1d",
    "holdfast retention set --kind invoice --for-ever",
    "holdfast retention set --state dead_letter --purge-after 26w --all-tenants",
)
def set_policy(
    session: AnyTenant,
    inputs: Any,
    keep: Annotated[bool, Help("Keep these jobs forever, whatever a wider policy says.", option="--for-ever")] = False,
) -> None:
    """Set how long jobs are kept after their end: 12h, 30d, 52w. Replaces the policy with the same selection."""
    if keep == bool(inputs.keys() & {"clean_after", "purge_after"}):
        raise typer.BadParameter("give --clean-after, --purge-after, or both; or --for-ever")
    with session.connect() as client:
        policy = RetentionPolicies(client).set(**inputs)
    if session.as_json:
        emit(policy)
    else:
        session.print_list([policy], COLUMNS, none=_NO_POLICY, keep=("kind", "state"))


@derive(commands, "remove", AnyTenant, RetentionPolicies.remove, "holdfast retention remove --kind heartbeat")
def print_removed(session: AnyTenant, result: None) -> None:
    session.answer({"removed": True}, "Removed.")


@derive(commands, "preview", AnyTenant, RetentionPolicies.preview, "holdfast retention preview")
def preview(session: AnyTenant, result: list[Preview]) -> None:
    session.print_list(
        result,
        {
            "tenant": lambda entry: line(entry.tenant),
            "kind": lambda entry: line(entry.kind),
            "state": lambda entry: entry.state,
            "what": lambda entry: entry.action,
            "due": due_text,
            "oldest end": lambda entry: "" if entry.oldest_at is None else moment(entry.oldest_at),
            "held back": lambda entry: "" if entry.held_by is None else f"{entry.held:,} by {line(entry.held_by)}",
        },
        none=_NO_POLICY,
        keep=("kind", "what", "due"),
    )


@derive(
    commands,
    "sweep",
    WithArtifacts,
    RetentionPolicies.sweep,
    "holdfast retention sweep --all-tenants --limit 1000000",
)
def sweep(session: AnyTenant, result: dict[str, int], namespace: RetentionPolicies) -> None:
    session.answer(
        result,
        f"{result['clean']:,} cleaned, {result['purge']:,} purged, {result['prune']:,} rows of bookkeeping pruned,"
        f" {result['delete']:,} deleted in the artifact store.",
    )
    for entry in [] if session.as_json else namespace.preview():
        if entry.held_by is not None:
            say(f"{entry.held:,} held back by {line(entry.held_by)}; a later sweep purges them.")


@derive(
    commands,
    "remove-orphans",
    WithArtifacts,
    RetentionPolicies.remove_orphans,
    "holdfast retention remove-orphans --all-tenants",
)
def orphans(session: AnyTenant, result: int) -> None:
    session.answer({"found": result}, f"{result:,} orphaned files found.")


def due_text(entry: Preview) -> str:
    """A preview reads a limited number of jobs, so its count may be too low."""
    if not entry.capped:
        return f"{entry.due:,}"
    return f"{entry.due:,}+" if entry.due else f"0 of the first {PREVIEWED:,}"


COLUMNS: Columns[Retention] = {
    "tenant": lambda policy: line(policy.tenant),
    "kind": lambda policy: line(policy.kind),
    "state": lambda policy: policy.state,
    "clean after": lambda policy: "never" if policy.clean_after is None else span(policy.clean_after),
    "purge after": lambda policy: "never" if policy.purge_after is None else span(policy.purge_after),
    "archive": lambda policy: "yes" if policy.archive else "no",
    "set by": lambda policy: f"{line(policy.set_by)}{' (declared)' if policy.declared else ''}",
}


_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
_HIDDEN = ("crashed", "cancelled", "expired")


@derived_command(AnyTenant, UsageReport.list)
def usage(
    session: AnyTenant,
    inputs: Any,
    by: Annotated[str, Help("Group by tenant, kind, day; an empty text gives one total.", "A,B")] = "kind,day",
    as_csv: Annotated[bool, Help("Print CSV, with times in seconds.", option="--csv")] = False,
) -> None:
    """Show usage: jobs, attempts, run time, wait time and cost. Usage stays after jobs are purged."""
    if as_csv and session.as_json:
        raise typer.BadParameter("give --csv or --json, not both")
    groups = check_groups(options.listed(by))
    with session.connect() as client:
        rows = UsageReport(client).list(by=groups, **inputs)
    if session.as_json:
        emit(rows)
    elif as_csv:
        _write_csv(rows)
    elif not rows:
        say("No usage.")
    else:
        _print_usage(rows, groups)


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

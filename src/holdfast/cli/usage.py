"""``holdfast usage``: what ran, for how long and at what cost, by tenant, kind and day."""

from __future__ import annotations

import csv
import dataclasses
import sys
from typing import Annotated

import typer

from holdfast.cli import options
from holdfast.cli.output import Cell, emit, line, say, table
from holdfast.cli.session import AnyTenant
from holdfast.cli.words import span
from holdfast.features.retention.model import COUNTS, Usage, check_groups
from holdfast.features.retention.operations import Metering

_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
_HIDDEN = ("crashed", "cancelled", "expired")


def usage(
    session: AnyTenant,
    by: Annotated[
        str, typer.Option("--by", metavar="A,B", help="Any of tenant, kind, day; an empty text for one sum.")
    ] = "kind,day",
    since: Annotated[
        str | None, typer.Option("--since", metavar="DAY", help="From this day on (UTC): 2027-01-31, or 30d ago.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="DAY", help="Up to this day, which counts.")] = None,
    kind: Annotated[str | None, typer.Option("--kind", metavar="NAME", help="Only the jobs of a kind.")] = None,
    count: Annotated[
        bool, typer.Option("--count/--no-count", help="Count first what happened since; or show what was counted.")
    ] = True,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values, times in seconds.")] = False,
) -> None:
    """Show what was used: jobs, attempts, run time, wait time and cost. It outlives the jobs that are purged."""
    if as_csv and session.as_json:
        raise typer.BadParameter("give --csv or --json, not both")
    groups = check_groups(options.listed(by))
    with session.connect() as client:
        meter = Metering(client)
        found = meter(by=groups, since=_day(since), until=_day(until), kind=kind, count=count)
    if session.as_json:
        emit(found)
    elif as_csv:
        _write_csv(found)
    elif not found:
        say("Nothing was counted.")
    else:
        _print(found, groups)


def _day(text: str | None) -> str | int | None:
    """``30d`` is so many days ago."""
    return int(text[:-1]) if text is not None and text[-1:] == "d" and text[:-1].isdecimal() else text


def _write_csv(found: list[Usage]) -> None:
    names = [field.name for field in dataclasses.fields(Usage)]
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(names)
    for each in found:
        out.writerow([_safe(getattr(each, name)) for name in names])


def _safe(value: object) -> object:
    """A name that a spreadsheet would take for a formula is quoted."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULAS) else value


def _print(found: list[Usage], groups: tuple[str, ...]) -> None:
    counts = [name for name in COUNTS if name not in _HIDDEN or any(getattr(each, name) for each in found)]
    rows: list[list[Cell]] = [
        [
            *(line(getattr(each, group)) for group in groups),
            *(f"{getattr(each, name):,}" for name in counts),
            span(each.run_time),
            span(each.wait_time),
            f"{each.cost:,.6f}".rstrip("0").rstrip("."),
        ]
        for each in found
    ]
    headers = [*groups, *counts, "run time", "wait time", "cost"]
    table(headers, rows, keep=(*groups, "succeeded", "run time", "cost"))

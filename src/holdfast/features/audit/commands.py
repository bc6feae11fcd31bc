"""``holdfast audit verify | show | actions | export | anchor | seal``: the sealed ledger."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import options
from holdfast.cli.failures import FAILED
from holdfast.cli.output import Cell, emit, line, moment, print_fields, say, since, table, write
from holdfast.cli.session import AnyTenant, NoTenant, full_id
from holdfast.cli.tree import Commands
from holdfast.engine.job import EVERY_TENANT
from holdfast.errors import InvalidSetting, NotFound
from holdfast.features.audit.operations import Audit, Progress, verify_file
from holdfast.features.audit.verification import Report
from holdfast.features.jobs.timeline import short_actor, transition

commands = Commands("Verify, show and export the sealed ledger.")

PROGRESS_INTERVAL = 2.0  # seconds


@commands.add(
    "verify",
    "holdfast audit verify",
    'holdfast audit verify --from 1200 --anchor "$(tail -1 anchors.txt)"',
    "holdfast audit verify --file trail.jsonl",
)
def verify(
    session: NoTenant,
    begin: Annotated[int, typer.Option("--from", metavar="SEAL", min=1, help="Start at this seal.")] = 1,
    anchors: Annotated[
        list[str] | None,
        typer.Option("--anchor", metavar="ANCHOR", help="An anchor printed by `audit anchor`; repeatable."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Check an exported file, without a database.")
    ] = None,
) -> None:
    """Verify the whole chain and report edited, deleted, inserted, moved or truncated events. Exit 1 if there are
    any.

    Without an anchor stored elsewhere, a chain that its owner truncated or rebuilt looks complete.
    """
    if file is not None:
        if begin != 1 or session.url is not None:
            raise InvalidSetting(
                "--file checks a whole file without a database; omit the other options", code="conflicting_options"
            )
        if not file.is_file():
            raise NotFound(f"file {file} not found", code="no_file")
        report = verify_file(file, anchors or (), _progress())
    else:
        with session.connect(EVERY_TENANT) as client:
            report = Audit(client).verify(anchors=anchors or (), begin=begin, progress=_progress())
    if session.as_json:
        emit(report)
    else:
        _print(report)
    if not report.ok:
        raise typer.Exit(FAILED)


@commands.add("show", "holdfast audit show 01a1de74-eb8c-70f1-843b-cac5f6817387")
def show(session: AnyTenant, job_id: options.JobId) -> None:
    """Show a job's events with their seals and check each one. Exit 1 if an event was changed."""
    with session.connect() as client:
        entries = Audit(client).get(full_id(client, job_id))
    if session.as_json:
        emit(entries)
    else:
        rows: list[list[Cell]] = [
            [
                str(entry.event.seq),
                moment(entry.event.at),
                entry.event.type,
                transition(entry.event),
                short_actor(entry.event.actor),
                entry.state,
                "" if entry.seal is None else str(entry.seal),
                "" if entry.digest is None else entry.digest[:16],
            ]
            for entry in entries
        ]
        headers = ["event", "time (UTC)", "type", "from → to", "by", "is", "seal", "digest"]
        table(headers, rows, keep=headers[:4])
    if any(entry.state == "edited" for entry in entries):
        raise typer.Exit(FAILED)


@commands.add("actions", "holdfast audit actions --subject limit --since 7d")
def actions(
    session: AnyTenant,
    subject: Annotated[
        str | None,
        typer.Option(
            "--subject", metavar="WORD", help="Only changes of this subject: limit, agent, schedule, executor, …."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Only changes of the object with this name.")
    ] = None,
    actor: Annotated[str | None, typer.Option("--actor", metavar="NAME", help="Only changes by this actor.")] = None,
    since_: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME|SPAN", help="Start time: an ISO 8601 time, or 7d for a week ago."),
    ] = None,
    limit: options.Limit = 50,
) -> None:
    """List configuration changes, newest first: who changed what, and when."""
    with session.connect() as client:
        earliest = since(since_, "--since", lambda: client.run(client.store.clock.now()))
        changes = Audit(client).actions(subject=subject, name=name, actor=actor, since=earliest, limit=limit)
    session.print_list(
        changes,
        {
            "time (UTC)": lambda action: moment(action.at),
            "by": lambda action: line(action.actor, 60),
            "did": lambda action: action.type,
            "to": lambda action: action.subject,
            "named": lambda action: line(action.name, 80),
            "what changed": lambda action: (
                "" if action.changed is None else line(json.dumps(action.changed, ensure_ascii=False), 120)
            ),
        },
        none="Nothing was done.",
        keep=["time (UTC)", "did", "to"],
    )


@commands.add("export", "holdfast audit export --since 30d --to trail.jsonl")
def export(
    session: NoTenant,
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="Output file; must not exist yet.")],
    since_: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME|SPAN", help="Only what was sealed since this time; default: everything."),
    ] = None,
) -> None:
    """Export events, actions and seals to a JSON lines file that `audit verify --file` can check."""
    if to.exists():
        raise InvalidSetting(f"{to} already exists", code="file_exists", fix="Choose another file, or remove this one.")
    with session.connect(EVERY_TENANT) as client:
        earliest = since(since_, "--since", lambda: client.run(client.store.clock.now()))
        count = Audit(client).export(to, since=earliest, progress=_progress())
    session.answer({"file": str(to), "seals": count}, f"{count:,} seals written to {to}.")


@commands.add("anchor", "holdfast audit anchor >> anchors.txt")
def anchor(session: NoTenant) -> None:
    """Print the newest seal as one line. Store it where the database owner cannot change it."""
    with session.connect(EVERY_TENANT) as client:
        newest = Audit(client).anchor()
    if session.as_json:
        emit({"number": newest.number, "digest": newest.digest, "anchor": str(newest)})
    else:
        write(str(newest))


@commands.add("seal", "holdfast audit seal")
def seal(session: NoTenant) -> None:
    """Seal all events now. Workers do this every few seconds."""
    with session.connect(EVERY_TENANT) as client:
        count = Audit(client).seal()
    session.answer({"sealed": count}, f"{count:,} events and actions sealed.")


def _progress() -> Progress:
    last = time.monotonic()

    def report(seals: int, events: int) -> None:
        nonlocal last
        if time.monotonic() - last > PROGRESS_INTERVAL:
            last = time.monotonic()
            say(f"{seals:,} seals, {events:,} events …")

    return report


def _print(report: Report) -> None:
    for flaw in report.flaws:
        write(line(flaw.says, 400))
    if report.more:
        write(f"… and {report.more:,} more")
    print_fields(
        [
            ("verdict", "whole" if report.ok else "NOT WHOLE"),
            ("seals", f"{report.seals:,}"),
            ("events", f"{report.events:,}"),
            ("actions", f"{report.actions:,}"),
            ("purged", f"{report.purged:,} by retention, as recorded in the trail" if report.purged else None),
            ("unsealed", f"{report.unsealed:,} waiting to be sealed" if report.unsealed else None),
            ("newest", report.newest),
        ]
    )

"""``holdfast audit verify | show | actions | export | anchor | seal``: the sealed ledger."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import options
from holdfast.cli.failures import FAILED
from holdfast.cli.output import Cell, emit, facts, line, moment, say, since, table, write
from holdfast.cli.session import AnyTenant, NoTenant
from holdfast.cli.tree import Commands
from holdfast.engine.job import EVERY_TENANT
from holdfast.errors import InvalidSetting, NotFound
from holdfast.features.audit.operations import Audit, Progress, verify_file
from holdfast.features.audit.verification import Report
from holdfast.features.jobs.timeline import short, way

commands = Commands("The sealed ledger: check it, show it, take it elsewhere.")

PAUSE = 2.0  # seconds between two words about the progress


@commands.add(
    "verify",
    "holdfast audit verify",
    'holdfast audit verify --from 1200 --anchor "$(tail -1 anchors.txt)"',
    "holdfast audit verify --file trail.jsonl",
)
def verify(
    session: NoTenant,
    begin: Annotated[int, typer.Option("--from", metavar="SEAL", min=1, help="Begin with this seal.")] = 1,
    anchors: Annotated[
        list[str] | None,
        typer.Option("--anchor", metavar="ANCHOR", help="What `audit anchor` printed; can be given several times."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Check an exported file, without a database.")
    ] = None,
) -> None:
    """Check the whole chain, and name what was edited, deleted, inserted, moved or cut off: then it exits with 1.

    Without an anchor that was kept elsewhere, a chain that its owner cut off or made anew looks whole.
    """
    if file is not None:
        if begin != 1 or session.url is not None:
            raise InvalidSetting("--file is checked as a whole, without a database", code="conflicting_options")
        if not file.is_file():
            raise NotFound(f"there is no file {file}", code="no_file")
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
    """Show the events of a job, each with its seal and whether it is still what was sealed: if not, it exits with 1."""
    with session.connect() as client:
        found = Audit(client).get(job_id)
    if session.as_json:
        emit(found)
    else:
        rows: list[list[Cell]] = [
            [
                str(each.event.seq),
                moment(each.event.at),
                each.event.verb,
                way(each.event),
                short(each.event.actor),
                each.state,
                "" if each.seal is None else str(each.seal),
                "" if each.digest is None else each.digest[:16],
            ]
            for each in found
        ]
        headers = ["event", "time (UTC)", "verb", "from → to", "by", "is", "seal", "digest"]
        table(headers, rows, keep=headers[:4])
    if any(each.state == "edited" for each in found):
        raise typer.Exit(FAILED)


@commands.add("actions", "holdfast audit actions --subject limit --since 7d")
def actions(
    session: AnyTenant,
    subject: Annotated[
        str | None, typer.Option("--subject", metavar="WORD", help="Only of these: limit, agent, schedule, executor, …")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Only of what has this name.")] = None,
    actor: Annotated[str | None, typer.Option("--actor", metavar="NAME", help="Only what they did.")] = None,
    since_: Annotated[
        str | None, typer.Option("--since", metavar="TIME|SPAN", help="From then on: a time, or 7d for a week ago.")
    ] = None,
    limit: options.Limit = 50,
) -> None:
    """List what was done to the configuration, the latest first: who, when, to what, and what changed."""
    with session.connect() as client:
        earliest = since(since_, "--since", lambda: client.run(client.store.clock.now()))
        found = Audit(client).actions(subject=subject, name=name, actor=actor, since=earliest, limit=limit)
    session.print_list(
        found,
        {
            "time (UTC)": lambda each: moment(each.at),
            "by": lambda each: line(each.actor, 60),
            "did": lambda each: each.verb,
            "to": lambda each: each.subject,
            "named": lambda each: line(each.name, 80),
            "what changed": lambda each: (
                "" if each.changed is None else line(json.dumps(each.changed, ensure_ascii=False), 120)
            ),
        },
        none="Nothing was done.",
        keep=["time (UTC)", "did", "to"],
    )


@commands.add("export", "holdfast audit export --since 30d --to trail.jsonl")
def export(
    session: NoTenant,
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="Where to; it must not be there yet.")],
    since_: Annotated[
        str | None, typer.Option("--since", metavar="TIME|SPAN", help="What was sealed from then on; else all.")
    ] = None,
) -> None:
    """Write events, actions and seals to a file of JSON lines, which `audit verify --file` checks by itself."""
    if to.exists():
        raise InvalidSetting(f"{to} is there already", code="file_exists", fix="Name another file, or remove it.")
    with session.connect(EVERY_TENANT) as client:
        earliest = since(since_, "--since", lambda: client.run(client.store.clock.now()))
        count = Audit(client).export(to, since=earliest, progress=_progress())
    session.answer({"file": str(to), "seals": count}, f"{count:,} seals written to {to}.")


@commands.add("anchor", "holdfast audit anchor >> anchors.txt")
def anchor(session: NoTenant) -> None:
    """Print the newest seal as one line. Keep it where whoever owns the database cannot change it."""
    with session.connect(EVERY_TENANT) as client:
        found = Audit(client).anchor()
    if session.as_json:
        emit({"number": found.number, "digest": found.digest, "anchor": str(found)})
    else:
        write(str(found))


@commands.add("seal", "holdfast audit seal")
def seal(session: NoTenant) -> None:
    """Seal what there is now. Workers do so by themselves every few seconds."""
    with session.connect(EVERY_TENANT) as client:
        count = Audit(client).seal()
    session.answer({"sealed": count}, f"{count:,} events and actions sealed.")


def _progress() -> Progress:
    last = time.monotonic()

    def tell(seals: int, events: int) -> None:
        nonlocal last
        if time.monotonic() - last > PAUSE:
            last = time.monotonic()
            say(f"{seals:,} seals, {events:,} events …")

    return tell


def _print(report: Report) -> None:
    for flaw in report.flaws:
        write(line(flaw.says, 400))
    if report.more:
        write(f"… and {report.more:,} more")
    facts(
        [
            ("verdict", "whole" if report.ok else "NOT WHOLE"),
            ("seals", f"{report.seals:,}"),
            ("events", f"{report.events:,}"),
            ("actions", f"{report.actions:,}"),
            ("purged", f"{report.purged:,} by retention, as the trail says" if report.purged else None),
            ("unsealed", f"{report.unsealed:,} waiting to be sealed" if report.unsealed else None),
            ("newest", report.newest),
        ]
    )

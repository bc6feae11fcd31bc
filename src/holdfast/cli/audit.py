"""``holdfast audit verify | show | actions | export | anchor | seal``: the sealed ledger."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import options
from holdfast.cli.failures import FAILED
from holdfast.cli.output import Cell, emit, facts, line, say, table, write
from holdfast.cli.session import connect, scope
from holdfast.cli.timeline import short, way
from holdfast.cli.words import moment, since
from holdfast.domain.audit_check import Report
from holdfast.domain.errors import InvalidSetting, NotFound
from holdfast.domain.job import EVERY_TENANT
from holdfast.features.audit import Audit, Progress, verify_file

PAUSE = 2.0  # seconds between two words about the progress


def verify(
    begin: Annotated[int, typer.Option("--from", metavar="SEAL", min=1, help="Begin with this seal.")] = 1,
    anchors: Annotated[
        list[str] | None,
        typer.Option("--anchor", metavar="ANCHOR", help="What `audit anchor` printed; can be given several times."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Check an exported file, without a database.")
    ] = None,
    url: options.Url = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Check the whole chain, and name what was edited, deleted, inserted, moved or cut off: then it exits with 1.

    Without an anchor that was kept elsewhere, a chain that its owner cut off or made anew looks whole.
    """
    if file is not None:
        if begin != 1 or url is not None:
            raise InvalidSetting("--file is checked as a whole, without a database", code="conflicting_options")
        if not file.is_file():
            raise NotFound(f"there is no file {file}", code="no_file")
        report = verify_file(file, anchors or (), _progress())
    else:
        with connect(url, EVERY_TENANT, schema) as client:
            report = Audit(client).verify(anchors=anchors or (), begin=begin, progress=_progress())
    if as_json:
        emit(report)
    else:
        _print(report)
    if not report.ok:
        raise typer.Exit(FAILED)


def show(
    job_id: options.JobId,
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Show the events of a job, each with its seal and whether it is still what was sealed: if not, it exits with 1."""
    with connect(url, scope(tenant, all_tenants), schema) as client:
        found = Audit(client).show(job_id)
    if as_json:
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


def actions(
    subject: Annotated[
        str | None, typer.Option("--subject", metavar="WORD", help="Only of these: limit, agent, schedule, executor, …")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Only of what has this name.")] = None,
    actor: Annotated[str | None, typer.Option("--actor", metavar="NAME", help="Only what they did.")] = None,
    since_: Annotated[
        str | None, typer.Option("--since", metavar="TIME|SPAN", help="From then on: a time, or 7d for a week ago.")
    ] = None,
    limit: options.Limit = 50,
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """List what was done to the configuration, the latest first: who, when, to what, and what changed."""
    with connect(url, scope(tenant, all_tenants), schema) as client:
        earliest = since(since_, "--since", lambda: client.run(client.verbs.now()))
        found = Audit(client).actions(subject=subject, name=name, actor=actor, since=earliest, limit=limit)
    if as_json:
        emit(found)
    elif not found:
        say("Nothing was done.")
    else:
        rows: list[list[Cell]] = [
            [
                moment(each.at),
                line(each.actor, 60),
                each.verb,
                each.subject,
                line(each.name, 80),
                "" if each.changed is None else line(json.dumps(each.changed, ensure_ascii=False), 120),
            ]
            for each in found
        ]
        table(["time (UTC)", "by", "did", "to", "named", "what changed"], rows, keep=["time (UTC)", "did", "to"])


def export(
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="Where to; it must not be there yet.")],
    since_: Annotated[
        str | None, typer.Option("--since", metavar="TIME|SPAN", help="What was sealed from then on; else all.")
    ] = None,
    url: options.Url = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Write events, actions and seals to a file of JSON lines, which `audit verify --file` checks by itself."""
    if to.exists():
        raise InvalidSetting(f"{to} is there already", code="file_exists", fix="Name another file, or remove it.")
    with connect(url, EVERY_TENANT, schema) as client:
        earliest = since(since_, "--since", lambda: client.run(client.verbs.now()))
        count = Audit(client).export(to, since=earliest, progress=_progress())
    if as_json:
        emit({"file": str(to), "seals": count})
    else:
        say(f"{count:,} seals written to {to}.")


def anchor(
    url: options.Url = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Print the newest seal as one line. Keep it where whoever owns the database cannot change it."""
    with connect(url, EVERY_TENANT, schema) as client:
        found = Audit(client).anchor()
    if as_json:
        emit({"number": found.number, "digest": found.digest, "anchor": str(found)})
    else:
        write(str(found))


def seal(
    url: options.Url = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Seal what there is now. Workers do so by themselves every few seconds."""
    with connect(url, EVERY_TENANT, schema) as client:
        count = Audit(client).seal()
    if as_json:
        emit({"sealed": count})
    else:
        say(f"{count:,} events and actions sealed.")


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

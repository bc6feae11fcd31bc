"""``holdfast audit verify | show | actions | export | anchor | seal``: the sealed ledger."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.derived import derive
from holdfast.cli.failures import FAILED
from holdfast.cli.output import emit, line, moment, print_fields, say, write
from holdfast.cli.session import AnyTenant, NoTenant, full_id
from holdfast.cli.tree import Commands
from holdfast.engine.declared import Help
from holdfast.engine.job import EVERY_TENANT
from holdfast.errors import InvalidSetting, NotFound
from holdfast.features.audit.model import Action, Anchor, Report
from holdfast.features.audit.operations import Audit, Progress, verify_file
from holdfast.features.jobs.timeline import short_actor, transition

commands = Commands("Verify, show and export the sealed ledger.")

PROGRESS_INTERVAL = 2.0  # seconds


class EveryTenant(NoTenant):
    """For commands on the ledger of all tenants."""

    @property
    def scope(self) -> str:
        return EVERY_TENANT


@derive(
    commands,
    "verify",
    EveryTenant,
    Audit.verify,
    "holdfast audit verify",
    'holdfast audit verify --from 1200 --anchor "$(tail -1 anchors.txt)"',
    "holdfast audit verify --file trail.jsonl",
)
def verify(
    session: EveryTenant,
    inputs: Any,
    file: Annotated[Path | None, Help("Check an exported file, without a database.", "FILE")] = None,
) -> None:
    """Verify the whole chain and report edited, deleted, inserted, moved or truncated events. Exit 1 if there are
    any.

    Without an anchor stored elsewhere, a chain that its owner truncated or rebuilt looks complete.
    """
    if file is not None:
        if inputs.get("begin", 1) != 1 or session.url is not None:
            raise InvalidSetting(
                "--file checks a whole file without a database; omit the other options", code="conflicting_options"
            )
        if not file.is_file():
            raise NotFound(f"file {file} not found", code="no_file")
        report = verify_file(file, inputs.get("anchors", ()), _progress())
    else:
        with session.connect() as client:
            report = Audit(client).verify(progress=_progress(), **inputs)
    if session.as_json:
        emit(report)
    else:
        _print(report)
    if not report.ok:
        raise typer.Exit(FAILED)


@derive(commands, "show", AnyTenant, Audit.get, "holdfast audit show 01a1de74-eb8c-70f1-843b-cac5f6817387")
def show(session: AnyTenant, inputs: Any) -> None:
    """Show a job's events with their seals and check each one. Exit 1 if an event was changed."""
    with session.connect() as client:
        entries = Audit(client).get(full_id(client, inputs["job_id"]))
    session.print_list(
        entries,
        {
            "event": lambda entry: str(entry.event.seq),
            "time (UTC)": lambda entry: moment(entry.event.at),
            "type": lambda entry: entry.event.type,
            "from → to": lambda entry: transition(entry.event),
            "by": lambda entry: short_actor(entry.event.actor),
            "is": lambda entry: entry.state,
            "seal": lambda entry: "" if entry.seal is None else str(entry.seal),
            "digest": lambda entry: "" if entry.digest is None else entry.digest[:16],
        },
        none="No events.",
        keep=("event", "time (UTC)", "type", "from → to"),
    )
    if any(entry.state == "edited" for entry in entries):
        raise typer.Exit(FAILED)


@derive(commands, "actions", AnyTenant, Audit.actions, "holdfast audit actions --subject limit --since 7d")
def actions(session: AnyTenant, result: list[Action]) -> None:
    session.print_list(
        result,
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
        none="No changes.",
        keep=["time (UTC)", "did", "to"],
    )


@derive(commands, "export", EveryTenant, Audit.export, "holdfast audit export --since 30d --to trail.jsonl")
def export(
    session: EveryTenant,
    inputs: Any,
    to: Annotated[Path, Help("Output file; must not exist yet.", "FILE")],
) -> None:
    """Export events, actions and seals to a JSON lines file that `audit verify --file` can check."""
    if to.exists():
        raise InvalidSetting(f"{to} already exists", code="file_exists", fix="Choose another file, or remove this one.")
    with session.connect() as client:
        count = Audit(client).export(to, progress=_progress(), **inputs)
    session.answer({"file": str(to), "seals": count}, f"{count:,} seals written to {to}.")


@derive(commands, "anchor", EveryTenant, Audit.anchor, "holdfast audit anchor >> anchors.txt")
def anchor(session: EveryTenant, result: Anchor) -> None:
    if session.as_json:
        emit(result.described())
    else:
        write(str(result))


@derive(commands, "seal", EveryTenant, Audit.seal, "holdfast audit seal")
def seal(session: EveryTenant, result: int) -> None:
    session.answer({"sealed": result}, f"Events and actions sealed: {result:,}.")


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

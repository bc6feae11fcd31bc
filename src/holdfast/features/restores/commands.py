"""``holdfast restore-check``."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from holdfast.cli.failures import FAILED
from holdfast.cli.output import emit, line, moment, print_fields, say, write
from holdfast.cli.session import NoTenant
from holdfast.engine.declared import Help
from holdfast.features.restores.model import COUNTED, LISTED, Origin, RestoreReport
from holdfast.features.restores.operations import Restores

_SAYS: dict[Origin, str] = {
    "here": "This database continues where it was.",
    "copied": "This database was restored from a dump, or replicated. It refuses work until it is adopted.",
    "recovered": "This database was recovered from the files of a server, or its server failed over. It works. Cursors"
    " that are kept outside of it may be ahead of it until it is adopted.",
    "standby": "This server follows another one. Promote it before its programs use it.",
    "unknown": "A SQLite file does not show whether it was copied. Its consumers continue; adopt a restored file if"
    " cursors are kept outside of it.",
}


def restore_check(
    session: NoTenant,
    adopt: Annotated[bool, Help("Adopt the copy: it continues as the original. Stop its programs first.")] = False,
) -> None:
    """Show what is different after a restore. Exit 1 if the database must be adopted."""
    with session.namespace(Restores) as restores:
        report: RestoreReport = restores.adopt() if adopt else restores.check()
    if session.as_json:
        emit(report)
    else:
        _print(report, adopted=adopt)
    raise typer.Exit(FAILED if report.must_adopt else 0)


def _print(report: RestoreReport, *, adopted: bool) -> None:
    write(f"Adopted: epoch {report.epoch} of the ledger." if adopted else _SAYS[report.origin])
    print_fields(
        [
            ("newest event", _at(report.last_event, report.last_event_at)),
            ("newest seal", _at(report.seal, report.sealed_at)),
            ("adopted", moment(report.adopted_at) if report.epoch and report.adopted_at else None),
            ("run again", f"{report.running:,} job{'s' * (report.running > 1)}" if report.running else None),
            *(("", line(id)) for id in report.running_jobs),
            ("missed times", _listed(report.missed)),
            *((line(f"{each.tenant}/{each.name}"), _unread(each.events)) for each in report.unread),
        ]
    )
    if report.must_adopt:
        say("Stop its programs, then run: holdfast restore-check --adopt")


def _at(number: int | None, at: datetime | None) -> str | None:
    return None if number is None or at is None else f"{number:,} at {moment(at)}"


def _listed(names: tuple[str, ...]) -> str | None:
    return line(", ".join(names) + (" and more" if len(names) == LISTED else ""), 400) if names else None


def _unread(events: int) -> str:
    return f"{events:,}{'+' if events >= COUNTED else ''} unread events"

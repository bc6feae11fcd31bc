"""``holdfast move``."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import typer

from holdfast.cli import options
from holdfast.cli.failures import FAILED
from holdfast.cli.output import emit, print_fields, say, table
from holdfast.engine.declared import Help
from holdfast.features.moves.model import PHASE, Estimate, MoveResult, Progress
from holdfast.features.moves.operations import Mover, mover

_SAYS = {
    PHASE.CHECK: "Checking both databases",
    PHASE.COPY: "Copying",
    PHASE.COMPARE: "Comparing",
    PHASE.FOLLOW: "Following changes",
    PHASE.SWITCH: "Switching: writers wait",
    PHASE.VERIFY: "Verifying the audit trail",
    PHASE.FINISH: "Finishing",
}


def move(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="URL of the database to move.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="URL of the new database, which is empty.")],
    dry_run: Annotated[bool, Help("Check both databases and estimate the time; change nothing.")] = False,
    resume: Annotated[bool, Help("Continue a move whose process has ended.")] = False,
    abort: Annotated[bool, Help("Give up a move: the source continues, the target becomes empty.")] = False,
    announce: Annotated[
        str | None,
        Help("URL that programs are told; default: that of the target, without password (between servers: nor user)."),
    ] = None,
    compare: Annotated[bool, typer.Option("--compare/--no-compare", help="Compare all rows before the switch.")] = True,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Verify the audit trail of the target after the switch.")
    ] = True,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Move a whole database to another store or server while programs use it.

    Programs that have the URL of the source follow by themselves. Writers wait for a few seconds at most.
    """
    if sum((dry_run, resume, abort)) > 1:
        raise typer.BadParameter("give only one of --dry-run, --resume and --abort")
    shown = _Shown(quiet=as_json)
    with mover(source, target, schema=schema, report=shown, announced=announce, compares=compare) as moving:
        if dry_run:
            _print_estimate(moving.estimate(), as_json)
        elif abort:
            moving.abort()
            _answer(as_json, {"aborted": True}, "Given up: the source continues, and the target is empty.")
        else:
            _move(moving, as_json, resume=resume, verify=verify)


def _move(moving: Mover, as_json: bool, *, resume: bool, verify: bool) -> None:
    result = moving.run(resume=resume)
    trail = moving.verify() if verify else None
    if trail is not None:
        result.verified = trail.newest
    if as_json:
        emit({**_described(result), "flaws": [] if trail is None else list(trail.flaws)})
    else:
        print_fields(
            [
                ("moved to", result.target),
                ("rows copied", f"{result.copied:,} in {result.copy_seconds:.1f} s"),
                ("rows compared", f"{result.compared:,}" if result.compared else None),
                *((f"jobs of {tenant}", f"{count:,}") for tenant, count in sorted(result.tenants.items())),
                ("writers waited", f"{result.refused_seconds:.1f} s"),
                ("newest seal", result.verified),
            ]
        )
    if trail is not None and not trail.ok:
        say(f"The audit trail has {len(trail.flaws)} flaws. See them with: holdfast audit verify")
        raise typer.Exit(FAILED)


def _described(result: MoveResult) -> dict[str, Any]:
    return {name: getattr(result, name) for name in MoveResult.__slots__}


def _print_estimate(estimate: Estimate, as_json: bool) -> None:
    if as_json:
        emit(estimate)
        return
    table(("table", "rows"), [[name, f"{count:,}"] for name, count in sorted(estimate.rows.items())])
    total = sum(estimate.rows.values())
    say(f"{total:,} rows, about {_time(estimate.seconds)} to copy. Nothing was changed.")


def _answer(as_json: bool, data: dict[str, Any], words: str) -> None:
    if as_json:
        emit(data)
    else:
        say(words)


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


class _Shown:
    """Prints the progress to stderr: on a terminal one line that changes, else a line per phase and every ten
    seconds."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._phase = ""
        self._at = 0.0

    def __call__(self, progress: Progress) -> None:
        now, new = time.monotonic(), progress.phase != self._phase
        if self._quiet or (not new and now < self._at + (0.2 if self._terminal else 10.0)):
            return
        if self._terminal and self._phase:
            print(end="\n" if new else "\r", file=sys.stderr)
        self._phase, self._at = progress.phase, now
        text = _SAYS[progress.phase]
        if progress.done:
            of = f" of about {progress.total:,}" if progress.total else ""
            text += f": {progress.done:,}{of} rows, {progress.rate:,.0f} rows/s"
        if progress.left is not None and progress.done:
            text += f", {_time(progress.left)} left"
        print(
            f"{text:<78}" if self._terminal else text, end="" if self._terminal else "\n", file=sys.stderr, flush=True
        )

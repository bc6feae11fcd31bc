"""``holdfast replay``: run the current code against recorded histories, before it is deployed."""

from __future__ import annotations

import asyncio
import re
from bdb import BdbQuit
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.app import App
from holdfast.app.internals import session_of
from holdfast.app.replayer import Replayed, Replayer, ReplayReport
from holdfast.cli import options
from holdfast.cli.failures import FAILED
from holdfast.cli.options import JobFilterOptions, JobState
from holdfast.cli.output import counted, emit, plain, say, write
from holdfast.cli.session import full_id, load_runnable, refuse_unready, scope
from holdfast.engine.declared import Help
from holdfast.engine.states import State
from holdfast.errors import InvalidSetting
from holdfast.steps.history import History, read_histories

Targets = Annotated[
    list[str], typer.Argument(metavar="MODULE:APP|ID", help="The App, and jobs to replay instead of a selection.")
]
File = Annotated[
    list[Path] | None,
    Help("Histories in a file of holdfast jobs export-history instead of a database; repeatable.", "FILE"),
]


_LIKE_AN_ID = re.compile(r"[0-9A-Fa-f][0-9A-Fa-f-]{3,35}")


def replay(
    targets: Targets,
    file: File = None,
    state: JobState = None,
    limit: Annotated[int, Help("Maximum number of histories.", "N", low=1)] = 10_000,
    timeout: Annotated[str, Help("Maximum time of one handler.", "SPAN")] = "10s",
    debug: Annotated[bool, Help("Stop in the debugger at the first line of the handler (one job).")] = False,
    url: options.AppUrl = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    as_json: options.Json = False,
    *,
    which: JobFilterOptions,
) -> None:
    """Run the current code against recorded histories and list the jobs that would stop.

    Replays all unfinished jobs that match, and with --since also the finished ones. No function of a step runs, and
    nothing is written. Exit code 1 if a history differs from what its handler does now.
    """
    name, ids = _parts(targets)
    seconds = options.positive(timeout, "timeout")
    if file and (ids or state or any(vars(which).values())):
        raise InvalidSetting("--file replays the whole file", code="conflicting_options", fix="Omit the other options.")
    if debug and len(ids) != 1 and not file:
        raise InvalidSetting("--debug is for one job", code="conflicting_options", fix="Name its id.")
    app = load_runnable(name, url, lambda store: None)
    with closing(app):
        found = _from_files(file) if file else _from_database(app, ids, state, which, scope(tenant, all_tenants))
        report = _replay(app, islice(found, 1 if debug else limit), seconds, debug)
    _print(report, as_json)
    if report.different:
        raise typer.Exit(FAILED)


def _parts(targets: list[str]) -> tuple[str, list[str]]:
    """The app and the ids. The app may be in any place."""
    ids = [each for each in targets if _LIKE_AN_ID.fullmatch(each)]
    names = [each for each in targets if each not in ids]
    if len(names) != 1:
        what = "two apps are named" if names else "no app is named"
        raise InvalidSetting(what, code="invalid_app", fix="Write holdfast replay MODULE:APP, then the ids of jobs.")
    return names[0], ids


def _from_files(files: list[Path]) -> Iterator[History]:
    for each in files:
        yield from read_histories(each)


def _from_database(app: App, ids: list[str], state: State | None, which: Any, tenant: str) -> Iterator[History]:
    session = session_of(app)
    refuse_unready(session.store)
    if ids:
        with session.serving(tenant, session.actor):
            ids = [full_id(session, each) for each in ids]
        yield from app.jobs.export_history(*ids, tenant=tenant)
        return
    wanted = which.wanted(session.run(session.store.clock.now()))
    if state is not None:
        yield from app.jobs.export_history(tenant=tenant, state=state, **wanted)
        return
    ever = {name: value for name, value in wanted.items() if name not in ("since", "until")}
    for each in State:
        if not each.finished:
            yield from app.jobs.export_history(tenant=tenant, state=each, **ever)
    if ever != wanted:
        for history in app.jobs.export_history(tenant=tenant, **wanted):
            if history.finished:
                yield history


def _replay(app: App, histories: Iterator[History], timeout: float, debug: bool) -> ReplayReport:
    replayer, results, seen = Replayer(app, timeout=timeout, debug=debug), list[Replayed](), set[tuple[str, str]]()
    with asyncio.Runner() as runner:
        for history in histories:
            if (history.job.tenant, history.id) in seen:  # its state changed meanwhile
                continue
            seen.add((history.job.tenant, history.id))
            try:
                results.append(runner.run(replayer.replay(history)))
            except BdbQuit:
                break
    return ReplayReport(tuple(results))


def _print(report: ReplayReport, as_json: bool) -> None:
    if as_json:
        others = [each for each in report.results if each.verdict in ("unchecked", "skipped")]
        emit(
            {
                "histories": len(report.results),
                "counts": report.counts,
                "different": report.different,
                "not_checked": others,
            }
        )
        return
    for each in report.different:
        write(plain(str(each)))
        if each.difference is not None and each.difference.called is not None:
            write(plain(f"  recorded: {each.difference.recorded or 'nothing'}"))
            write(plain(f"  called:   {each.difference.called}"))
        if not each.stops:
            write("  The job would not stop: it continues with what is recorded.")
    reasons = Counter(f"{each.verdict}: {each.kind}: {each.note}" for each in report.not_checked)
    for reason, times in reasons.items():
        say(plain(reason) + (f" ({times} jobs)" if times > 1 else ""))
    counts = ", ".join(f"{count:,} {verdict}" for verdict, count in sorted(report.counts.items()))
    say(f"{counted(len(report.results), 'job')}: {counts}." if report.results else "No job with a history matches.")

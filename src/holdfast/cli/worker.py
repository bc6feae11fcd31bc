"""``holdfast worker module:app``: run jobs until told to stop.

The first SIGTERM or SIGINT lets what is running end within the grace; the second hands it back at once. Either
way every job is settled or handed back and the lease is closed before the process exits with 0.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from enum import StrEnum
from typing import Annotated, Any

import typer

from holdfast.app import App
from holdfast.cli import logs, options
from holdfast.cli.loading import load_app
from holdfast.cli.output import emit, line, say
from holdfast.cli.session import refuse_unready, scope
from holdfast.cli.words import duration
from holdfast.domain.errors import InvalidSetting
from holdfast.domain.job import DEFAULT_QUEUE, EVERY_TENANT
from holdfast.domain.keys import check_name
from holdfast.runtime.worker import Worker, WorkerOptions

LONGEST_SWEEP = 5.0


class Level(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


AppName = Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the App is, for example shop.jobs:app.")]


def worker(
    app: AppName,
    url: Annotated[str | None, typer.Option("--url", metavar="URL", help="For an app that names no database.")] = None,
    queues: Annotated[str, typer.Option("--queues", metavar="A,B", help="The queues to serve.")] = DEFAULT_QUEUE,
    concurrency: Annotated[
        int, typer.Option("--concurrency", metavar="N", min=1, max=1000, help="Jobs at a time.")
    ] = 16,
    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="NAME", help="Only this tenant (or HOLDFAST_TENANT).")
    ] = None,
    all_tenants: Annotated[bool, typer.Option("--all-tenants", help="Serve every tenant (the default).")] = False,
    lease: Annotated[
        str, typer.Option("--lease", metavar="SPAN", help="Free its jobs this long after a crash.")
    ] = "30s",
    grace: Annotated[
        str, typer.Option("--grace", metavar="SPAN", help="How long running jobs may take to end.")
    ] = "30s",
    poll: Annotated[str, typer.Option("--poll", metavar="SPAN", help="How often to look when idle.")] = "200ms",
    burst: Annotated[bool, typer.Option("--burst", help="End when there is nothing left to take.")] = False,
    max_jobs: Annotated[int | None, typer.Option("--max-jobs", metavar="N", min=1, help="End after this many.")] = None,
    log_level: Annotated[
        Level, typer.Option("--log-level", metavar="LEVEL", help=f"What to log: {', '.join(Level)}.")
    ] = Level.INFO,
    as_json: Annotated[bool, typer.Option("--json", help="Log JSON lines, and end with a JSON document.")] = False,
) -> None:
    """Run jobs until told to stop."""
    logs.set_up(log_level.value, as_json=as_json)
    settings = WorkerOptions(
        queues=_queues(queues),
        concurrency=concurrency,
        tenant=scope(tenant, all_tenants, default=EVERY_TENANT),
        lease_ttl=_positive(lease, "lease"),
        grace=duration(grace, "grace"),
        poll=_positive(poll, "poll"),
        sweep_every=min(LONGEST_SWEEP, _positive(lease, "lease")),
        burst=burst,
        max_jobs=max_jobs,
    )
    loaded = load_app(app, url)
    if not loaded.kinds:
        raise InvalidSetting(f"{app} declares no jobs", code="no_kinds", fix="Declare some with @app.job().")
    if not loaded.store.embedded:  # an embedded one is made, or brought up to date, as a program's would be
        refuse_unready(loaded.store)
    running = _run(_serve(loaded, settings, quiet=as_json))
    if as_json:
        emit({"worker": running.name, "jobs": running.taken})


def _run(work: Coroutine[Any, Any, Worker]) -> Worker:
    """``asyncio.run`` without its wait for threads: one that is stuck in a handler must not keep the process."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _serve(app: App, settings: WorkerOptions, *, quiet: bool) -> Worker:
    serving = app.worker(settings)
    asked = 0

    def on_signal() -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            serving.stop()
        else:
            serving.stop_now()
        if not quiet:
            say("Stopping; once more to hand back what is running at once." if asked == 1 else "Stopping at once.")

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    if not quiet:
        whom = "every tenant" if settings.tenant == EVERY_TENANT else f"tenant {settings.tenant}"
        say(f"{serving.name} serves {', '.join(settings.queues)} of {whom}: {line(', '.join(sorted(app.kinds)))}")
    try:
        await serving.run()
    finally:
        await app.aclose()
    if not quiet:
        say(f"{serving.name} has ended after {serving.taken} jobs.")
    return serving


def _queues(text: str) -> tuple[str, ...]:
    names = tuple(check_name(name, "queue") for name in options.listed(text))
    if not names:
        raise InvalidSetting("name a queue to serve", code="invalid_name")
    return names


def _positive(text: str, what: str) -> float:
    value = duration(text, what)
    if value < 0.01:
        raise InvalidSetting(f"the {what} must be at least 10 ms", code="invalid_duration")
    return value

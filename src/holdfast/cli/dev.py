"""``holdfast dev``, ``holdfast tick``.

``holdfast dev``: everything at once, for development: API, dashboard, worker and scheduler, started anew on changes.

One child process has it all; the socket is the parent's, so that the address stays while the child is replaced.

``holdfast tick module:app``: run what waits, up to a limit, and leave. For cron and hosts that run no worker.

A signal is as if the time were up: what is running is handed back, the summary is printed, the exit code is 0.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Annotated

import typer

from holdfast import config
from holdfast.app import App
from holdfast.cli import options, output, serve
from holdfast.cli.output import emit, facts, say, span
from holdfast.cli.run_worker import on_signals, run_to_end
from holdfast.cli.serve import HOST, PORT, Host, Port
from holdfast.cli.session import load_runnable, module_of, scope
from holdfast.cli.supervisor.process import Plan
from holdfast.cli.supervisor.reload import Reloader
from holdfast.cli.supervisor.supervisor import Report
from holdfast.engine.job import EVERY_TENANT
from holdfast.worker.options import Ticking, TickSummary
from holdfast.worker.worker import WorkerOptions

DATABASE = "sqlite:///holdfast-dev.db"


def dev(
    app: Annotated[
        str,
        typer.Argument(metavar="MODULE:APP|FILE", help="Location of the App: shop.jobs:app, or examples/dev_shop.py."),
    ],
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help=f"Database URL for an app without one; default: {DATABASE}."),
    ] = None,
    host: Host = HOST,
    port: Port = PORT,
    queues: options.Queues = options.ALL_QUEUES,
    concurrency: options.Concurrency = 16,
    log_level: options.LogLevel = options.Level.INFO,
    log_format: options.LogForm = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Log JSON lines, and print the address as JSON on stdout.")
    ] = False,
) -> None:
    """Run the dashboard, the API, a worker and the scheduler; restart them when a project file changes.

    No login is needed: it listens on this machine only.
    """
    serve.refuse_unsafe(host, local=True)
    module_of(app)  # a file that is not there is told at once, and not waited for
    json_lines = options.logs_json(log_format, as_json)
    output.set_up(log_level.value, as_json=json_lines)
    if url is None:
        os.environ.setdefault(config.URL_VARIABLE, DATABASE)
    names, weights = options.queues_of(queues)
    settings = WorkerOptions(queues=names, weights=weights, concurrency=concurrency)
    listening = serve.listen(host, port)
    plan = Plan(
        app=app,
        url=url,
        options=settings,
        program=sys.argv[0],
        log_level=log_level.value,
        log_json=json_lines,
        as_json=as_json,
        listen=listening.fileno(),
    )
    if as_json:
        emit({"address": serve.address_of(listening)})
    else:
        say(f"The dashboard is at {serve.address_of(listening)} (Ctrl-C to stop)")

    async def run() -> Report:
        return await Reloader(plan).run()

    try:
        report = run_to_end(run())
    finally:
        listening.close()
    if not report.clean:
        raise typer.Exit(1)


SHOWN = ("succeeded", "retried", "dead", "failed", "crashed", "snoozed", "handed_back", "cancelled", "lost")


def tick(
    app: options.AppName,
    url: options.AppUrl = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="Maximum number of jobs.")] = 10,
    queues: options.Queues = options.ALL_QUEUES,
    concurrency: options.Concurrency = 16,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="SPAN", help="Time limit; unfinished jobs return to their queue.")
    ] = None,
    tenant: options.Served = None,
    all_tenants: options.ServeAll = False,
    lease: options.Lease = "30s",
    executor: options.Executor = options.EXECUTOR,
    log_level: options.LogLevel = options.Level.WARNING,
    log_format: options.LogForm = None,
    as_json: Annotated[bool, typer.Option("--json", help="Log JSON lines and print the summary as JSON.")] = False,
) -> None:
    """Run at most N jobs in this process and print a summary.

    First it does what a worker does on the side: makes due what is due, frees what lost workers held. Call it
    every minute from cron and there is no need for a worker.
    """
    output.set_up(log_level.value, as_json=options.logs_json(log_format, as_json))
    names, weights = options.queues_of(queues)
    wanted: Ticking = {
        "weights": weights,
        "concurrency": concurrency,
        "tenant": scope(tenant, all_tenants, default=EVERY_TENANT),
        "lease": options.positive(lease, "lease"),
        "executor": executor,
        "timeout": None if timeout is None else options.positive(timeout, "timeout"),
    }
    if names:
        wanted["queues"] = names
    done = run_to_end(_once(load_runnable(app, url), limit, wanted))
    if as_json:
        emit(done)
    else:
        facts(
            [
                ("taken", f"{done.taken:,}"),
                *(
                    (name.replace("_", " "), f"{getattr(done, name):,}" if getattr(done, name) else None)
                    for name in SHOWN
                ),
                ("took", span(done.duration)),
                ("more", "yes" if done.more else "no"),
            ]
        )


async def _once(app: App, limit: int, wanted: Ticking) -> TickSummary:
    stop = asyncio.Event()
    on_signals(stop.set, stop.set)
    try:
        return await app.atick(limit, stop=stop, **wanted)
    finally:
        await app.aclose()

"""``holdfast dev`` and ``holdfast tick``.

``holdfast dev`` runs the API, the dashboard, a worker and the scheduler in one child process, and restarts it when a
file changes. The parent owns the socket, so the address stays the same.

``holdfast tick`` runs due jobs up to a limit and exits. For cron and hosts that run no worker. A signal has the effect
of the timeout: running jobs are released, the summary is printed, and the exit code is 0.
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
from holdfast.cli.output import announce, emit, print_fields, span
from holdfast.cli.run_worker import on_signals, run_to_end
from holdfast.cli.serve import HOST, PORT, Host, Port
from holdfast.cli.session import load_runnable, module_of, scope
from holdfast.cli.supervisor.process import Plan
from holdfast.cli.supervisor.reload import Reloader
from holdfast.cli.supervisor.supervisor import Report
from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.names import check_name
from holdfast.worker.options import TickKeywords, TickSummary
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
    person: Annotated[
        str | None,
        typer.Option("--as", metavar="NAME", help="Act in the dashboard as this person; default: your login name."),
    ] = None,
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
    module_of(app)  # raises at once if the file does not exist; the reloader would wait for it
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
        person=None if person is None else check_name(person, "--as"),
    )
    if as_json:
        emit({"address": serve.address_of(listening)})
    else:
        announce(f"The dashboard is at {serve.address_of(listening)} (Ctrl-C to stop)")

    async def run() -> Report:
        return await Reloader(plan).run()

    try:
        report = run_to_end(run())
    finally:
        listening.close()
    if not report.clean:
        raise typer.Exit(1)


OUTCOMES = ("succeeded", "retried", "dead", "failed", "crashed", "snoozed", "handed_back", "cancelled", "lost")


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

    It also does the maintenance of a worker: it queues jobs that are due and releases jobs of lost workers. Call it
    every minute from cron instead of running a worker.
    """
    output.set_up(log_level.value, as_json=options.logs_json(log_format, as_json))
    names, weights = options.queues_of(queues)
    tick_options: TickKeywords = {
        "weights": weights,
        "concurrency": concurrency,
        "tenant": scope(tenant, all_tenants, default=EVERY_TENANT),
        "lease": options.positive(lease, "lease"),
        "executor": executor,
        "timeout": None if timeout is None else options.positive(timeout, "timeout"),
    }
    if names:
        tick_options["queues"] = names
    summary = run_to_end(_once(load_runnable(app, url), limit, tick_options))
    if as_json:
        emit(summary)
    else:
        print_fields(
            [
                ("taken", f"{summary.taken:,}"),
                *(
                    (name.replace("_", " "), f"{getattr(summary, name):,}" if getattr(summary, name) else None)
                    for name in OUTCOMES
                ),
                ("took", span(summary.duration)),
                ("more", "yes" if summary.more else "no"),
            ]
        )


async def _once(app: App, limit: int, tick_options: TickKeywords) -> TickSummary:
    stop = asyncio.Event()
    on_signals(stop.set, stop.set)
    try:
        return await app.atick(limit, stop=stop, **tick_options)
    finally:
        await app.aclose()

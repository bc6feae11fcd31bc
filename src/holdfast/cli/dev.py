"""``holdfast dev``: everything at once, for development: API, dashboard, worker and scheduler, started anew on changes.

One child process has it all; the socket is the parent's, so that the address stays while the child is replaced.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from holdfast import config
from holdfast.cli import logs, options, web
from holdfast.cli.loading import module_of
from holdfast.cli.output import emit, say
from holdfast.cli.serve import HOST, PORT, Host, Port
from holdfast.cli.serving import run_to_end
from holdfast.cli.supervision.plan import Plan
from holdfast.cli.supervision.reload import Reloader
from holdfast.cli.supervision.supervisor import Report
from holdfast.worker.worker import WorkerOptions

DATABASE = "sqlite:///holdfast-dev.db"


def dev(
    app: Annotated[
        str,
        typer.Argument(metavar="MODULE:APP|FILE", help="Where the App is: shop.jobs:app, or examples/dev_shop.py."),
    ],
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help=f"For an app that names no database; else {DATABASE}."),
    ] = None,
    host: Host = HOST,
    port: Port = PORT,
    queues: options.Queues = "default",
    concurrency: options.Concurrency = 16,
    log_level: options.LogLevel = options.Level.INFO,
    log_format: options.LogForm = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Log JSON lines; the address is a JSON document on stdout.")
    ] = False,
) -> None:
    """Run the dashboard, the API, a worker and the scheduler, and start them anew when a file of the project changes.

    Nobody has to log in: it listens on this machine only.
    """
    web.refuse_unsafe(host, local=True)
    module_of(app)  # a file that is not there is told at once, and not waited for
    json_lines = options.logs_json(log_format, as_json)
    logs.set_up(log_level.value, as_json=json_lines)
    if url is None:
        os.environ.setdefault(config.URL_VARIABLE, DATABASE)
    names, weights = options.queues_of(queues)
    settings = WorkerOptions(queues=names, weights=weights, concurrency=concurrency)
    listening = web.listen(host, port)
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
        emit({"address": web.address_of(listening)})
    else:
        say(f"The dashboard is at {web.address_of(listening)} (Ctrl-C to stop)")

    async def run() -> Report:
        return await Reloader(plan).run()

    try:
        report = run_to_end(run())
    finally:
        listening.close()
    if not report.clean:
        raise typer.Exit(1)

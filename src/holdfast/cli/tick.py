"""``holdfast tick module:app``: run what waits, up to a limit, and leave. For cron and hosts that run no worker.

A signal is as if the time were up: what is running is handed back, the summary is printed, the exit code is 0.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from holdfast.app import App
from holdfast.cli import logs, options
from holdfast.cli.loading import load_runnable
from holdfast.cli.output import emit, facts
from holdfast.cli.serving import on_signals, run_to_end
from holdfast.cli.session import scope
from holdfast.cli.words import span
from holdfast.engine.job import DEFAULT_QUEUE, EVERY_TENANT
from holdfast.worker.options import Ticking, TickSummary

SHOWN = ("succeeded", "retried", "dead", "failed", "crashed", "snoozed", "handed_back", "cancelled", "lost")


def tick(
    app: options.AppName,
    url: options.AppUrl = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="Jobs at most.")] = 10,
    queues: options.Queues = DEFAULT_QUEUE,
    concurrency: options.Concurrency = 16,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="SPAN", help="Hand back what is not done by then.")
    ] = None,
    tenant: options.Served = None,
    all_tenants: options.ServeAll = False,
    lease: options.Lease = "30s",
    executor: options.Executor = options.EXECUTOR,
    log_level: options.LogLevel = options.Level.WARNING,
    log_format: options.LogForm = None,
    as_json: Annotated[bool, typer.Option("--json", help="Log JSON lines, and print the summary as JSON.")] = False,
) -> None:
    """Run at most N jobs in this process, and say what became of them.

    First it does what a worker does on the side: makes due what is due, frees what lost workers held. Call it
    every minute from cron and there is no need for a worker.
    """
    logs.set_up(log_level.value, as_json=options.logs_json(log_format, as_json))
    names, weights = options.queues_of(queues)
    wanted: Ticking = {
        "queues": names,
        "weights": weights,
        "concurrency": concurrency,
        "tenant": scope(tenant, all_tenants, default=EVERY_TENANT),
        "lease": options.positive(lease, "lease"),
        "executor": executor,
        "timeout": None if timeout is None else options.positive(timeout, "timeout"),
    }
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

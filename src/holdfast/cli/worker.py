"""``holdfast worker``, ``holdfast dev`` and ``holdfast tick``: run jobs.

``worker`` runs until it is stopped, in this process or in several: ``run_worker`` runs a single worker and handles its
signals; ``supervisor`` does so for several processes.

``dev`` runs the API, the dashboard, a worker and the scheduler in one child process, and restarts it when a file
changes. The parent owns the socket, so the address stays the same.

``tick`` runs due jobs up to a limit and exits. For cron and hosts that run no worker. A signal has the effect of the
timeout: running jobs are released, the summary is printed, and the exit code is 0.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from holdfast import config
from holdfast.app import App
from holdfast.cli import options, output
from holdfast.cli.failures import FAILED, USAGE
from holdfast.cli.output import announce, duration, emit, print_fields, span
from holdfast.cli.probes import WorkerProbe
from holdfast.cli.reload import Reloader
from holdfast.cli.run_worker import on_signals, run_to_end, serve, serve_metrics
from holdfast.cli.serve import HOST, PORT, Host, Port, address_of, listen, refuse_unsafe
from holdfast.cli.session import load_runnable, module_of, scope, wait_ready, wait_shortly
from holdfast.cli.supervisor import Plan, Report, Supervisor
from holdfast.engine.declared import Help
from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.names import check_name
from holdfast.errors import InvalidSetting
from holdfast.worker.options import TickKeywords, TickSummary
from holdfast.worker.worker import WorkerOptions

LONGEST_SWEEP = 5.0


def worker(
    app: options.AppName,
    url: options.AppUrl = None,
    queues: options.Queues = options.ALL_QUEUES,
    concurrency: options.Concurrency = 16,
    processes: Annotated[
        int | None, Help("Number of worker processes, each running --concurrency jobs at once.", "N", low=1, high=256)
    ] = None,
    tenant: options.Served = None,
    all_tenants: options.ServeAll = False,
    lease: options.Lease = "30s",
    grace: Annotated[str, Help("Grace period for running jobs at shutdown.", "SPAN")] = "30s",
    poll: Annotated[str, Help("Poll interval when idle.", "SPAN")] = "200ms",
    no_notify: Annotated[
        bool, Help("Poll only, without notifications; for transaction poolers such as PgBouncer.")
    ] = False,
    executor: options.Executor = options.EXECUTOR,
    burst: Annotated[bool, Help("Exit when no job is left to claim.")] = False,
    max_jobs: Annotated[int | None, Help("Exit after this many jobs per process.", "N", low=1)] = None,
    idle_after: Annotated[
        str | None, Help("Close all connections after this time without work, so that the database can sleep.", "SPAN")
    ] = None,
    wake_every: Annotated[str, Help("Longest sleep with --idle-after.", "SPAN")] = "15m",
    reload: Annotated[bool, Help("For development: restart when a project file changes.")] = False,
    require_roles: Annotated[bool, Help("Refuse a role that owns the tables or bypasses row-level security.")] = False,
    log_level: options.LogLevel = options.Level.INFO,
    log_format: options.LogForm = None,
    metrics_port: options.MetricsPort = None,
    metrics_host: options.MetricsHost = options.LOOPBACK,
    as_json: Annotated[bool, Help("Log JSON lines and print a JSON summary at the end.", option="--json")] = False,
) -> None:
    """Run jobs until stopped.

    The first SIGTERM or Ctrl-C lets running jobs end within the grace period, the second releases them at once.
    """
    if reload and (processes is not None or burst or max_jobs is not None):
        raise InvalidSetting(
            "--reload runs one worker until it is stopped",
            code="conflicting_options",
            fix="Omit --processes, --burst and --max-jobs.",
        )
    json_lines = options.logs_json(log_format, as_json)
    output.set_up(log_level.value, as_json=json_lines)
    if require_roles:
        os.environ[config.STRICT_VARIABLE] = "1"  # an environment variable, so that child processes see it
    names, weights = options.queues_of(queues)
    settings = WorkerOptions(
        queues=names,
        weights=weights,
        concurrency=concurrency,
        tenant=scope(tenant, all_tenants, default=EVERY_TENANT),
        lease_ttl=options.positive(lease, "lease"),
        grace=duration(grace, "grace"),
        poll=options.positive(poll, "poll"),
        sweep_every=min(LONGEST_SWEEP, options.positive(lease, "lease")),
        notify=not no_notify,
        executor=check_name(executor, "executor"),
        burst=burst,
        max_jobs=max_jobs,
        idle_after=None if idle_after is None else options.positive(idle_after, "idle-after"),
        wake_every=options.positive(wake_every, "wake-every"),
    )
    if processes is None and not reload:
        probe = serve_metrics(metrics_host, metrics_port, 1, tell=_tell(as_json))
        _run_one(app, url, settings, probe, as_json=as_json)
        return
    plan = Plan(
        app=app,
        url=url,
        options=settings,
        program=sys.argv[0],
        log_level=log_level.value,
        log_json=json_lines,
        as_json=as_json,
        metrics_host=metrics_host,
        metrics_port=metrics_port,
    )
    _end(run_to_end(_supervise(plan, processes)), as_json=as_json)


def _run_one(app: str, url: str | None, settings: WorkerOptions, probe: WorkerProbe, *, as_json: bool) -> None:
    runnable = load_runnable(app, url, wait_shortly if settings.burst else wait_ready)
    stopper = run_to_end(serve(runnable, settings, tell=_tell(as_json), probe=probe))
    if as_json:
        emit({"worker": stopper.worker.name, "jobs": stopper.worker.taken})


def _tell(as_json: bool) -> Callable[[str], None]:
    return (lambda message: None) if as_json else announce


async def _supervise(plan: Plan, processes: int | None) -> Report:
    """Run worker processes; without a number, one with ``--reload``. Both classes need a running event loop."""
    return await (Reloader(plan) if processes is None else Supervisor(plan, processes)).run()


def _end(report: Report, *, as_json: bool) -> None:
    if report.usage:
        raise typer.Exit(USAGE)  # the child has printed the error
    if as_json:
        slots = [{"process": slot.number, "jobs": slot.jobs, "restarts": slot.restarts} for slot in report.slots]
        emit({"jobs": report.jobs, "restarts": report.restarts, "clean": report.clean, "processes": slots})
    else:
        announce(f"All workers have ended after {report.jobs} jobs.")
    if not report.clean:
        raise typer.Exit(FAILED)


DATABASE = "sqlite:///holdfast-dev.db"


def dev(
    app: Annotated[
        str,
        typer.Argument(metavar="MODULE:APP|FILE", help="Location of the App: shop.jobs:app, or examples/dev_shop.py."),
    ],
    url: Annotated[str | None, Help(f"Database URL for an app without one; default: {DATABASE}.", "URL")] = None,
    host: Host = HOST,
    port: Port = PORT,
    queues: options.Queues = options.ALL_QUEUES,
    concurrency: options.Concurrency = 16,
    person: Annotated[
        str | None, Help("Act in the dashboard as this person; default: your login name.", "NAME", option="--as")
    ] = None,
    log_level: options.LogLevel = options.Level.INFO,
    log_format: options.LogForm = None,
    as_json: Annotated[bool, Help("Log JSON lines, and print the address as JSON on stdout.", option="--json")] = False,
) -> None:
    """Run the dashboard, the API, a worker and the scheduler; restart them when a project file changes.

    No login is needed: it listens on this machine only.
    """
    refuse_unsafe(host, local=True)
    module_of(app)  # raises at once if the file does not exist; the reloader would wait for it
    json_lines = options.logs_json(log_format, as_json)
    output.set_up(log_level.value, as_json=json_lines)
    if url is None:
        os.environ.setdefault(config.URL_VARIABLE, DATABASE)
    names, weights = options.queues_of(queues)
    settings = WorkerOptions(queues=names, weights=weights, concurrency=concurrency)
    listening = listen(host, port)
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
        emit({"address": address_of(listening)})
    else:
        announce(f"The dashboard is at {address_of(listening)} (Ctrl-C to stop)")

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
    limit: Annotated[int, Help("Maximum number of jobs.", "N", low=1, high=10_000)] = 10,
    queues: options.Queues = options.ALL_QUEUES,
    concurrency: options.Concurrency = 16,
    timeout: Annotated[str | None, Help("Time limit; unfinished jobs return to their queue.", "SPAN")] = None,
    tenant: options.Served = None,
    all_tenants: options.ServeAll = False,
    lease: options.Lease = "30s",
    executor: options.Executor = options.EXECUTOR,
    log_level: options.LogLevel = options.Level.WARNING,
    log_format: options.LogForm = None,
    as_json: Annotated[bool, Help("Log JSON lines and print the summary as JSON.", option="--json")] = False,
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

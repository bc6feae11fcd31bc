"""``holdfast worker``: run jobs until stopped, in this process or in several.

``run_worker`` runs a single worker and handles its signals; ``supervisor`` does so for several processes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from holdfast import config
from holdfast.cli import options, output
from holdfast.cli.failures import FAILED, USAGE
from holdfast.cli.output import announce, duration, emit
from holdfast.cli.probes import WorkerProbe
from holdfast.cli.run_worker import run_to_end, serve, serve_metrics
from holdfast.cli.session import load_runnable, scope, wait_ready, wait_shortly
from holdfast.cli.supervisor.process import Plan
from holdfast.cli.supervisor.reload import Reloader
from holdfast.cli.supervisor.supervisor import Report, Supervisor
from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.names import check_name
from holdfast.errors import InvalidSetting
from holdfast.worker.worker import WorkerOptions

LONGEST_SWEEP = 5.0


def worker(
    app: options.AppName,
    url: options.AppUrl = None,
    queues: options.Queues = options.ALL_QUEUES,
    concurrency: options.Concurrency = 16,
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes",
            metavar="N",
            min=1,
            max=256,
            help="Number of worker processes, each running --concurrency jobs at once.",
        ),
    ] = None,
    tenant: options.Served = None,
    all_tenants: options.ServeAll = False,
    lease: options.Lease = "30s",
    grace: Annotated[
        str, typer.Option("--grace", metavar="SPAN", help="Grace period for running jobs at shutdown.")
    ] = "30s",
    poll: Annotated[str, typer.Option("--poll", metavar="SPAN", help="Poll interval when idle.")] = "200ms",
    no_notify: Annotated[
        bool,
        typer.Option(
            "--no-notify", help="Poll only, without notifications; for transaction poolers such as PgBouncer."
        ),
    ] = False,
    executor: options.Executor = options.EXECUTOR,
    burst: Annotated[bool, typer.Option("--burst", help="Exit when no job is left to claim.")] = False,
    max_jobs: Annotated[
        int | None, typer.Option("--max-jobs", metavar="N", min=1, help="Exit after this many jobs per process.")
    ] = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="For development: restart when a project file changes.")
    ] = False,
    require_roles: Annotated[
        bool,
        typer.Option("--require-roles", help="Refuse a role that owns the tables or bypasses row-level security."),
    ] = False,
    log_level: options.LogLevel = options.Level.INFO,
    log_format: options.LogForm = None,
    metrics_port: options.MetricsPort = None,
    metrics_host: options.MetricsHost = options.LOOPBACK,
    as_json: Annotated[
        bool, typer.Option("--json", help="Log JSON lines and print a JSON summary at the end.")
    ] = False,
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

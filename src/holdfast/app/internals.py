"""The inside of an app, for the code above it: the server, the command line, integrations and the test kit.

They use these functions instead of private attributes of ``App``. Programs use ``App``.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from holdfast import config
from holdfast.app.approval_gate import approval_gate
from holdfast.app.fingerprint import fingerprint
from holdfast.app.handlers import Declared, HandlerTools, log_writer_for
from holdfast.app.repository import JobRepository
from holdfast.engine.job import DEFAULT_QUEUE, EVERY_TENANT
from holdfast.engine.names import check_name
from holdfast.engine.redaction import Redactor
from holdfast.engine.requirement import UNKNOWN_CODE, Code
from holdfast.errors import InvalidSetting, Refused
from holdfast.steps.driver import Reached, StepTools
from holdfast.stores.flow import in_thread
from holdfast.stores.requests import new_id
from holdfast.stores.session import Session
from holdfast.telemetry.logs import redact_with
from holdfast.worker import startup
from holdfast.worker.idle import SleepingWorker
from holdfast.worker.maintenance import MaintenanceTask
from holdfast.worker.options import TickKeywords, TickOptions, TickSummary
from holdfast.worker.processes.pool import Children
from holdfast.worker.retention import BATCHES, WORKER_JOBS, Archiving, delete_orphans
from holdfast.worker.startup import retry_briefly
from holdfast.worker.threads import Threads
from holdfast.worker.tick import Tick
from holdfast.worker.worker import Worker, WorkerOptions
from holdfast.worker.writers import StepWriter

if TYPE_CHECKING:
    from holdfast.app import App
    from holdfast.features.assembly import Store
    from holdfast.features.schedules.runs import Scheduler

log = logging.getLogger("holdfast.worker")


def session_of(app: App) -> Session:
    """The session of an app: its store, tenant and actor, and where its flows run."""
    return app._session


def kinds_of(app: App) -> dict[str, Declared]:
    """The kinds that the program declares, by name."""
    return app._make.declared


def all_kinds_of(app: App) -> Mapping[str, Declared]:
    """The kinds of the program, and the built-in ones."""
    return app._make.all


def scheduler_of(app: App) -> Scheduler:
    return app._scheduler


def schema_of(app: App) -> str:
    return app._schema


def host_loop_of(app: App) -> asyncio.AbstractEventLoop | None:
    """The loop of a web application that runs in this process now. The test kit runs jobs there."""
    return app._host_loop


def set_host_loop(app: App, loop: asyncio.AbstractEventLoop | None) -> None:
    app._host_loop = loop


def ready_redactor(app: App) -> Redactor:
    """Return the app's redactor after adding the secrets of the environment. Log lines use it too."""
    app._redactor.know(*app._redactor.in_environment(config.environment()), *config.key_values())
    redact_with(app._redactor)
    return app._redactor


# --- running jobs ---


def make_worker(app: App, options: WorkerOptions) -> Worker:
    options = _with_queues(app, options)
    check_pins(app)
    retry_briefly(app._session.make_ready)
    retry_briefly(partial(check_role, app))
    options = dataclasses.replace(options, tenant=retry_briefly(partial(tenant_to_serve, app, options.tenant)))
    retry_briefly(partial(sync_declarations, app, options.tenant))
    tools = handler_tools(app, options.tenant, options.concurrency)
    rules = app.payload_rules._cache(options.tenant).maintenance_task(options.tenant, options.promote_every)
    tasks = maintenance_tasks(app, options.tenant, options.promote_every, options.sweep_every)
    options = dataclasses.replace(options, extra_tasks=(*options.extra_tasks, *tasks, rules))
    code = code_of(app)
    return Worker(app._store, tools.handlers(app._make.all), options, on_leave=tools.aclose, code=code)


def make_runner(app: App, options: WorkerOptions) -> Worker | SleepingWorker:
    if options.idle_after is None:
        return make_worker(app, options)
    return SleepingWorker(app._store, partial(make_worker, app, options))


def run_worker(app: App, options: WorkerOptions) -> None:
    if not options.burst:
        startup.until_reachable(app._session.make_ready, app._store)

    async def serve() -> None:
        try:
            await make_runner(app, options).run()
        finally:
            await app._store.leave_loop()

    startup.run(serve())


async def run_tick(app: App, limit: int, stop: asyncio.Event | None, options: TickKeywords) -> TickSummary:
    if "queues" not in options:
        declared = queues_of(app)
        options["queues"] = declared
        if len(declared) > 1 and not options.get("weights"):
            options["weights"] = dict.fromkeys(declared, 1)
    tick_options = TickOptions.of(limit, **options)
    check_pins(app)
    await app._session.amake_ready()
    await in_thread(partial(check_role, app))
    tenant = await in_thread(tenant_to_serve, app, tick_options.tenant)
    tick_options = dataclasses.replace(tick_options, tenant=tenant)
    await in_thread(sync_declarations, app, tenant)
    tools = handler_tools(app, tenant, tick_options.concurrency)
    try:
        tasks = maintenance_tasks(app, tenant, 0, 0)
        handlers = tools.handlers(app._make.all)
        return await Tick(
            app._store, handlers, tick_options, stop=stop, extra_tasks=tasks, code=tools.code or UNKNOWN_CODE
        ).run()
    finally:
        await tools.aclose()


def blocking_tick(app: App, limit: int, options: TickKeywords) -> TickSummary:
    async def once() -> TickSummary:
        try:
            return await run_tick(app, limit, None, options)
        finally:
            await app._store.leave_loop()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return startup.run(once())
    raise InvalidSetting(
        "tick() would block the running event loop", code="running_loop", fix="Use await app.atick(…)."
    )


def make_repository(app: App, ttl: float, tenant: str | None) -> JobRepository:
    client = app._session
    client.make_ready()
    tenant = client.tenant if tenant is None else check_name(tenant, "tenant")
    return JobRepository(
        app._store,
        tenant=tenant,
        owner=client.actor,
        new_id=new_id,
        ttl=ttl,
        redact=ready_redactor(app),
        vault=client.vault,
        gate=approval_gate(client, tenant, app._make.declared, app._redactor, lambda: app._notifier),
    )


def handler_tools(
    app: App, tenant: str, concurrency: int, threads: Threads | None = None, reached: Reached | None = None
) -> HandlerTools:
    """Return the resources with which a worker runs the kinds of this app. Close it."""
    session, threads, children = app._session, threads or Threads(), Children(concurrency)
    serving = Session(
        app._store,
        tenant=tenant,
        name=session.name,
        actor=session.actor,
        home=session.home,
        vault=session.vault,
        hooks=app.hooks,
        version=session.version,
    )
    step_tools = StepTools(StepWriter(app._store, tenant), threads, lambda: app._notifier, reached)
    return HandlerTools(
        serving,
        threads,
        children,
        app._schema,
        app._make.child,
        step_tools,
        ready_redactor(app),
        app.payload_rules._cache(tenant),
        app.hooks,
        log_writer_for(serving),
        code_of(app),
    )


def code_of(app: App) -> Code:
    """Return what the workers of this app run."""
    version, kinds = app._session.version, app._make.declared
    pins = tuple(sorted(name for name, declared in kinds.items() if declared.pinned))
    return Code(version, fingerprint(version, {name: each.kind.function for name, each in kinds.items()}), pins)


def check_pins(app: App) -> None:
    """Raise ``InvalidSetting`` if started jobs of some kinds should stay with a version, and the application has
    none."""
    code = code_of(app)
    if code.pins and code.version is None:
        raise InvalidSetting(
            f"started jobs of {', '.join(code.pins)} stay with their version, and this application has none",
            code="version_required",
            fix=f"Pass App(version=…), or set {config.VERSION_VARIABLE}.",
        )


def maintenance_tasks(app: App, tenant: str, promote_every: float, sweep_every: float) -> tuple[MaintenanceTask, ...]:
    """Return the maintenance tasks that an app adds to those of a worker: fire schedules, archive jobs, and delete
    the files of removed jobs from the artifact store and from this host."""
    fire_schedules = app._scheduler.maintenance_task(tenant, promote_every)
    artifacts = app._session.vault.artifacts
    run = partial(delete_orphans, artifacts=artifacts, tenant=tenant, batches=BATCHES if sweep_every else 1)
    to_archive = None if artifacts is None else partial(app.archives.arun, limit=WORKER_JOBS, tenant=tenant)
    return (
        fire_schedules,
        MaintenanceTask("orphans", sweep_every, run=run, readies=False),
        MaintenanceTask("archives", sweep_every, run=Archiving(to_archive, tenant), readies=False),
    )


def sync_declarations(app: App, tenant: str) -> None:
    """Write the code's declarations to the database, except schedules: the task that fires them writes those."""
    app._scheduler.check_declared()
    sync_subscriptions(app)
    app.retention._sync_declarations(tenant)
    app.payload_rules._sync_declarations(tenant, app._notifier)


def sync_subscriptions(app: App) -> None:
    app._declared.sync(app._session)


def queues_of(app: App) -> tuple[str, ...]:
    """Return the queues that the code declares: the default one, and those of its kinds."""
    queues = {declared.kind.defaults.get("queue", DEFAULT_QUEUE) for declared in app._make.all.values()}
    return (DEFAULT_QUEUE, *sorted(queues - {DEFAULT_QUEUE}))


def _with_queues(app: App, options: WorkerOptions) -> WorkerOptions:
    """Without ``queues``, serve every declared queue, with equal weights, so that a backlog in one does not stop
    the others. With ``queues``, warn about declared ones that are missing: their jobs wait for another worker."""
    declared = queues_of(app)
    if not options.queues:
        weights = dict.fromkeys(declared, 1) if len(declared) > 1 else None
        return dataclasses.replace(options, queues=declared, weights=options.weights or weights)
    used = {declared.kind.defaults.get("queue", DEFAULT_QUEUE) for declared in app._make.declared.values()}
    if missing := sorted(used - set(options.queues)):
        log.warning(
            "This worker does not serve %s: jobs there wait for another worker. To serve every declared queue, "
            "leave out --queues (queues=…), or set it to all.",
            ", ".join(f"queue {queue}" for queue in missing),
        )
    return options


def tenant_to_serve(app: App, tenant: str) -> str:
    """Return the tenant; for a worker for all tenants, the one that its database login is pinned to, if any."""
    if tenant != EVERY_TENANT:
        return tenant
    pinned = app._store.run(app._store.tenants.pinned())
    if pinned is not None:
        log.info("The database login is pinned to tenant %s: serving its jobs only", pinned)
    return pinned or tenant


def check_role(app: App) -> None:
    """Check the database role before work starts.

    A role that owns the tables, or that row-level security does not apply to, could read and write everything. This
    is logged once; if the app is ``strict``, it raises ``Refused``.
    """
    if app._role_checked or app._store.embedded:
        return
    for concern in app._store.conditions():
        if concern.code != "role_too_powerful":
            continue
        if app._strict or config.is_strict():
            raise Refused(concern.says, code="role_too_powerful", fix=concern.fix)
        log.warning("%s. %s", concern.says, concern.fix)
    app._role_checked = True


@contextmanager
def moved_to(app: App, store: Store, schema: str) -> Iterator[None]:
    """Use another database within the block, with all kinds that are declared. For tests."""
    own_schema, app._schema = app._schema, schema
    app._session.move_to(store)
    try:
        yield
    finally:
        app._session.move_to(app._session.home)
        app._schema = own_schema

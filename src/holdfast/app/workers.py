"""The part of ``App`` that runs jobs: workers, ticks, and the repository for a loop of your own."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from functools import partial
from typing import Unpack

from holdfast import config
from holdfast.app.declarations import Declaring
from holdfast.app.enqueue import Enqueuing
from holdfast.app.handlers import HandlerTools, approval_gate, log_writer_for
from holdfast.app.repository import JobRepository
from holdfast.engine.job import DEFAULT_QUEUE, EVERY_TENANT
from holdfast.engine.names import check_name
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidSetting, Refused
from holdfast.steps.driver import Reached, StepTools
from holdfast.stores.flow import in_thread
from holdfast.stores.ids import new_id
from holdfast.stores.session import Session
from holdfast.worker import startup
from holdfast.worker.archiving import WORKER_JOBS, Archiving
from holdfast.worker.maintenance import BATCHES, MaintenanceTask, delete_orphans
from holdfast.worker.options import TickKeywords, TickOptions, TickSummary, WorkerKeywords
from holdfast.worker.processes.pool import Children
from holdfast.worker.startup import retry_briefly
from holdfast.worker.threads import Threads
from holdfast.worker.tick import Tick
from holdfast.worker.worker import Worker, WorkerOptions
from holdfast.worker.writers import StepWriter

log = logging.getLogger("holdfast.worker")


class Running(Declaring, Enqueuing):
    """The part of ``App`` that runs jobs."""

    _schema: str
    _strict: bool
    _role_checked = False

    def repository(self, *, ttl: Duration = 60.0, tenant: str | None = None) -> JobRepository:
        """Return a ``JobRepository``, to claim and settle jobs in a loop of your own instead of a worker.

        ``ttl`` is how long a claim lasts without another call. ``tenant`` is by default that of the app.
        """
        client = self._session
        client.make_ready()
        tenant = client.tenant if tenant is None else check_name(tenant, "tenant")
        return JobRepository(
            self._store,
            tenant=tenant,
            owner=client.actor,
            new_id=new_id,
            ttl=seconds(ttl, "ttl"),
            redact=self._ready_redactor(),
            vault=client.vault,
            gate=approval_gate(client, tenant, self._kinds, self._redactor, lambda: self._notifier),
        )

    def worker(self, options: WorkerOptions | None = None) -> Worker:
        """Return a worker for all kinds of this app. Run it with ``asyncio.run(worker.run())``.

        If the database is restarting, it waits. Most programs use ``holdfast worker`` or ``run_worker`` instead.
        """
        options = self._with_queues(options or WorkerOptions())
        retry_briefly(self._session.make_ready)
        retry_briefly(self._check_role)
        options = dataclasses.replace(options, tenant=retry_briefly(partial(self._tenant_to_serve, options.tenant)))
        retry_briefly(partial(self._sync_declarations, options.tenant))
        tools = self._handler_tools(options.tenant, options.concurrency)
        rules = self.payload_rules._cache(options.tenant).maintenance_task(options.tenant, options.promote_every)
        tasks = self._maintenance(options.tenant, options.promote_every, options.sweep_every)
        options = dataclasses.replace(options, extra_tasks=(*options.extra_tasks, *tasks, rules))
        return Worker(self._store, tools.handlers(self._all_kinds), options, on_leave=tools.aclose)

    def _queues(self) -> tuple[str, ...]:
        """Return the queues that the code declares: the default one, and those of its kinds."""
        queues = {declared.kind.defaults.get("queue", DEFAULT_QUEUE) for declared in self._all_kinds.values()}
        return (DEFAULT_QUEUE, *sorted(queues - {DEFAULT_QUEUE}))

    def _with_queues(self, options: WorkerOptions) -> WorkerOptions:
        """Without ``queues``, serve every declared queue, with equal weights, so that a backlog in one does not stop
        the others. With ``queues``, warn about declared ones that are missing: their jobs wait for another worker."""
        declared = self._queues()
        if not options.queues:
            weights = dict.fromkeys(declared, 1) if len(declared) > 1 else None
            return dataclasses.replace(options, queues=declared, weights=options.weights or weights)
        used = {declared.kind.defaults.get("queue", DEFAULT_QUEUE) for declared in self._kinds.values()}
        if missing := sorted(used - set(options.queues)):
            log.warning(
                "This worker does not serve %s: jobs there wait for another worker. To serve every declared queue, "
                "leave out --queues (queues=…), or set it to all.",
                ", ".join(f"queue {queue}" for queue in missing),
            )
        return options

    def _sync_declarations(self, tenant: str) -> None:
        """Write the code's declarations to the database, except schedules: the task that fires them writes those."""
        self._scheduler.check_declared()
        self._declared.sync(self._session)
        self.retention._sync_declarations(tenant)
        self.payload_rules._sync_declarations(tenant, self._notifier)

    def _maintenance(self, tenant: str, promote_every: float, sweep_every: float) -> tuple[MaintenanceTask, ...]:
        """Return the maintenance tasks that an app adds to those of a worker: fire schedules, archive jobs, and delete
        the files of removed jobs from the artifact store and from this host."""
        fire_schedules = self._scheduler.maintenance_task(tenant, promote_every)
        artifacts = self._session.vault.artifacts
        run = partial(delete_orphans, artifacts=artifacts, tenant=tenant, batches=BATCHES if sweep_every else 1)
        to_archive = None if artifacts is None else partial(self.archives.arun, limit=WORKER_JOBS, tenant=tenant)
        return (
            fire_schedules,
            MaintenanceTask("leftovers", sweep_every, run=run, readies=False),
            MaintenanceTask("archives", sweep_every, run=Archiving(to_archive, tenant), readies=False),
        )

    def _handler_tools(
        self, tenant: str, concurrency: int, threads: Threads | None = None, reached: Reached | None = None
    ) -> HandlerTools:
        """Return the resources with which a worker runs the kinds of this app. Close it."""
        session, threads, children = self._session, threads or Threads(), Children(concurrency)
        serving = Session(
            self._store,
            tenant=tenant,
            name=session.name,
            actor=session.actor,
            home=session.home,
            vault=session.vault,
            hooks=self.hooks,
        )
        step_tools = StepTools(StepWriter(self._store, tenant), threads, lambda: self._notifier, reached)
        return HandlerTools(
            serving,
            threads,
            children,
            self._schema,
            self._child,
            step_tools,
            self._ready_redactor(),
            self.payload_rules._cache(tenant),
            self.hooks,
            log_writer_for(serving),
        )

    def run_worker(self, **options: Unpack[WorkerKeywords]) -> None:
        """Run a worker in this thread until it is stopped; with ``burst=True``, until no job is left.

        ``WorkerOptions`` lists the options: ``app.run_worker(queues=("mail",), concurrency=32)``.
        """

        if not options.get("burst"):
            startup.until_reachable(self._session.make_ready, self._store)

        async def serve() -> None:
            try:
                await self.worker(WorkerOptions(**options)).run()
            finally:
                await self._store.leave_loop()

        startup.run(serve())

    def tick(self, limit: int = 10, **options: Unpack[TickKeywords]) -> TickSummary:
        """Run at most ``limit`` jobs that are due and return a summary. For cron and serverless hosts.

        Raises ``InvalidSetting`` on a running event loop: use ``await app.atick(…)`` there.
        """

        async def once() -> TickSummary:
            try:
                return await self.atick(limit, **options)
            finally:
                await self._store.leave_loop()

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return startup.run(once())
        raise InvalidSetting(
            "tick() would block the running event loop", code="running_loop", fix="Use await app.atick(…)."
        )

    async def atick(
        self, limit: int = 10, *, stop: asyncio.Event | None = None, **options: Unpack[TickKeywords]
    ) -> TickSummary:
        """Run at most ``limit`` jobs on the running event loop; see ``tick``.

        Set ``stop`` to end early: running jobs are released, as after the timeout.
        """
        if "queues" not in options:
            declared = self._queues()
            options["queues"] = declared
            if len(declared) > 1 and not options.get("weights"):
                options["weights"] = dict.fromkeys(declared, 1)
        tick_options = TickOptions.of(limit, **options)
        await self._session.amake_ready()
        await in_thread(self._check_role)
        tenant = await in_thread(self._tenant_to_serve, tick_options.tenant)
        tick_options = dataclasses.replace(tick_options, tenant=tenant)
        await in_thread(self._sync_declarations, tenant)
        tools = self._handler_tools(tenant, tick_options.concurrency)
        try:
            tasks = self._maintenance(tenant, 0, 0)
            handlers = tools.handlers(self._all_kinds)
            return await Tick(self._store, handlers, tick_options, stop=stop, extra_tasks=tasks).run()
        finally:
            await tools.aclose()

    def _tenant_to_serve(self, tenant: str) -> str:
        """Return the tenant; for a worker for all tenants, the one that its database login is pinned to, if any."""
        if tenant != EVERY_TENANT:
            return tenant
        pinned = self._store.run(self._store.tenants.pinned())
        if pinned is not None:
            log.info("The database login is pinned to tenant %s: serving its jobs only", pinned)
        return pinned or tenant

    def _check_role(self) -> None:
        """Check the database role before work starts.

        A role that owns the tables, or that row-level security does not apply to, could read and write everything. This
        is logged once; if the app is ``strict``, it raises ``Refused``.
        """
        if self._role_checked or self._store.embedded:
            return
        for concern in self._store.conditions():
            if concern.code != "role_too_powerful":
                continue
            if self._strict or config.is_strict():
                raise Refused(concern.says, code="role_too_powerful", fix=concern.fix)
            log.warning("%s. %s", concern.says, concern.fix)
        self._role_checked = True

"""Who runs the jobs: workers, a tick, or a loop of the program's own. A part of ``App``."""

from __future__ import annotations

import asyncio
import dataclasses
from functools import partial
from typing import Any, Unpack

from holdfast.app.admin import Operating
from holdfast.app.declarations import Declaring
from holdfast.app.enqueue import Enqueuing
from holdfast.app.handlers import HandlerTools
from holdfast.app.repository import JobRepository
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidSetting
from holdfast.features.events.operations import Subscriptions
from holdfast.steps.driver import Reached, StepTools
from holdfast.stores.flow import in_thread
from holdfast.stores.ids import new_id
from holdfast.stores.session import Session
from holdfast.worker import startup
from holdfast.worker.maintenance import BATCHES, MaintenanceTask, clear
from holdfast.worker.options import Ticking, TickOptions, TickSummary
from holdfast.worker.processes.pool import Children
from holdfast.worker.startup import when_there
from holdfast.worker.threads import Threads
from holdfast.worker.tick import Tick
from holdfast.worker.worker import Worker, WorkerOptions
from holdfast.worker.writers import StepWriter


class Running(Declaring, Enqueuing, Operating):
    schema: str
    subscriptions: Subscriptions

    def repository(self, *, ttl: Duration = 60.0) -> JobRepository:
        """For those who run their own loop: claim, mark_success, mark_failure."""
        self.client.make_ready()
        client = self.client
        return JobRepository(
            self.store,
            tenant=client.tenant,
            owner=client.actor,
            new_id=new_id,
            ttl=seconds(ttl, "ttl"),
            redact=self.knowing(),
            vault=client.vault,
        )

    def worker(self, options: WorkerOptions | None = None) -> Worker:
        """A worker for every kind declared here. Run it with ``asyncio.run(worker.run())``. A server that is just being
        restarted is waited for, here as there."""
        options = options or WorkerOptions()
        when_there(self.client.make_ready)
        when_there(self.check_role)
        when_there(partial(self.put_down, options.tenant))
        means = self.means(options.tenant, options.concurrency)
        rules = self.payload_rules.book.duty(options.tenant, options.promote_every)
        own = self.duties(options.tenant, options.promote_every, options.sweep_every)
        duties = (*options.extra_duties, *own, rules)
        options = dataclasses.replace(options, extra_duties=duties)
        return Worker(self.store, means.handlers(self.all_kinds), options, on_leave=means.aclose)

    def put_down(self, tenant: str) -> None:
        """Bring to the database what the code declares, except schedules: those the duty that fires them sees to."""
        self.declared.put_down(self.subscriptions)
        self.retention.put_down(tenant)
        self.payload_rules.put_down(tenant)

    def duties(self, tenant: str, promote_every: float, sweep_every: float) -> tuple[MaintenanceTask, ...]:
        """What an app adds to the duties of its store: its schedules fire, and what cleaned jobs had in its artifact
        store goes, if it has one."""
        fire = self.scheduler.duty(tenant, promote_every)
        artifacts = self.client.vault.artifacts
        if artifacts is None:
            return (fire,)
        run = partial(clear, artifacts=artifacts, tenant=tenant, batches=BATCHES if sweep_every else 1)
        return (fire, MaintenanceTask("leftovers", sweep_every, run=run, readies=False))

    def means(
        self, tenant: str, concurrency: int, threads: Threads | None = None, reached: Reached | None = None
    ) -> HandlerTools:
        """What a worker runs the kinds declared here with. It is to be closed."""
        own, threads, children = self.client, threads or Threads(), Children(concurrency)
        serving = Session(self.store, tenant=tenant, name=own.name, actor=own.actor, home=own.home, vault=own.vault)
        lent = StepTools(StepWriter(self.store, tenant), threads, lambda: self.notifier, reached)
        return HandlerTools(
            serving, threads, children, self.schema, self._child, lent, self.knowing(), self.payload_rules.book
        )

    def run_worker(self, **options: Any) -> None:
        """Run a worker in this thread until it ends; with ``burst=True`` until there is nothing left to do."""

        async def serve() -> None:
            try:
                await self.worker(WorkerOptions(**options)).run()
            finally:
                await self.store.leave_loop()

        startup.run(serve())

    def tick(self, limit: int = 10, **options: Unpack[Ticking]) -> TickSummary:
        """Run at most ``limit`` jobs here and now, and say what happened: for cron and serverless hosts."""

        async def once() -> TickSummary:
            try:
                return await self.atick(limit, **options)
            finally:
                await self.store.leave_loop()

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return startup.run(once())
        raise InvalidSetting(
            "tick() blocks, and there is an event loop running here", code="running_loop", fix="await app.atick(…)"
        )

    async def atick(
        self, limit: int = 10, *, stop: asyncio.Event | None = None, **options: Unpack[Ticking]
    ) -> TickSummary:
        """The same on the loop that is running. Setting ``stop`` hands back what runs, as if the time were up."""
        wanted = TickOptions.of(limit, **options)
        await self.client.amake_ready()
        await in_thread(self.check_role)
        await in_thread(self.put_down, wanted.tenant)
        means = self.means(wanted.tenant, wanted.concurrency)
        try:
            duties = self.duties(wanted.tenant, 0, 0)
            return await Tick(self.store, means.handlers(self.all_kinds), wanted, stop=stop, extra_duties=duties).run()
        finally:
            await means.aclose()

"""The maintenance tasks of a worker, run by the service: schedules fire, lapsed leases are reaped and the ledger is
sealed even if all workers are of other languages, or none is running.

Like every maintenance task, these are correct with any number of servers and workers at once, without a leader.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import random
from dataclasses import replace

from holdfast.app import App
from holdfast.errors import Refused, StoreUnavailable
from holdfast.stores.flow import NO_LIMIT, WaitLimit, patience_of
from holdfast.worker.maintenance import Maintenance
from holdfast.worker.options import WorkerOptions

log = logging.getLogger("holdfast.service")

RETRY_EVERY = 1.0


class BackgroundMaintenance:
    """Runs the maintenance tasks for ``tenant`` at the intervals of a worker, from ``begin`` to ``aclose``."""

    def __init__(self, app: App, tenant: str, patience: WaitLimit = NO_LIMIT) -> None:
        self._app, self.tenant, self._patience = app, tenant, patience
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        # A new context: no request caused this, so the ledger must not name a caller.
        self._task = asyncio.get_running_loop().create_task(self._run(), context=contextvars.Context())

    async def aclose(self) -> None:
        """Stop without cancelling: a statement under way completes, unless the database does not respond within the
        wait limit."""
        self._stopping.set()
        if self._task is not None:
            await self._patience.wait_for(self._task)

    async def _run(self) -> None:
        patience_of.set(self._patience)
        if not await self._is_allowed():
            return
        options = WorkerOptions(tenant=self.tenant)
        own = self._app._maintenance(self.tenant, options.promote_every, options.sweep_every)
        tasks = replace(options, extra_tasks=own).maintenance_tasks()
        # Nothing in this process waits for promoted jobs: the store notifies the workers.
        await Maintenance(self._app._store, tasks, self.tenant).run(self._stopping)

    async def _is_allowed(self) -> bool:
        """Whether the database role may run maintenance; logged once if not. Waits while the database is
        unreachable."""
        app = self._app
        while not self._stopping.is_set():
            try:
                await app._store.arun(app._store.leases.promote(1, self.tenant))
                await asyncio.to_thread(app._sync_declarations, self.tenant)
                return True
            except Refused as error:
                log.warning("Maintenance tasks are left to workers: %s", error)
                return False
            except StoreUnavailable as error:
                app._store.outage.failed(error)
            except Exception as error:
                log.warning("Maintenance cannot start, retrying: %s", error)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), RETRY_EVERY * random.uniform(0.8, 1.2))
        return False

"""What every worker does on the side, done by a service: schedules fire, lapsed leases are reaped and the ledger is
sealed also where all workers are of other languages, and while none of them asks for anything.

Correct with any number of servers and workers at once and no leader, as every duty is.
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

AGAIN = 1.0


class BackgroundMaintenance:
    """The duties for ``tenant``, at the pace of a worker, from ``begin`` to ``aclose``."""

    def __init__(self, app: App, tenant: str, patience: WaitLimit = NO_LIMIT) -> None:
        self._app, self.tenant, self._patience = app, tenant, patience
        self._leaving = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        # In a context of its own: nobody asked for it, so nobody is named in the ledger.
        self._task = asyncio.get_running_loop().create_task(self._run(), context=contextvars.Context())

    async def aclose(self) -> None:
        """Asked, not cancelled: a statement under way is let through, whatever it does is wanted; but a database that
        does not answer is not waited for when the patience is over."""
        self._leaving.set()
        if self._task is not None:
            await self._patience.outlast(self._task)

    async def _run(self) -> None:
        patience_of.set(self._patience)
        if not await self._may():
            return
        pace = WorkerOptions(tenant=self.tenant)
        own = self._app._maintenance(self.tenant, pace.promote_every, pace.sweep_every)
        duties = replace(pace, extra_duties=own).duties()
        # Nobody here waits for jobs that have become ready: the store notifies those who do.
        await Maintenance(self._app._store, duties, self.tenant).run(self._leaving)

    async def _may(self) -> bool:
        """Whether the service has a role that executes: said once, where it has not. A database that is away is waited
        for."""
        app = self._app
        while not self._leaving.is_set():
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
                await asyncio.wait_for(self._leaving.wait(), AGAIN * random.uniform(0.8, 1.2))
        return False

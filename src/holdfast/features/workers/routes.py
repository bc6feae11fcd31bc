"""``/workers``."""

from __future__ import annotations

from fastapi import Request

from holdfast.app import App
from holdfast.engine.job import EVERY_TENANT
from holdfast.features.health.statistics import WorkerStatus
from holdfast.features.tokens.model import Scope
from holdfast.features.workers.operations import named
from holdfast.server.auth import require_all_tenants
from holdfast.server.json_body import Router
from holdfast.server.parameters import NamePath, TheApp, allowed

router = Router(prefix="/workers", tags=["workers"])


@router.post("/{worker:path}/drain", dependencies=[allowed(Scope.OPERATE)], response_model=WorkerStatus)
async def drain_worker(request: Request, app: TheApp, worker: NamePath) -> WorkerStatus:
    """Ask a worker to claim no more jobs and to exit when its running jobs have finished, however long they take."""
    await _check(request, app, worker)
    return await app.workers.adrain(worker)


@router.post("/{worker:path}/stop", dependencies=[allowed(Scope.OPERATE)], response_model=WorkerStatus)
async def stop_worker(request: Request, app: TheApp, worker: NamePath) -> WorkerStatus:
    """Ask a worker to exit as after SIGTERM. Jobs that outlast its grace period are released to the queue."""
    await _check(request, app, worker)
    return await app.workers.astop(worker)


async def _check(request: Request, app: App, worker: str) -> None:
    """One tenant may not stop a worker that serves every tenant."""
    if any(running.tenant == EVERY_TENANT and named(running, worker) for running in await app.workers.alist()):
        require_all_tenants(request, Scope.OPERATE)

"""``app.workers``."""

from __future__ import annotations

from typing import Annotated

from holdfast.engine.declared import Help, http
from holdfast.engine.job import EVERY_TENANT, StopMode
from holdfast.engine.operation import Program, awaited, operation
from holdfast.errors import Conflict, NotFound
from holdfast.features.health.statistics import WorkerStatus
from holdfast.stores.flow import run
from holdfast.stores.namespace import StoreNamespace

_Workers = list[WorkerStatus]  # inside the class, `list` is an operation

MIN_PREFIX = 8
"""Characters of an id that are enough to name a worker."""
WorkerId = Annotated[str, Help("The worker's id, or its first eight characters (see: holdfast workers list).", "ID")]


class Workers(StoreNamespace):
    """Running workers. Each reads a request to end with its next heartbeat, a third of its lease (10 s by default)."""

    @operation
    @http("GET /workers", "read")
    def list(self) -> Program[_Workers]:
        """List running workers with their host, process, version, queues and running jobs, most recent heartbeat
        first."""
        return list((yield from run(self._store.health.workers(self._tenant))).workers)

    alist = awaited(list)

    @operation
    @http("POST /workers/{worker}/drain", "operate", by_hand=True)
    def drain(self, worker: WorkerId) -> Program[WorkerStatus]:
        """Ask a worker to claim no more jobs and to exit when its running jobs have finished, however long they take.

        ``worker`` is its id, the first eight or more characters of it, or the whole holder of its lease."""
        return (yield from self._request(worker, "drain"))

    adrain = awaited(drain)

    @operation
    @http("POST /workers/{worker}/stop", "operate", by_hand=True)
    def stop(self, worker: WorkerId) -> Program[WorkerStatus]:
        """Ask a worker to exit as after SIGTERM. Jobs that outlast its grace period are released to the queue."""
        return (yield from self._request(worker, "stop"))

    astop = awaited(stop)

    def _request(self, worker: str, mode: StopMode) -> Program[WorkerStatus]:
        current = yield from run(self._store.health.workers(self._tenant))
        matching = [running for running in current.workers if named(running, worker)]
        if len(matching) > 1:
            raise Conflict(
                f"{len(matching)} workers have an id that begins with {worker}",
                code="ambiguous_worker",
                fix="Give more characters of the id: holdfast workers list",
            )
        # One tenant may not stop a worker that serves every tenant: the scope of the session decides.
        scope = EVERY_TENANT if matching and matching[0].tenant == EVERY_TENANT else self._tenant
        request_stop = self._store.leases.request_stop
        if not matching or not (yield from run(request_stop(matching[0].holder, mode, self._actor, scope))):
            raise NotFound(
                f"No running worker has the id {worker}.", code="worker_not_found", fix="See: holdfast workers list"
            )
        return matching[0]


def named(worker: WorkerStatus, text: str) -> bool:
    """Whether ``text`` is the worker's holder, its id, or at least the first eight characters of its id."""
    return text in (worker.holder, worker.id) or (len(text) >= MIN_PREFIX and worker.id.startswith(text))

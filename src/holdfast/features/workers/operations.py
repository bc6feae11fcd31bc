"""``app.workers``."""

from __future__ import annotations

from holdfast.engine.job import EVERY_TENANT, StopMode
from holdfast.engine.operation import Program, awaited, operation
from holdfast.errors import Conflict, NotFound
from holdfast.features.health.statistics import WorkerPulse
from holdfast.stores.flow import run
from holdfast.stores.namespace import StoreNamespace

_Workers = list[WorkerPulse]  # inside the class the word is an operation

SHORTEST = 8
"""Characters of an id that are enough to name a worker."""


class Workers(StoreNamespace):
    """Running workers. Each reads a request to end with its next heartbeat, a third of its lease (10 s by default)."""

    @operation
    def list(self) -> Program[_Workers]:
        """Running workers, the last heartbeat first: host, process, version, queues and running jobs."""
        return list((yield from run(self._store.health.workers(self._tenant))).workers)

    alist = awaited(list)

    @operation
    def drain(self, worker: str) -> Program[WorkerPulse]:
        """Ask a worker to claim no more jobs and to exit when its running jobs have finished, however long they take.

        ``worker`` is its id, the first eight or more characters of it, or the whole holder of its lease."""
        return (yield from self._request(worker, "drain"))

    adrain = awaited(drain)

    @operation
    def stop(self, worker: str) -> Program[WorkerPulse]:
        """Ask a worker to exit as after SIGTERM: running jobs have its grace period, then they are released to the
        queue."""
        return (yield from self._request(worker, "stop"))

    astop = awaited(stop)

    def _request(self, worker: str, mode: StopMode) -> Program[WorkerPulse]:
        stands = yield from run(self._store.health.workers(self._tenant))
        found = [each for each in stands.workers if named(each, worker)]
        if len(found) > 1:
            raise Conflict(
                f"{len(found)} workers have an id that begins with {worker}",
                code="ambiguous_worker",
                fix="Give more characters of the id: holdfast workers list",
            )
        # A worker of every tenant is not one tenant's to stop: the scope of the session decides.
        scope = EVERY_TENANT if found and found[0].tenant == EVERY_TENANT else self._tenant
        asked = found and (yield from run(self._store.leases.request_stop(found[0].holder, mode, self._actor, scope)))
        if not asked:
            raise NotFound(
                f"No running worker has the id {worker}.", code="worker_not_found", fix="See: holdfast workers list"
            )
        return found[0]


def named(worker: WorkerPulse, text: str) -> bool:
    return text in (worker.holder, worker.id) or (len(text) >= SHORTEST and worker.id.startswith(text))

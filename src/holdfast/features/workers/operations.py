"""``app.workers``."""

from __future__ import annotations

from holdfast.engine.job import EVERY_TENANT, StopMode
from holdfast.engine.operation import Program, awaited, operation
from holdfast.errors import Conflict, NotFound
from holdfast.features.health.statistics import WorkerPulse
from holdfast.stores.flow import run
from holdfast.stores.namespace import StoreNamespace

_Workers = list[WorkerPulse]  # inside the class, `list` is an operation

MIN_PREFIX = 8
"""Characters of an id that are enough to name a worker."""


class Workers(StoreNamespace):
    """Running workers. Each reads a request to end with its next heartbeat, a third of its lease (10 s by default)."""

    @operation
    def list(self) -> Program[_Workers]:
        """Running workers, most recent heartbeat first: host, process, version, queues and running jobs."""
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
        pulse = yield from run(self._store.health.workers(self._tenant))
        matching = [running for running in pulse.workers if named(running, worker)]
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


def named(worker: WorkerPulse, text: str) -> bool:
    """Whether ``text`` is the worker's holder, its id, or at least the first eight characters of its id."""
    return text in (worker.holder, worker.id) or (len(text) >= MIN_PREFIX and worker.id.startswith(text))

"""Looking after workflows (DP-14), as ``app.workflows``: get, list, show, cancel, resume."""

from __future__ import annotations

from holdfast.engine.names import page_size
from holdfast.engine.settlement import storable
from holdfast.errors import Conflict, NotFound
from holdfast.features.workflows.model import Graph, Swept, Workflow
from holdfast.stores.flow import Flow
from holdfast.stores.port import Caller

_Workflows = list[Workflow]  # inside the class the word is a method


class Workflows:
    """Each call has two colours: the one that begins with ``a`` is awaited."""

    def __init__(self, caller: Caller, tenant: str | None = None) -> None:
        self._caller = caller
        self._tenant = tenant or caller.tenant

    def get(self, id: str) -> Workflow | None:
        return self._caller.run(self._caller.store.workflows.get(id, self._tenant))

    async def aget(self, id: str) -> Workflow | None:
        return await self._caller.arun(self._caller.store.workflows.get(id, self._tenant))

    def list(
        self, *, kind: str | None = None, over: bool | None = None, before: str | None = None, limit: int = 50
    ) -> _Workflows:
        """A page, newest first: all, those that are over, or the active ones. ``before`` is the last id of a page."""
        return self._caller.run(self._caller.store.workflows.list(self._tenant, kind, over, before, page_size(limit)))

    async def alist(
        self, *, kind: str | None = None, over: bool | None = None, before: str | None = None, limit: int = 50
    ) -> _Workflows:
        return await self._caller.arun(
            self._caller.store.workflows.list(self._tenant, kind, over, before, page_size(limit))
        )

    def show(self, id: str, *, limit: int | None = None) -> Graph:
        """A workflow with its jobs and who waits for whom; with a limit the first of its jobs."""
        return shown(id, self._caller.run(self._caller.store.workflows.graph(id, self._tenant, limit)))

    async def ashow(self, id: str, *, limit: int | None = None) -> Graph:
        return shown(id, await self._caller.arun(self._caller.store.workflows.graph(id, self._tenant, limit)))

    def cancel(self, id: str, *, reason: str | None = None) -> Swept:
        """Cancel all its jobs that have not ended, the running ones as well."""
        return accepted(self._caller.run(self._cancel(id, reason)))

    async def acancel(self, id: str, *, reason: str | None = None) -> Swept:
        return accepted(await self._caller.arun(self._cancel(id, reason)))

    def resume(self, id: str, *, reason: str | None = None) -> Swept:
        """Redrive its dead letters; what was held back behind them goes on when they have succeeded."""
        return accepted(self._caller.run(self._resume(id, reason)))

    async def aresume(self, id: str, *, reason: str | None = None) -> Swept:
        return accepted(await self._caller.arun(self._resume(id, reason)))

    def _cancel(self, id: str, reason: str | None) -> Flow[Swept]:
        return self._caller.store.workflows.cancel(id, storable(reason), self._caller.actor, self._tenant)

    def _resume(self, id: str, reason: str | None) -> Flow[Swept]:
        return self._caller.store.workflows.resume(id, storable(reason), self._caller.actor, self._tenant)


def found(id: str, workflow: Workflow | None) -> Workflow:
    if workflow is None:
        raise _nowhere(id)
    return workflow


def shown(id: str, graph: Graph | None) -> Graph:
    if graph is None:
        raise _nowhere(id)
    return graph


def _nowhere(id: str) -> NotFound:
    return NotFound(f"there is no workflow {id} in this tenant", code="workflow_not_found")


_WORDS = {
    "already_finished": "has no job that could be cancelled",
    "nothing_to_resume": "has no dead letter to resume from",
}


def accepted(swept: Swept) -> Swept:
    if swept.reason == "not_found":
        raise _nowhere(swept.id)
    if swept.refused:
        raise Conflict(f"workflow {swept.id} {_WORDS[swept.reason or '']}", code=swept.reason)
    return swept

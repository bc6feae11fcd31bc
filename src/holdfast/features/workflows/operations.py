"""``app.workflows``: get, list, graph, extend, cancel, resume."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.engine.names import page_size
from holdfast.engine.operation import Program, awaited, operation
from holdfast.engine.settlement import storable
from holdfast.errors import Conflict, InvalidSetting
from holdfast.features.workflows.model import Graph, Swept, Workflow
from holdfast.features.workflows.run import Extension, existing, not_found
from holdfast.stores.flow import run
from holdfast.stores.namespace import StoreNamespace
from holdfast.stores.session import Session

if TYPE_CHECKING:
    from holdfast.kind import Prepared

_Workflows = list[Workflow]  # inside the class, ``list`` is an operation


def _no_kinds(*_: object) -> Prepared[Any]:
    raise InvalidSetting("no kinds are declared: add jobs by the name of their kind", code="conflicting_options")


class Workflows(StoreNamespace):
    """Workflows that were started."""

    def __init__(self, session: Session, prepare: Callable[..., Prepared[Any]] = _no_kinds) -> None:
        """``prepare`` makes the jobs of an extension that are added by name."""
        super().__init__(session)
        self._session = session
        self._prepare = prepare

    @operation
    def get(self, id: str) -> Program[Workflow]:
        """The workflow, or ``NotFound``."""
        return existing(id, (yield from run(self._store.workflows.get(id, self._tenant))))

    aget = awaited(get)

    @operation
    def list(
        self, *, kind: str | None = None, over: bool | None = None, before: str | None = None, limit: int = 50
    ) -> Program[_Workflows]:
        """A page, newest first: all workflows, those that have ended (``over``), or the active ones. ``before`` is the
        last id of the previous page."""
        return (yield from run(self._store.workflows.list(self._tenant, kind, over, before, page_size(limit))))

    alist = awaited(list)

    @operation
    def graph(self, id: str, *, limit: int | None = None) -> Program[Graph]:
        """A workflow with its jobs and their dependencies; with a limit, the first of its jobs."""
        graph = yield from run(self._store.workflows.graph(id, self._tenant, limit))
        if graph is None:
            raise not_found(id)
        return graph

    agraph = awaited(graph)

    @operation
    def extend(self, id: str) -> Program[Extension]:
        """Add jobs to a workflow that has not ended: ``more = app.workflows.extend(id); more.add(…); more.start()``."""
        workflow = existing(id, (yield from run(self._store.workflows.get(id, self._tenant))))
        return Extension(self._session, self._tenant, self._prepare, workflow)

    aextend = awaited(extend)

    @operation
    def cancel(self, id: str, *, reason: str | None = None) -> Program[Swept]:
        """Cancel all its jobs that have not ended, also the running ones."""
        cancel = self._store.workflows.cancel(id, storable(reason), self._actor, self._tenant)
        return accepted((yield from run(cancel)))

    acancel = awaited(cancel)

    @operation
    def resume(self, id: str, *, reason: str | None = None) -> Program[Swept]:
        """Redrive its dead letters. Jobs held back behind them continue when they have succeeded."""
        resume = self._store.workflows.resume(id, storable(reason), self._actor, self._tenant)
        return accepted((yield from run(resume)))

    aresume = awaited(resume)


_REFUSALS = {
    "already_finished": "has no job that could be cancelled",
    "nothing_to_resume": "has no dead letter to resume from",
}


def accepted(swept: Swept) -> Swept:
    if swept.reason == "not_found":
        raise not_found(swept.id)
    if swept.refused:
        raise Conflict(f"workflow {swept.id} {_REFUSALS[swept.reason or '']}", code=swept.reason)
    return swept

"""``app.workflows``: get, list, graph, extend, cancel, resume."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from holdfast.engine.declared import Help, Most, http
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

WorkflowId = Annotated[str, Help("The workflow's id.", "ID", longest=100, parameter="workflow_id")]
Reason = Annotated[str | None, Help("The reason, recorded in the ledger.", longest=2_000)]

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
    @http("GET /workflows/{workflow_id}", "read", name="show_workflow")
    def get(self, id: WorkflowId) -> Program[Workflow]:
        """Show a workflow: its status and how many of its jobs are in which state."""
        return existing(id, (yield from run(self._store.workflows.get(id, self._tenant))))

    aget = awaited(get)

    @operation
    @http("GET /workflows", "read", page="id")
    def list(
        self,
        *,
        kind: Annotated[str | None, Help("Only workflows of this kind.", "NAME")] = None,
        over: Annotated[
            bool | None, Help("Only finished workflows, or only unfinished ones.", option="--over/--active")
        ] = None,
        before: Annotated[
            str | None, Help("Next page: the id of the last entry on this one.", "CURSOR", option="--after")
        ] = None,
        limit: Most = 50,
    ) -> Program[_Workflows]:
        """List workflows, newest first: all, only finished, or only unfinished ones."""
        return (yield from run(self._store.workflows.list(self._tenant, kind, over, before, page_size(limit))))

    alist = awaited(list)

    @operation
    @http("GET /workflows/{workflow_id}/graph", "read", name="workflow_graph", large=True)
    def graph(
        self, id: WorkflowId, *, limit: Annotated[int | None, Help("Only the first of its jobs.", low=1)] = None
    ) -> Program[Graph]:
        """Show a workflow with its jobs and their dependencies."""
        graph = yield from run(self._store.workflows.graph(id, self._tenant, limit))
        if graph is None:
            raise not_found(id)
        return graph

    agraph = awaited(graph)

    @operation
    @http("POST /workflows/{workflow_id}/jobs", "enqueue", tenant="one", by_hand=True)
    def extend(self, id: WorkflowId) -> Program[Extension]:
        """Add jobs to an unfinished workflow: ``more = app.workflows.extend(id); more.add(…); more.start()``."""
        workflow = existing(id, (yield from run(self._store.workflows.get(id, self._tenant))))
        return Extension(self._session, self._tenant, self._prepare, workflow)

    aextend = awaited(extend)

    @operation
    @http("POST /workflows/{workflow_id}/cancel", "operate", example={"reason": "wrong month"})
    def cancel(self, id: WorkflowId, *, reason: Reason = None) -> Program[Swept]:
        """Cancel all unfinished jobs of a workflow, including running ones."""
        cancel = self._store.workflows.cancel(id, storable(reason), self._actor, self._tenant)
        return accepted((yield from run(cancel)))

    acancel = awaited(cancel)

    @operation
    @http("POST /workflows/{workflow_id}/resume", "operate", example={"reason": "the disk is back"})
    def resume(self, id: WorkflowId, *, reason: Reason = None) -> Program[Swept]:
        """Resume a workflow by redriving its dead letters. Dependent jobs continue once they succeed."""
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

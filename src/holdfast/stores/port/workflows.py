"""The part of the port about jobs that wait for one another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.features.workflows.model import (
    EdgeSpec,
    Graph,
    NodeSpec,
    ParentResult,
    Started,
    Swept,
    Workflow,
    WorkflowSpec,
)
from holdfast.stores.flow import Flow


class WorkflowVerbs(Protocol):
    def start_workflow(self, spec: WorkflowSpec, tenant: str) -> Flow[Started]:
        """All its jobs, in one transaction; jobs with unmet parents wait from the beginning."""
        ...

    def add_to_workflow(
        self, workflow_id: str, nodes: Sequence[NodeSpec], edges: Sequence[EdgeSpec], actor: str, tenant: str
    ) -> Flow[Started]:
        """More jobs for a workflow that is not over."""
        ...

    def cancel_workflow(self, workflow_id: str, reason: str | None, actor: str, tenant: str) -> Flow[Swept]: ...
    def resume_workflow(self, workflow_id: str, reason: str | None, actor: str, tenant: str) -> Flow[Swept]:
        """Redrive its dead letters; what was held back behind them comes back with that."""
        ...

    def workflow(self, workflow_id: str, tenant: str) -> Flow[Workflow | None]: ...
    def workflows(
        self, tenant: str, kind: str | None = None, over: bool | None = None, before: str | None = None, limit: int = 50
    ) -> Flow[list[Workflow]]:
        """A page, newest first; ``before`` is the id of the last one of the page before."""
        ...

    def graph(self, workflow_id: str, tenant: str, limit: int | None = None) -> Flow[Graph | None]:
        """With a limit so many of its jobs, the first."""
        ...

    def named(self, workflow_id: str, names: Sequence[str], tenant: str) -> Flow[dict[str, str]]:
        """The ids of jobs of a workflow by their names there, of those that there are."""
        ...

    def parent_results(self, job_id: str, tenant: str) -> Flow[list[ParentResult]]:
        """Of the jobs that this one waits or waited for: where they are and what they returned."""
        ...

"""Workflows of a service: jobs that wait for one another, planned here and started as one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, Unpack

from holdfast.errors import InvalidSetting
from holdfast.features.workflows.model import Graph, OnFailure, Swept, Workflow
from holdfast.http.calls import JobOptions, new_key, prepared
from holdfast.http.colours import Noun, many, verb
from holdfast.http.runners import Items, Runner
from holdfast.http.wire import Steps, get, given, post, segment

C = TypeVar("C", bound=Runner)


@dataclass(frozen=True, slots=True)
class StartedWorkflow:
    """``jobs`` has the ids of its jobs by name; nothing where it was started before."""

    id: str
    tenant: str
    created: bool
    reason: str | None = None
    jobs: dict[str, str] = field(default_factory=dict)


class Workflows(Noun[C], Generic[C]):
    @verb
    def list(
        self, *, kind: str | None = None, over: bool | None = None, before: str | None = None, limit: int = 50
    ) -> Steps[list[Workflow]]:
        """Newest first: all, those that are over, or the active ones."""
        return (yield from self._some(Workflow, "/workflows", limit, before, kind=kind, over=over))

    @many
    def every(self, *, kind: str | None = None, over: bool | None = None) -> Items[Workflow]:
        """All of them, read page by page as you go."""
        yield from self._every(Workflow, "/workflows", kind=kind, over=over)

    @verb
    def show(self, id: str) -> Steps[Graph]:
        """A workflow with its jobs and who waits for whom."""
        return (yield from self._read(Graph, get(f"/workflows/{segment(id)}")))

    @verb
    def cancel(self, id: str, *, reason: str | None = None) -> Steps[Swept]:
        """Cancel all its jobs that have not ended, the running ones as well."""
        return (yield from self._read(Swept, post(f"/workflows/{segment(id)}/cancel", given(reason=reason))))

    @verb
    def resume(self, id: str, *, reason: str | None = None) -> Steps[Swept]:
        """Redrive its dead letters; what was held back behind them goes on when they have succeeded."""
        return (yield from self._read(Swept, post(f"/workflows/{segment(id)}/resume", given(reason=reason))))


class WorkflowPlan(Noun[C], Generic[C]):
    """``wf = client.workflow("publish"); a = wf.add("fetch", {"n": 7}); wf.add("render", after=a); wf.start()``."""

    def __init__(self, runner: C, path: str, options: dict[str, Any]) -> None:
        super().__init__(runner)
        self._path, self._options = path, options
        self._nodes: dict[str, dict[str, Any]] = {}
        self._edges: list[dict[str, Any]] = []

    def add(
        self,
        kind: str,
        payload: Any = None,
        *,
        name: str | None = None,
        after: str | Iterable[str] = (),
        on_failure: OnFailure | None = None,
        **options: Unpack[JobOptions],
    ) -> str:
        """A job, by whose name others may be ``after`` it; without one of its own it has a number beside its kind."""
        call = prepared(kind, payload, options)
        known = name or f"{kind}-{len(self._nodes) + 1}"
        if known in self._nodes:
            raise InvalidSetting(f"there is a job {known!r} in this workflow already", code="duplicate_name")
        self._nodes[known] = {"name": known, **call.body, **({} if call.own else {"key": call.key})}
        for parent in (after,) if isinstance(after, str) else after:
            self._edges.append(given(parent=parent, child=known, on_failure=on_failure))
        return known

    @verb
    def start(self) -> Steps[StartedWorkflow]:
        """All its jobs in one transaction. Under a key of its own it is started once, whatever is lost on the way."""
        body = {**self._options, "nodes": [*self._nodes.values()], "edges": self._edges}
        request = dataclasses.replace(post(self._path, body), repeatable="key" in self._options)
        return (yield from self._read(StartedWorkflow, request))


def new_plan(runner: C, kind: str, key: str | None, **options: Any) -> WorkflowPlan[C]:
    return WorkflowPlan(runner, "/workflows", given(kind=kind, key=key or new_key(), **options))


def more_of(runner: C, workflow_id: str) -> WorkflowPlan[C]:
    return WorkflowPlan(runner, f"/workflows/{segment(workflow_id)}/jobs", {})

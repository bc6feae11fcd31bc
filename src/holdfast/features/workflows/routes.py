"""HTTP routes of workflows: start from nodes and edges, extend, read, cancel, resume."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Query, Request, Response
from pydantic import BaseModel, ConfigDict, FailFast, Field

from holdfast.app import App
from holdfast.errors import InvalidSetting
from holdfast.features.tokens.model import Scope
from holdfast.features.workflows.model import (
    CallbackRecord,
    Edge,
    Fires,
    Graph,
    Node,
    OnFailure,
    Swept,
    Workflow,
    WorkflowStatus,
)
from holdfast.features.workflows.run import Extension, WorkflowPlan
from holdfast.server.bodies import Body, Enqueue, Text, WithReason
from holdfast.server.json_body import Router
from holdfast.server.parameters import (
    PAGE,
    After,
    Id,
    Limit,
    Page,
    TheApp,
    allowed,
    allowed_one_tenant,
    api_path,
    extended_model,
    extended_record,
)

router = Router(prefix="/workflows", tags=["workflows"])

MOST_NODES, MOST_EDGES, MOST_CALLBACKS = 1_000, 10_000, 100

ShownWorkflow: Any = extended_model(Workflow, "ShownWorkflow", status=WorkflowStatus)


class ShownGraph(BaseModel):
    """A workflow with its jobs and dependencies; ``parts`` has the status of each group."""

    workflow: ShownWorkflow
    nodes: list[Node]
    edges: list[Edge]
    parts: dict[str, WorkflowStatus]
    callbacks: list[CallbackRecord]


class AddNode(Enqueue, Body):
    name: Annotated[str, Field(max_length=200)] = Field(description="The name that edges use.")


class AddEdge(Body):
    """``child`` waits for ``parent``; both are names."""

    parent: Text
    child: Text
    on_failure: OnFailure | None = None


class AddCallback(Body):
    """A job to create once, when the workflow has ended, or ``step`` of it. Its payload gets the key ``result`` or
    ``failure``."""

    fires: Fires
    step: Text | None = Field(default=None, description="The name of a node; default: the whole workflow.")
    kind: Text
    payload: dict[str, Any] = Field(default_factory=dict, description="The other arguments.")


class AddJobs(Body):
    nodes: Annotated[list[AddNode], FailFast()] = Field(min_length=1, max_length=MOST_NODES)
    edges: Annotated[list[AddEdge], FailFast()] = Field(default_factory=list, max_length=MOST_EDGES)
    callbacks: Annotated[list[AddCallback], FailFast()] = Field(default_factory=list, max_length=MOST_CALLBACKS)


class StartWorkflow(AddJobs):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "kind": "publish",
                    "key": "issue-7",
                    "nodes": [{"name": "fetch", "kind": "fetch"}, {"name": "render", "kind": "render"}],
                    "edges": [{"parent": "fetch", "child": "render"}],
                }
            ]
        },
    )

    kind: Text
    key: Text | None = Field(default=None, description="Idempotency key: the same key starts one workflow.")
    on_failure: OnFailure | None = None
    correlation_id: Text | None = None


@dataclass(frozen=True, slots=True)
class StartedWorkflow:
    id: str
    tenant: str
    created: bool
    reason: str | None
    jobs: dict[str, str]
    """The ids of its jobs by name; empty if it was started before."""


@router.post(
    "",
    dependencies=[allowed_one_tenant(Scope.ENQUEUE)],
    status_code=201,
    response_model=StartedWorkflow,
    responses={200: {"model": StartedWorkflow, "description": "It was started before, under this key."}},
)
async def start_workflow(request: Request, response: Response, app: TheApp, body: StartWorkflow) -> StartedWorkflow:
    """Start a workflow: store all its jobs in one transaction. Dependent jobs start when their parents have ended."""
    options: dict[str, Any] = {name: getattr(body, name) for name in ("key", "on_failure", "correlation_id")}
    plan = app.workflow(body.kind, **{name: value for name, value in options.items() if value is not None})
    await asyncio.to_thread(_add_jobs, app, plan, body)
    started = await plan.astart()
    response.status_code = 201 if started.created else 200
    response.headers["location"] = api_path(request, f"/workflows/{started.id}")
    jobs = {name: job.spec.id for name, job in started.planned.items()} if started.created else {}
    return StartedWorkflow(started.id, started.tenant, started.created, started.reason, jobs)


def _add_jobs(app: App, plan: WorkflowPlan | Extension, body: AddJobs) -> None:
    """Add the nodes, edges and callbacks to a plan. Runs in a thread: there may be a thousand payloads to check."""
    known = {}
    for node in body.nodes:
        call = app.prepare(node.kind, node.payload, **node.options("name", "kind", "payload"))
        known[node.name] = plan.add(call, name=node.name)
    for edge in body.edges:
        if edge.child not in known:
            raise InvalidSetting(f"no job {edge.child!r} among the nodes", code="unknown_parent")
        parent = known.get(edge.parent, edge.parent)
        known[edge.child].wait_for(parent, on_failure=edge.on_failure)
    for callback in body.callbacks:
        if callback.step is not None and callback.step not in known:
            raise InvalidSetting(f"no job {callback.step!r} among the nodes", code="unknown_parent")
        step = None if callback.step is None else known[callback.step]
        plan.callback(callback.fires, step, callback.kind, (callback.payload,), {})


@router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[ShownWorkflow])
async def list_workflows(
    app: TheApp,
    kind: Annotated[str | None, Query(max_length=255)] = None,
    over: bool | None = None,
    after: After = None,
    limit: Limit = PAGE,
) -> Any:
    """List workflows, newest first: all, only finished, or only unfinished ones."""
    workflows = await app.workflows.alist(kind=kind, over=over, before=after, limit=limit + 1)
    items = [_shown(workflow) for workflow in workflows[:limit]]
    return {"items": items, "next": workflows[limit - 1].id if len(workflows) > limit else None}


@router.get("/{workflow_id}", dependencies=[allowed(Scope.READ)], response_model=ShownGraph)
async def show_workflow(app: TheApp, workflow_id: Id) -> Any:
    """Show a workflow, its jobs and their dependencies."""
    graph: Graph = await app.workflows.agraph(workflow_id)
    return {
        "workflow": _shown(graph.workflow),
        "nodes": graph.nodes,
        "edges": graph.edges,
        "parts": graph.parts(),
        "callbacks": graph.callbacks,
    }


@router.post(
    "/{workflow_id}/jobs",
    dependencies=[allowed_one_tenant(Scope.ENQUEUE)],
    status_code=201,
    response_model=StartedWorkflow,
)
async def extend_workflow(app: TheApp, workflow_id: Id, body: AddJobs) -> StartedWorkflow:
    """Add jobs to an unfinished workflow. Edges may name existing jobs as parents."""
    plan = await app.workflows.aextend(workflow_id)
    await asyncio.to_thread(_add_jobs, app, plan, body)
    added = await plan.astart()
    jobs = {name: job.spec.id for name, job in added.planned.items()}
    return StartedWorkflow(added.id, added.tenant, added.created, added.reason, jobs)


@router.post("/{workflow_id}/cancel", dependencies=[allowed(Scope.OPERATE)], response_model=Swept)
async def cancel_workflow(app: TheApp, workflow_id: Id, body: WithReason | None = None) -> Swept:
    """Cancel all unfinished jobs of the workflow."""
    return await app.workflows.acancel(workflow_id, reason=None if body is None else body.reason)


@router.post("/{workflow_id}/resume", dependencies=[allowed(Scope.OPERATE)], response_model=Swept)
async def resume_workflow(app: TheApp, workflow_id: Id, body: WithReason | None = None) -> Swept:
    """Resume a workflow by redriving its dead letters. Dependent jobs continue once they succeed."""
    return await app.workflows.aresume(workflow_id, reason=None if body is None else body.reason)


def _shown(workflow: Workflow) -> dict[str, Any]:
    return extended_record(workflow, status=workflow.status)

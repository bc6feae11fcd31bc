"""HTTP routes of workflows: start from nodes and edges, extend, read, cancel, resume."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import Request, Response
from pydantic import ConfigDict, FailFast, Field

from holdfast.app import App
from holdfast.errors import InvalidSetting
from holdfast.features.tokens.model import Scope
from holdfast.features.workflows.model import Fires, OnFailure, StartedWorkflow
from holdfast.features.workflows.operations import Workflows
from holdfast.features.workflows.run import Extension, WorkflowPlan
from holdfast.server.bodies import Body, Text
from holdfast.server.derived import routes
from holdfast.server.job_bodies import Enqueue
from holdfast.server.parameters import Id, TheApp, allowed_one_tenant, api_path

router = routes("workflows", Workflows)

MOST_NODES, MOST_EDGES, MOST_CALLBACKS = 1_000, 10_000, 100


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


@router.post(
    "/workflows",
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


@router.post(
    "/workflows/{workflow_id}/jobs",
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

"""Model of workflows: dependencies between jobs, and what the end of a job means for its descendants.

The consequences of all jobs that a command has moved are computed together, after the command.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from holdfast.engine.job import EVERY_TENANT, Verdict
from holdfast.engine.states import ACTIVE, State
from holdfast.features.workflows.model import BAD, NODE_STATUS, Edge, NodeStatus, Started, Swept, WorkflowSpec
from holdfast.stores.requests import OperatorAction
from tests.model.model_admission import LimitsModel
from tests.model.model_base import ModelJob

OVER = {"reason": "skipped: a job before it failed or was cancelled"}


@dataclass
class ModelFlow:
    spec: WorkflowSpec
    tenant: str
    edges: list[Edge]
    status: dict[str, NodeStatus]
    stopped_by: set[str] = field(default_factory=set)
    finished_at: datetime | None = None
    cancelled_at: datetime | None = None

    def unmet(self, job_id: str) -> int:
        return sum(edge.child == job_id and not edge.met for edge in self.edges)

    def descendants(self, jobs: Iterable[str]) -> set[str]:
        """Return the jobs that can no longer run after these, directly or not."""
        reached: set[str] = set()
        parents = set(jobs)
        while parents:
            waiting = [edge for edge in self.edges if not edge.met and edge.on_failure != "continue"]
            parents = {edge.child for edge in waiting if edge.parent in parents} - reached
            reached |= parents
        return reached

    def fatal(self, job_id: str) -> bool:
        own = {node.job.id for node in self.spec.nodes if node.fatal}
        return job_id in own or any(edge.parent == job_id and edge.on_failure == "stop" for edge in self.edges)


class WorkflowsModel(LimitsModel):
    def __init__(self, now: datetime) -> None:
        super().__init__(now)
        self.workflows: dict[str, ModelFlow] = {}
        self.moved: dict[str, str] = {}
        """Jobs that have changed state since the last `advance`, with the actor."""

    def step(self, job: ModelJob, event_type: str, actor: str, *rest: Any, **facts: Any) -> None:
        super().step(job, event_type, actor, *rest, **facts)
        job.held = False
        if job.spec.workflow_id in self.workflows and job.state not in (State.LEASED, State.IN_PROGRESS):
            self.moved[job.id] = actor

    def start_workflow(self, spec: WorkflowSpec, tenant: str) -> Started:
        edges = [Edge(edge.child, edge.parent, edge.on_failure, False) for edge in spec.edges]
        flow = ModelFlow(spec, tenant, edges, {node.job.id: NodeStatus.OPEN for node in spec.nodes})
        self.workflows[spec.id] = flow
        for node in spec.nodes:
            self.create(node.job, tenant)
            self.jobs[node.job.id].held = flow.unmet(node.job.id) > 0
        return Started(spec.id, True)

    def create(self, spec: Any, tenant: str) -> None:
        raise NotImplementedError

    def operate(self, operation: OperatorAction, ids: Sequence[str], *rest: Any) -> list[Verdict]:
        """Return the states afterwards: a job that was skipped behind a dead letter changes with it."""
        verdicts = super().operate(operation, ids, *rest)
        self.advance()
        return [each if each.state is None else replace(each, state=self.jobs[each.id].state) for each in verdicts]

    def cancel_workflow(self, flow_id: str, reason: str | None, actor: str, scope: str) -> Swept:
        flow = self.workflows.get(flow_id)
        if flow is None or scope not in (EVERY_TENANT, flow.tenant):
            return Swept(flow_id, 0, True, "not_found")
        active = [job_id for job_id in flow.status if self.jobs[job_id].state in ACTIVE]
        if not active:
            return Swept(flow_id, 0, True, "already_finished")
        self.operate("cancel", active, reason, actor, scope)
        flow.cancelled_at = flow.cancelled_at or self.now
        return Swept(flow_id, len(active), False, None)

    def resume_workflow(self, flow_id: str, reason: str | None, actor: str, scope: str) -> Swept:
        flow = self.workflows.get(flow_id)
        if flow is None or scope not in (EVERY_TENANT, flow.tenant):
            return Swept(flow_id, 0, True, "not_found")
        dead = [job_id for job_id, status in flow.status.items() if status is NodeStatus.DEAD]
        if not dead:
            return Swept(flow_id, 0, True, "nothing_to_resume")
        self.operate("redrive", dead, reason, actor, scope)
        return Swept(flow_id, len(dead), False, None)

    def advance(self) -> None:
        moved, self.moved = self.moved, {}
        for flow in self.workflows.values():
            ours = {job_id: actor for job_id, actor in moved.items() if job_id in flow.status}
            if ours:
                self._advance(flow, ours)
        self.moved = {}  # jobs that `_advance` cancelled keep the status "skipped"

    def _advance(self, flow: ModelFlow, moved: dict[str, str]) -> None:
        was, stopped = dict(flow.status), bool(flow.stopped_by)
        for job_id in moved:
            if was[job_id] is not NodeStatus.SKIPPED:
                flow.status[job_id] = NODE_STATUS.get(self.jobs[job_id].state, NodeStatus.OPEN)
        ended = {job_id for job_id in moved if flow.status[job_id] not in (was[job_id], NodeStatus.OPEN)}
        back = {job_id for job_id in moved if flow.status[job_id] is NodeStatus.OPEN is not was[job_id]}
        bad = {job_id for job_id in ended if flow.status[job_id] in BAD}
        skipped = {job_id for job_id in flow.descendants(bad) if flow.status[job_id] is NodeStatus.OPEN}
        flow.status |= dict.fromkeys(skipped, NodeStatus.SKIPPED)
        self._satisfy_edges(flow, ended | skipped)
        flow.stopped_by = (flow.stopped_by - back) | {job_id for job_id in bad if flow.fatal(job_id)}
        if back and not flow.stopped_by:
            self._restore_skipped(flow)
        if flow.stopped_by:
            new = [job_id for job_id in flow.status if not stopped or job_id in moved]
            self._hold(flow, [job_id for job_id in new if job_id not in back])
        self._release(flow)
        open_ = [job_id for job_id, status in flow.status.items() if status is NodeStatus.OPEN]
        flow.finished_at = None if open_ else flow.finished_at or self.now
        if ended and not open_ and NodeStatus.DEAD not in flow.status.values():
            for job_id, status in flow.status.items():
                if status is NodeStatus.SKIPPED and self.jobs[job_id].waiting:
                    self.step(self.jobs[job_id], "cancel", next(iter(moved.values())), OVER)

    def _satisfy_edges(self, flow: ModelFlow, ended: set[str]) -> None:
        """Mark the edges from ended jobs as met, where the end allows the child to run."""
        for n, edge in enumerate(flow.edges):
            good = flow.status[edge.parent] is NodeStatus.SUCCEEDED or edge.on_failure == "continue"
            if edge.parent in ended and good:
                flow.edges[n] = replace(edge, met=True)

    def _restore_skipped(self, flow: ModelFlow) -> None:
        """Reopen skipped jobs without a bad ancestor. A job that an operator ended while skipped stays ended."""
        over = [
            job_id
            for job_id, status in flow.status.items()
            if status in BAD or (status is NodeStatus.SKIPPED and not self.jobs[job_id].waiting)
        ]
        blocked = flow.descendants(over)
        for job_id, status in flow.status.items():
            if status is NodeStatus.SKIPPED and job_id not in blocked and self.jobs[job_id].waiting:
                flow.status[job_id] = NodeStatus.OPEN

    def _hold(self, flow: ModelFlow, jobs: Iterable[str]) -> None:
        """Hold the waiting jobs of a stopped workflow; running jobs continue until they wait."""
        for job_id in jobs:
            job = self.jobs[job_id]
            if flow.status[job_id] is NodeStatus.OPEN and job.waiting:
                flow.status[job_id] = NodeStatus.SKIPPED
                job.held, job.due_at = True, None

    def _release(self, flow: ModelFlow) -> None:
        for job_id, status in flow.status.items():
            job = self.jobs[job_id]
            if job.held and status is NodeStatus.OPEN and not flow.unmet(job_id):
                job.held = False
                later = job.run_at if job.run_at and job.run_at > self.now else None
                job.due_at = self.now if job.state is State.RETRY_WAITING else later

"""Workflows: the plan, the status, and how the status follows from the jobs. Pure.

The *status* of a job in a workflow is open, succeeded, failed, dead (a dead letter, which may be redriven), cancelled
or skipped. The database stores and counts statuses; ``derive`` computes them from the jobs and their dependencies
alone, and a test compares the two.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Literal, get_args

from holdfast.engine.bound_results import RESULT_MARK, rebound
from holdfast.engine.job import JobSpec
from holdfast.engine.states import State
from holdfast.errors import InvalidSetting

OnFailure = Literal["stop", "continue", "skip"]
"""What the failure of a job does to the jobs after it: *skip* them, *continue* with them, or *stop* the workflow."""

ON_FAILURE: tuple[OnFailure, ...] = get_args(OnFailure)


class WorkflowStatus(StrEnum):
    ACTIVE = "active"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    PARTIALLY_FAILED = "partially_failed"
    CANCELLED = "cancelled"


class NodeStatus(StrEnum):
    OPEN = "open"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DEAD = "dead"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


BAD = frozenset({NodeStatus.FAILED, NodeStatus.DEAD, NodeStatus.CANCELLED})
NODE_STATUS: Mapping[State, NodeStatus] = {
    State.SUCCEEDED: NodeStatus.SUCCEEDED,
    State.FAILED: NodeStatus.FAILED,
    State.DEAD_LETTER: NodeStatus.DEAD,
    State.CANCELLED: NodeStatus.CANCELLED,
}


# --- planning ---


@dataclass(frozen=True, slots=True)
class EdgeSpec:
    """``child`` waits for ``parent``; both are ids of jobs."""

    child: str
    parent: str
    on_failure: OnFailure


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """``fatal``: its failure stops the workflow."""

    job: JobSpec
    name: str
    part: str | None = None
    fatal: bool = False


Fires = Literal["success", "failure"]


@dataclass(frozen=True, slots=True)
class CallbackSpec:
    """A job that is created when ``step`` has ended so, or the workflow if ``step`` is None."""

    job: JobSpec
    fires: Fires
    step: str | None


@dataclass(frozen=True, slots=True)
class WorkflowFailure:
    """The argument of a failure callback: the job that failed first, and its error. ``step`` is its name in the
    workflow; a job that joined as a child of another has none. ``failed`` names every failed job, at most 100, the
    first to fail first; a job without a name by its id."""

    workflow_id: str
    workflow: str
    step: str | None
    job_id: str
    error_code: str | None
    error_message: str | None
    failed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowSpec:
    """A workflow about to be started, in one transaction."""

    id: str
    kind: str
    generator: str
    enqueued_by: str
    source_system: str
    nodes: tuple[NodeSpec, ...]
    edges: tuple[EdgeSpec, ...] = ()
    callbacks: tuple[CallbackSpec, ...] = ()
    on_failure: OnFailure = "skip"
    key: str | None = None
    plan_hash: str = ""
    correlation_id: str | None = None
    parent_id: str | None = None


@dataclass(frozen=True, slots=True)
class Addition:
    """More jobs for a workflow. Jobs that wait for ``behind``, a job of it, also wait for the new ones."""

    nodes: Sequence[NodeSpec]
    edges: Sequence[EdgeSpec] = ()
    callbacks: Sequence[CallbackSpec] = ()
    behind: str | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """The result of starting a workflow. ``created`` is False if one was started with the same key before, or if it was
    refused."""

    id: str
    created: bool
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class StartedWorkflow:
    """A workflow that was started over HTTP. ``jobs`` has the ids of its jobs by name; empty if it was started
    before."""

    id: str
    tenant: str
    created: bool
    reason: str | None
    jobs: dict[str, str]


@dataclass(frozen=True, slots=True)
class Swept:
    """The result of an operation on all jobs of a workflow. A refusal is returned, not raised."""

    id: str
    jobs: int
    refused: bool
    reason: str | None


def check_on_failure(value: object) -> OnFailure:
    if value not in ON_FAILURE:
        raise InvalidSetting(
            f"on_failure must be one of {', '.join(ON_FAILURE)}, not {value!r}", code="invalid_on_failure"
        )
    return value


def find_cycle(parents: Mapping[str, Sequence[str]]) -> list[str] | None:
    """The names along a cycle, the first one again at the end; None when there is none."""
    done: set[str] = set()
    for start in parents:
        path: list[str] = []
        on_path: dict[str, int] = {}
        stack = [(start, iter(parents.get(start, ())))]
        if start in done:
            continue
        path.append(start)
        on_path[start] = 0
        while stack:
            name, rest = stack[-1]
            following = next(rest, None)
            if following is None:
                stack.pop()
                path.pop()
                del on_path[name]
                done.add(name)
            elif following in on_path:
                # The walk goes from child to parent; people read the opposite order.
                return [*path[on_path[following] :], following][::-1]
            elif following not in done:
                on_path[following] = len(path)
                path.append(following)
                stack.append((following, iter(parents.get(following, ()))))
    return None


def plan_hash(
    nodes: Sequence[NodeSpec],
    edges: Iterable[EdgeSpec],
    on_failure: OnFailure,
    callbacks: Iterable[CallbackSpec] = (),
) -> str:
    """A hash of the plan without the ids of its jobs: the same plan with the same key is the same workflow."""
    names, digest = {}, hashlib.sha256(on_failure.encode())
    for node in nodes:
        names[node.job.id] = node.name
    for node in nodes:
        text = node.job.payload_hash or node.job.payload
        # Arguments that are results of other jobs are hashed by name: the ids are new each time.
        text = rebound(text, names) if RESULT_MARK in text else text
        digest.update(f"\n{node.name}\0{node.job.kind}\0{text}".encode())
    for line in sorted(f"{names[e.child]}\0{names.get(e.parent, e.parent)}\0{e.on_failure}" for e in edges):
        digest.update(f"\n{line}".encode())
    for callback in callbacks:
        step = "" if callback.step is None else names.get(callback.step, callback.step)
        digest.update(f"\n{callback.fires}\0{step}\0{callback.job.kind}".encode())
    return digest.hexdigest()


# --- reading ---


@dataclass(frozen=True, slots=True)
class Counts:
    open: int = 0
    succeeded: int = 0
    failed: int = 0
    dead: int = 0
    cancelled: int = 0
    skipped: int = 0

    @classmethod
    def of(cls, statuses: Iterable[NodeStatus]) -> Counts:
        counted = list(statuses)
        return cls(**{status.value: counted.count(status) for status in NodeStatus})

    def status(self, *, stopped: bool = False, cancelled: bool = False) -> WorkflowStatus:
        """``failed`` if a failure stopped the workflow or nothing succeeded; ``partially_failed`` if other jobs
        succeeded."""
        if self.open:
            return WorkflowStatus.ACTIVE
        if cancelled:
            return WorkflowStatus.CANCELLED
        if self.failed or self.dead:
            return WorkflowStatus.FAILED if stopped or not self.succeeded else WorkflowStatus.PARTIALLY_FAILED
        return WorkflowStatus.CANCELLED if self.cancelled or self.skipped else WorkflowStatus.SUCCEEDED


@dataclass(frozen=True, slots=True)
class Workflow:
    id: str
    tenant: str
    kind: str
    generator: str
    on_failure: OnFailure
    key: str | None
    correlation_id: str | None
    parent_id: str | None
    enqueued_by: str
    source_system: str
    created_at: datetime
    finished_at: datetime | None
    cancelled_at: datetime | None
    stopped: bool
    total: int
    open: int
    succeeded: int
    failed: int
    dead: int
    cancelled: int
    skipped: int

    SHOWN: ClassVar = {"status": WorkflowStatus}

    def described(self) -> dict[str, Any]:
        return {"status": self.status} | {each.name: getattr(self, each.name) for each in fields(self)}

    @property
    def counts(self) -> Counts:
        return Counts(self.open, self.succeeded, self.failed, self.dead, self.cancelled, self.skipped)

    @property
    def status(self) -> WorkflowStatus:
        return self.counts.status(stopped=self.stopped, cancelled=self.cancelled_at is not None)

    @property
    def over(self) -> bool:
        return self.status is not WorkflowStatus.ACTIVE


@dataclass(frozen=True, slots=True)
class Node:
    """A job of a workflow: its status, and the number of parents it still waits for. A job that joined as a child of
    another has no name."""

    job_id: str
    workflow_id: str
    name: str | None
    part: str | None
    status: str
    unmet: int
    kind: str
    queue: str
    state: State
    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    error_code: str | None
    error_message: str | None

    @property
    def label(self) -> str:
        return self.name or self.job_id


@dataclass(frozen=True, slots=True)
class Edge:
    child: str
    parent: str
    on_failure: OnFailure
    met: bool


@dataclass(frozen=True, slots=True)
class ParentResult:
    """A direct parent of a job, and its result."""

    job_id: str
    name: str | None
    kind: str
    state: State
    value: Any
    ref: str | None
    part: str | None = None


@dataclass(frozen=True, slots=True)
class CallbackRecord:
    """A callback of a workflow, or of the job ``step_id``. The job ``job_id`` exists once it has fired."""

    job_id: str
    step_id: str | None
    fires: Fires
    due_at: datetime | None
    fired_at: datetime | None


@dataclass(frozen=True, slots=True)
class Graph:
    """A workflow with its jobs in the order in which they were added, their dependencies, and its callbacks. ``parts``
    has the status of each group."""

    workflow: Workflow
    nodes: list[Node]
    edges: list[Edge]
    callbacks: list[CallbackRecord] = field(default_factory=list)

    SHOWN: ClassVar = {"parts": dict[str, WorkflowStatus]}

    def described(self) -> dict[str, Any]:
        return {
            "workflow": self.workflow.described(),
            "nodes": self.nodes,
            "edges": self.edges,
            "parts": self.parts(),
            "callbacks": self.callbacks,
        }

    def parts(self) -> dict[str, WorkflowStatus]:
        """The status of each group and sub-workflow, derived from its jobs."""
        statuses_of: dict[str, list[NodeStatus]] = {}
        for node in self.nodes:
            names = [] if node.part is None else node.part.split(".")
            for length in range(1, len(names) + 1):
                statuses_of.setdefault(".".join(names[:length]), []).append(NodeStatus(node.status))
        return {name: Counts.of(statuses).status() for name, statuses in statuses_of.items()}


def derive(states: Mapping[str, State], edges: Sequence[Edge], stopped: bool = False) -> dict[str, NodeStatus]:
    """The status of every job, computed from states and dependencies alone, for comparison with the database.

    In a stopped workflow, waiting jobs count as skipped; so do jobs that were cancelled behind a failed one.
    """
    status = {job: NODE_STATUS.get(state, NodeStatus.OPEN) for job, state in states.items()}
    children: dict[str, list[Edge]] = {}
    for edge in edges:
        children.setdefault(edge.parent, []).append(edge)
    reached = [job for job, value in status.items() if value in BAD]
    while reached:
        for edge in children.get(reached.pop(), ()):
            waits = not edge.met and edge.on_failure != "continue"
            if waits and status[edge.child] is not NodeStatus.SKIPPED:
                status[edge.child] = NodeStatus.SKIPPED
                reached.append(edge.child)
    if stopped:
        for job, value in status.items():
            if value is NodeStatus.OPEN and states[job] in (State.QUEUED, State.RETRY_WAITING):
                status[job] = NodeStatus.SKIPPED
    return status

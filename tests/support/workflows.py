"""Small workflows for tests of the stores, and a check that their stored state follows from their jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.engine.job import JobSpec
from holdfast.engine.outcome import Outcome
from holdfast.features.assembly import Store
from holdfast.features.workflows.model import (
    Addition,
    Counts,
    EdgeSpec,
    Graph,
    NodeSpec,
    NodeStatus,
    OnFailure,
    Started,
    WorkflowSpec,
    derive,
    find_cycle,
    plan_hash,
)
from tests.support.stores import DONE, TENANT, claim, new_id, open_lease, settle, spec

Drawn = Mapping[str, str | Sequence[str]]


class Flow:
    """A workflow given as ``{"b": "a", "c": ["a", "b"]}``: each name with the names it waits for."""

    def __init__(self, store: Store, drawn: Drawn, on_failure: OnFailure = "skip", **facts: Any) -> None:
        self.store = store
        self.on_failure = on_failure
        edges = facts.pop("edges", {})
        fields = facts.pop("fields", {})
        self.id = facts.pop("id", None) or new_id()
        self.ids = {name: new_id() for name in drawn}
        self.nodes, self.edges = self._plan(drawn, edges, fields)
        self.spec = WorkflowSpec(
            id=self.id,
            kind=facts.pop("kind", "publish"),
            generator="planner",
            enqueued_by="tester",
            source_system="tests",
            nodes=self.nodes,
            edges=self.edges,
            on_failure=on_failure,
            plan_hash=plan_hash(self.nodes, self.edges, on_failure),
            **facts,
        )

    def _plan(
        self, drawn: Drawn, edges: dict[str, OnFailure], fields: dict[str, Any]
    ) -> tuple[tuple[NodeSpec, ...], tuple[EdgeSpec, ...]]:
        after = {name: [p] if isinstance(p, str) and p else list(p) for name, p in drawn.items()}
        assert find_cycle(after) is None
        nodes = tuple(
            NodeSpec(self._job(name, fields.get(name, {})), name, fatal=self.on_failure == "stop") for name in drawn
        )
        drawn_edges = tuple(
            EdgeSpec(self.ids[name], self.ids[parent], edges.get(f"{parent}>{name}", self.on_failure))
            for name, parents in after.items()
            for parent in parents
        )
        return nodes, drawn_edges

    def _job(self, name: str, fields: dict[str, Any]) -> JobSpec:
        return spec(f"do.{name}", id=self.ids[name], workflow_id=self.id, **fields)

    def start(self, tenant: str = TENANT) -> Started:
        return self.store.run(self.store.workflows.start(self.spec, tenant))

    def add(self, drawn: Drawn, edges: dict[str, OnFailure] | None = None) -> Started:
        self.ids |= {name: new_id() for name in drawn}
        nodes, drawn_edges = self._plan(drawn, edges or {}, {})
        return self.store.run(self.store.workflows.extend(self.id, Addition(nodes, drawn_edges), "tester", TENANT))

    @property
    def graph(self) -> Graph:
        graph = self.store.run(self.store.workflows.graph(self.id, TENANT))
        assert graph is not None
        return graph

    def statuses(self) -> dict[str, str]:
        """The status of each job by name, checked against the states of the jobs."""
        graph = check(self.graph)
        return {node.label: node.status for node in graph.nodes}

    @property
    def status(self) -> str:
        return self.graph.workflow.status.value

    def run(self, *names: str, outcome: Outcome = DONE) -> list[str]:
        """Claim all claimable jobs (only those named, if any), settle them with `outcome`, and return their names."""
        kinds = tuple(f"do.{name}" for name in names) or None
        claims = claim(self.store, open_lease(self.store), 1000, kinds=kinds)
        if claims:
            assert settle(self.store, claims, outcome) == []
        check(self.graph)
        return sorted(job.kind.removeprefix("do.") for job in claims)

    def run_all(self) -> list[list[str]]:
        rounds = []
        while names := self.run():
            rounds.append(names)
        return rounds


def check(graph: Graph) -> Graph:
    """Check that the stored counts and statuses of a workflow follow from the states of its jobs."""
    workflow, stored = graph.workflow, {node.job_id: NodeStatus(node.status) for node in graph.nodes}
    assert workflow.counts == Counts.of(stored.values())
    assert workflow.total == len(graph.nodes)
    assert (workflow.finished_at is not None) == (workflow.open == 0)
    derived = derive({node.job_id: node.state for node in graph.nodes}, graph.edges, workflow.stopped)
    for node in graph.nodes:
        status, expected = stored[node.job_id], derived[node.job_id]
        # Only the stored status shows that a job was skipped before it was cancelled, or redriven while stopped.
        if node.state == "cancelled" and {status, expected} <= {NodeStatus.CANCELLED, NodeStatus.SKIPPED}:
            derived[node.job_id] = status
        if workflow.stopped and node.state == "queued" and status is NodeStatus.OPEN and not node.unmet:
            derived[node.job_id] = status
    assert stored == derived
    unmet = {node.job_id: 0 for node in graph.nodes}
    for edge in graph.edges:
        unmet[edge.child] += not edge.met
        if stored[edge.parent] is NodeStatus.SUCCEEDED:
            assert edge.met
    assert {node.job_id: node.unmet for node in graph.nodes} == unmet
    for node in graph.nodes:
        if node.status == "open" and node.unmet:
            assert node.state == "queued", node
    return graph

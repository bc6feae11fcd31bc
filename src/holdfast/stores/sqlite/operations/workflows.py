"""Workflows (DP-14): start, add to, cancel, resume. What their jobs' ends mean is worked out by triggers."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.engine.ids import parse_id
from holdfast.errors import InvalidInput, Refused
from holdfast.features.workflows.model import BAD, EdgeSpec, NodeSpec, Standing, Started, Swept, WorkflowSpec
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.sqlite.base import any_tenant, ids_json, sign, unsign
from holdfast.stores.sqlite.enqueue import add
from holdfast.stores.sqlite.jobs import OperatorVerbs

_START = (
    "INSERT INTO workflow (id, tenant, kind, generator, on_failure, key, plan_hash, correlation_id, parent_id,"
    " enqueued_by, source_system, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_OF_KEY = "SELECT id, plan_hash FROM workflow WHERE tenant = ? AND kind = ? AND key = ?"
_FIND = "SELECT tenant, finished_at IS NOT NULL, stopped FROM workflow WHERE id = :id AND (:any OR tenant = :tenant)"
_NODES = (
    "INSERT INTO node (job_id, tenant, workflow_id, name, part, fatal, standing, unmet) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_EDGES = "INSERT INTO dependency (child, parent, tenant, on_failure, met) VALUES (?, ?, ?, ?, ?)"
_STANDINGS = "SELECT job_id, standing FROM node WHERE workflow_id = ? AND job_id IN (SELECT value FROM json_each(?))"
_NAMED = "SELECT 1 FROM node WHERE workflow_id = ? AND name IN (SELECT value FROM json_each(?))"
_ACTIVE = (
    "SELECT s.id FROM node o CROSS JOIN job_state s ON s.id = o.job_id WHERE o.workflow_id = ?"
    " AND s.state IN ('queued', 'leased', 'in_progress', 'retry_waiting', 'waiting_for_approval') ORDER BY s.id"
)
_DEAD = "SELECT job_id FROM node WHERE workflow_id = ? AND standing = 'dead' ORDER BY job_id"
_COUNT = (
    "UPDATE workflow SET total = total + :total, open = open + :open, skipped = skipped + :total - :open,"
    " finished_at = CASE WHEN open + :open = 0 THEN :now END WHERE id = :id"
)
_CANCELLED = "UPDATE workflow SET cancelled_at = coalesce(cancelled_at, ?) WHERE id = ?"


class WorkflowVerbs(OperatorVerbs):
    @flow(tells=True)
    def start_workflow(self, spec: WorkflowSpec, tenant: str) -> Steps[Started]:
        now = yield from sign(spec.enqueued_by)
        known = [] if spec.key is None else (yield Statement(_OF_KEY, (tenant, spec.kind, spec.key)))
        if known:
            yield from unsign()
            same = known[0][1] == spec.plan_hash
            return Started(known[0][0], False, "duplicate_key" if same else "idempotency_conflict")
        facts = (spec.id, tenant, spec.kind, spec.generator, spec.on_failure, spec.key, spec.plan_hash)
        whose = (spec.correlation_id, spec.parent_id, spec.enqueued_by, spec.source_system, now)
        yield Statement(_START, (*facts, *whose))
        yield from _plan(spec.id, spec.nodes, spec.edges, tenant, now, stopped=False)
        yield from unsign()
        return Started(spec.id, True)

    @flow(tells=True)
    def add_to_workflow(
        self, workflow_id: str, nodes: Sequence[NodeSpec], edges: Sequence[EdgeSpec], actor: str, tenant: str
    ) -> Steps[Started]:
        flow_id = parse_id(workflow_id)
        now = yield from sign(actor)
        rows = yield Statement(_FIND, {"id": flow_id, "any": any_tenant(tenant), "tenant": tenant})
        reason = "not_found" if not rows else "workflow_over" if rows[0][1] else None
        if reason is None and (yield Statement(_NAMED, (flow_id, ids_json(node.name for node in nodes)))):
            reason = "name_taken"
        if reason is None:
            yield from _plan(flow_id, nodes, edges, rows[0][0], now, stopped=bool(rows[0][2]))
        yield from unsign()
        return Started(flow_id, reason is None, reason)

    @flow(tells=True)
    def cancel_workflow(self, workflow_id: str, reason: str | None, actor: str, tenant: str) -> Steps[Swept]:
        flow_id = parse_id(workflow_id)
        if not (yield Statement(_FIND, {"id": flow_id, "any": any_tenant(tenant), "tenant": tenant})):
            return Swept(flow_id, 0, True, "not_found")
        active = yield Statement(_ACTIVE, (flow_id,))
        if not active:
            return Swept(flow_id, 0, True, "already_finished")
        ids = [row[0] for row in active]
        verdicts = yield from self.operate("cancel", ids, reason, actor, tenant).start()
        now = yield from sign(actor)
        yield Statement(_CANCELLED, (now, flow_id))
        yield from unsign()
        return Swept(flow_id, sum(not verdict.refused for verdict in verdicts), False, None)

    @flow(tells=True)
    def resume_workflow(self, workflow_id: str, reason: str | None, actor: str, tenant: str) -> Steps[Swept]:
        flow_id = parse_id(workflow_id)
        if not (yield Statement(_FIND, {"id": flow_id, "any": any_tenant(tenant), "tenant": tenant})):
            return Swept(flow_id, 0, True, "not_found")
        ids = [row[0] for row in (yield Statement(_DEAD, (flow_id,)))]
        if not ids:
            return Swept(flow_id, 0, True, "nothing_to_resume")
        verdicts = yield from self.operate("redrive", ids, reason, actor, tenant).start()
        return Swept(flow_id, sum(not verdict.refused for verdict in verdicts), False, None)


def _plan(
    flow_id: str, nodes: Sequence[NodeSpec], edges: Sequence[EdgeSpec], tenant: str, now: int, *, stopped: bool
) -> Steps[None]:
    """Write down who waits for whom, then enqueue: the jobs find their nodes and wait from the beginning."""
    new = {node.job.id for node in nodes}
    old = sorted({edge.parent for edge in edges} - new)
    rows = (yield Statement(_STANDINGS, (flow_id, ids_json(old)))) if old else []
    stands = {job_id: Standing(standing) for job_id, standing in rows}
    if len(stands) < len(old):
        raise InvalidInput("a job can wait only for jobs of its own workflow", code="unknown_parent")
    behind = _behind(edges, stands)
    unmet = dict.fromkeys(new, 0)
    written = []
    for edge in edges:
        known = stands.get(edge.parent, Standing.OPEN)
        ended = known is not Standing.OPEN or edge.parent in behind
        met = known is Standing.SUCCEEDED or (edge.on_failure == "continue" and ended)
        unmet[edge.child] += not met
        written.append((edge.child, edge.parent, tenant, edge.on_failure, int(met)))
    yield Statement(_EDGES, written, many=True)
    standing = [Standing.SKIPPED if stopped or node.job.id in behind else Standing.OPEN for node in nodes]
    yield Statement(
        _NODES,
        [
            (node.job.id, tenant, flow_id, node.name, node.part, int(node.fatal), stand.value, unmet[node.job.id])
            for node, stand in zip(nodes, standing, strict=True)
        ],
        many=True,
    )
    counted = {"total": len(nodes), "open": standing.count(Standing.OPEN), "now": now, "id": flow_id}
    yield Statement(_COUNT, counted)
    answers = yield from add([node.job for node in nodes], tenant, now)
    refused = next((answer for answer in answers if not answer.created), None)
    if refused is not None:
        # All or nothing: a job that is refused takes the others with it.
        why = refused.detail or refused.reason
        raise Refused(f"a job of the workflow was refused: {why}", code="job_refused")


def _behind(edges: Sequence[EdgeSpec], stands: dict[str, Standing]) -> set[str]:
    """The new jobs that are behind something that failed."""
    if not any(standing in BAD or standing is Standing.SKIPPED for standing in stands.values()):
        return set()
    bad = {job_id for job_id, standing in stands.items() if standing in BAD or standing is Standing.SKIPPED}
    found: set[str] = set()
    while True:
        more = {e.child for e in edges if e.on_failure != "continue" and e.parent in bad | found} - found
        if not more:
            return found
        found |= more

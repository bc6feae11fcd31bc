"""Workflows on SQLite."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.engine.ids import parse_id
from holdfast.errors import InvalidInput, Refused
from holdfast.features.workflows.model import BAD, Addition, EdgeSpec, NodeStatus, Started, Swept, WorkflowSpec
from holdfast.features.workflows.store import WorkflowStore
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.postgres.codec import job_document, job_of
from holdfast.stores.sqlite.admission import maintenance_flow
from holdfast.stores.sqlite.base import SqlitePart, any_tenant, begin_write, end_write, ids_json
from holdfast.stores.sqlite.enqueue import add
from holdfast.stores.sqlite.insert_checks import capacity_refusal

if TYPE_CHECKING:
    from holdfast.stores.sqlite.jobs import SqliteJobs

_START = (
    "INSERT INTO holdfast_workflow (id, tenant, kind, generator, on_failure, key, plan_hash, correlation_id, parent_id,"
    " enqueued_by, source_system, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_OF_KEY = "SELECT id, plan_hash FROM holdfast_workflow WHERE tenant = ? AND kind = ? AND key = ?"
_GET = (
    "SELECT tenant, finished_at IS NOT NULL, stopped FROM holdfast_workflow WHERE id = :id AND (:any OR tenant ="
    " :tenant)"
)
_NODES = (
    "INSERT INTO holdfast_node (job_id, tenant, workflow_id, name, part, fatal, status, unmet) VALUES (?, ?, ?, ?,"
    " ?, ?, ?, ?)"
)
_EDGES = "INSERT INTO holdfast_dependency (child, parent, tenant, on_failure, met) VALUES (?, ?, ?, ?, ?)"
_STATUSES = (
    "SELECT job_id, status FROM holdfast_node WHERE workflow_id = ? AND job_id IN (SELECT value FROM json_each(?))"
)
_NAMED = "SELECT 1 FROM holdfast_node WHERE workflow_id = ? AND name IN (SELECT value FROM json_each(?))"
_ACTIVE = (
    "SELECT s.id FROM holdfast_node o CROSS JOIN holdfast_job_state s ON s.id = o.job_id WHERE o.workflow_id = ?"
    " AND s.state IN ('queued', 'leased', 'in_progress', 'retry_waiting', 'waiting_for_approval') ORDER BY s.id"
)
_DEAD = "SELECT job_id FROM holdfast_node WHERE workflow_id = ? AND status = 'dead' ORDER BY job_id"
_COUNT = (
    "UPDATE holdfast_workflow SET total = total + :total, open = open + :open, skipped = skipped + :total - :open,"
    " finished_at = CASE WHEN open + :open = 0 THEN :now END WHERE id = :id"
)
_CANCELLED = "UPDATE holdfast_workflow SET cancelled_at = coalesce(cancelled_at, ?) WHERE id = ?"


# They already wait for the job that adds these, so none can have been released.
_WAIT_FOR_NEW = (
    "INSERT INTO holdfast_dependency (child, parent, tenant, on_failure) SELECT d.child, v.value, d.tenant,"
    " d.on_failure FROM holdfast_dependency d CROSS JOIN json_each(:new) v WHERE d.parent = :behind AND d.tenant ="
    " :tenant AND d.met = 0"
)
_UNMET = (
    "UPDATE holdfast_node SET unmet = (SELECT count(*) FROM holdfast_dependency d WHERE d.child ="
    " holdfast_node.job_id AND d.met = 0) WHERE workflow_id = :flow AND job_id IN (SELECT child FROM"
    " holdfast_dependency WHERE parent = :behind AND met = 0)"
)
_CALLBACKS = (
    "INSERT INTO holdfast_callback (job_id, tenant, workflow_id, step_id, fires, document) VALUES (?, ?, ?, ?, ?, ?)"
)
_ANY_DUE = (
    "SELECT 1 FROM holdfast_callback WHERE due_at IS NOT NULL AND fired_at IS NULL AND due_at <= (SELECT now FROM"
    " holdfast_present)"
)
_DUE = (
    "SELECT job_id, tenant, document FROM holdfast_callback WHERE due_at IS NOT NULL AND fired_at IS NULL AND due_at"
    " <= :now AND (:any OR tenant = :tenant) ORDER BY due_at LIMIT :want"
)
_FIRED = "UPDATE holdfast_callback SET fired_at = ?, document = NULL WHERE job_id = ?"
_POSTPONE = "UPDATE holdfast_callback SET due_at = ? WHERE job_id = ?"
_RETRY_AFTER = 30_000_000  # microseconds


def _none_due(*_: object) -> Steps[int | None]:
    return None if (yield Statement(f"{_ANY_DUE} LIMIT 1")) else 0


class SqliteWorkflows(SqlitePart, WorkflowStore):
    def __init__(self, jobs: SqliteJobs) -> None:
        self._jobs = jobs

    @flow(notifies=True)
    def start(self, spec: WorkflowSpec, tenant: str) -> Steps[Started]:
        now = yield from begin_write(spec.enqueued_by)
        known = [] if spec.key is None else (yield Statement(_OF_KEY, (tenant, spec.kind, spec.key)))
        if known:
            yield from end_write()
            same = known[0][1] == spec.plan_hash
            return Started(known[0][0], False, "duplicate_key" if same else "idempotency_conflict")
        definition = (spec.id, tenant, spec.kind, spec.generator, spec.on_failure, spec.key, spec.plan_hash)
        origin = (spec.correlation_id, spec.parent_id, spec.enqueued_by, spec.source_system, now)
        yield Statement(_START, (*definition, *origin))
        yield from _plan(spec.id, Addition(spec.nodes, spec.edges, spec.callbacks), tenant, now, stopped=False)
        yield from end_write()
        return Started(spec.id, True)

    @flow(notifies=True)
    def extend(self, workflow_id: str, more: Addition, actor: str, tenant: str) -> Steps[Started]:
        flow_id = parse_id(workflow_id)
        now = yield from begin_write(actor)
        rows = yield Statement(_GET, {"id": flow_id, "any": any_tenant(tenant), "tenant": tenant})
        reason = "not_found" if not rows else "workflow_over" if rows[0][1] else None
        if reason is None and (yield Statement(_NAMED, (flow_id, ids_json(node.name for node in more.nodes)))):
            reason = "name_taken"
        if reason is None:
            yield from _plan(flow_id, more, rows[0][0], now, stopped=bool(rows[0][2]))
        yield from end_write()
        return Started(flow_id, reason is None, reason)

    @maintenance_flow(0, _none_due)
    def fire_callbacks(self, want: int, tenant: str) -> Steps[int]:
        now = yield from begin_write("workflows")
        count = 0
        for job_id, owner, job in (
            yield Statement(_DUE, {"now": now, "any": any_tenant(tenant), "tenant": tenant, "want": want})
        ):
            spec = job_of(json.loads(job))
            refused = yield from capacity_refusal(1, spec.kind, owner, now)
            try:
                created = refused is None and (yield from add([spec], owner, now))[0].created
            except Refused:  # paused, or its payload is not accepted: nothing was written
                created = False
            yield Statement(_FIRED, (now, job_id)) if created else Statement(_POSTPONE, (now + _RETRY_AFTER, job_id))
            count += created
        yield from end_write()
        return count

    @flow(notifies=True)
    def cancel(self, workflow_id: str, reason: str | None, actor: str, tenant: str) -> Steps[Swept]:
        flow_id = parse_id(workflow_id)
        if not (yield Statement(_GET, {"id": flow_id, "any": any_tenant(tenant), "tenant": tenant})):
            return Swept(flow_id, 0, True, "not_found")
        active = yield Statement(_ACTIVE, (flow_id,))
        if not active:
            return Swept(flow_id, 0, True, "already_finished")
        ids = [row[0] for row in active]
        verdicts = yield from self._jobs.operate("cancel", ids, reason, actor, tenant).start()
        now = yield from begin_write(actor)
        yield Statement(_CANCELLED, (now, flow_id))
        yield from end_write()
        return Swept(flow_id, sum(not verdict.refused for verdict in verdicts), False, None)

    @flow(notifies=True)
    def resume(self, workflow_id: str, reason: str | None, actor: str, tenant: str) -> Steps[Swept]:
        flow_id = parse_id(workflow_id)
        if not (yield Statement(_GET, {"id": flow_id, "any": any_tenant(tenant), "tenant": tenant})):
            return Swept(flow_id, 0, True, "not_found")
        ids = [row[0] for row in (yield Statement(_DEAD, (flow_id,)))]
        if not ids:
            return Swept(flow_id, 0, True, "nothing_to_resume")
        verdicts = yield from self._jobs.operate("redrive", ids, reason, actor, tenant).start()
        return Swept(flow_id, sum(not verdict.refused for verdict in verdicts), False, None)


def _plan(flow_id: str, more: Addition, tenant: str, now: int, *, stopped: bool) -> Steps[None]:
    """Write the dependencies, then enqueue: the jobs find their nodes and wait from the start."""
    nodes, edges = more.nodes, more.edges
    new = {node.job.id for node in nodes}
    old = sorted({edge.parent for edge in edges} - new)
    rows = (yield Statement(_STATUSES, (flow_id, ids_json(old)))) if old else []
    statuses = {job_id: NodeStatus(status) for job_id, status in rows}
    if len(statuses) < len(old):
        raise InvalidInput("a job can wait only for jobs of its own workflow", code="unknown_parent")
    behind = _behind(edges, statuses)
    unmet = dict.fromkeys(new, 0)
    dependencies = []
    for edge in edges:
        known = statuses.get(edge.parent, NodeStatus.OPEN)
        ended = known is not NodeStatus.OPEN or edge.parent in behind
        met = known is NodeStatus.SUCCEEDED or (edge.on_failure == "continue" and ended)
        unmet[edge.child] += not met
        dependencies.append((edge.child, edge.parent, tenant, edge.on_failure, int(met)))
    yield Statement(_EDGES, dependencies, many=True)
    status = [NodeStatus.SKIPPED if stopped or node.job.id in behind else NodeStatus.OPEN for node in nodes]
    yield Statement(
        _NODES,
        [
            (node.job.id, tenant, flow_id, node.name, node.part, int(node.fatal), status.value, unmet[node.job.id])
            for node, status in zip(nodes, status, strict=True)
        ],
        many=True,
    )
    if more.behind is not None:
        behind_it = {"behind": parse_id(more.behind), "new": ids_json(node.job.id for node in nodes), "tenant": tenant}
        yield Statement(_WAIT_FOR_NEW, behind_it)
        yield Statement(_UNMET, {"behind": behind_it["behind"], "flow": flow_id})
    if more.callbacks:
        callbacks = [(c.job.id, tenant, flow_id, c.step, c.fires, job_document(c.job)) for c in more.callbacks]
        yield Statement(_CALLBACKS, callbacks, many=True)
    counts = {"total": len(nodes), "open": status.count(NodeStatus.OPEN), "now": now, "id": flow_id}
    yield Statement(_COUNT, counts)
    answers = yield from add([node.job for node in nodes], tenant, now)
    refused = next((answer for answer in answers if not answer.created), None)
    if refused is not None:
        # All or nothing: one refused job refuses the others.
        why = refused.detail or refused.reason
        raise Refused(f"a job of the workflow was refused: {why}", code="job_refused")


def _behind(edges: Sequence[EdgeSpec], statuses: dict[str, NodeStatus]) -> set[str]:
    """The new jobs that are behind a failed one."""
    bad = {job_id for job_id, status in statuses.items() if status in BAD or status is NodeStatus.SKIPPED}
    behind: set[str] = set()
    while bad:
        more = {e.child for e in edges if e.on_failure != "continue" and e.parent in bad | behind} - behind
        if not more:
            break
        behind |= more
    return behind

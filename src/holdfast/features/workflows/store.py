"""Workflows in the database: port, shared reads, PostgreSQL and SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from holdfast.engine.ids import parse_id
from holdfast.engine.states import state_of
from holdfast.errors import InvalidInput, Refused
from holdfast.features.workflows.model import (
    BAD,
    Edge,
    EdgeSpec,
    Graph,
    Node,
    NodeSpec,
    ParentResult,
    Standing,
    Started,
    Swept,
    Workflow,
    WorkflowSpec,
)
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Flow, Row, Statement, Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.postgres.base import Calls
from holdfast.stores.postgres.codec import plan_document, start_document
from holdfast.stores.reader import within
from holdfast.stores.sqlite.base import SqlitePart, any_tenant, ids_json, sign, unsign
from holdfast.stores.sqlite.enqueue import add

if TYPE_CHECKING:
    from holdfast.stores.port import JobStore


class WorkflowStore(Protocol):
    def start(self, spec: WorkflowSpec, tenant: str) -> Flow[Started]:
        """All its jobs, in one transaction; jobs with unmet parents wait from the beginning."""
        ...

    def extend(
        self, workflow_id: str, nodes: Sequence[NodeSpec], edges: Sequence[EdgeSpec], actor: str, tenant: str
    ) -> Flow[Started]:
        """More jobs for a workflow that is not over."""
        ...

    def cancel(self, workflow_id: str, reason: str | None, actor: str, tenant: str) -> Flow[Swept]: ...

    def resume(self, workflow_id: str, reason: str | None, actor: str, tenant: str) -> Flow[Swept]:
        """Redrive its dead letters; what was held back behind them comes back with that."""
        ...

    def get(self, workflow_id: str, tenant: str) -> Flow[Workflow | None]: ...

    def graph(self, workflow_id: str, tenant: str, limit: int | None = None) -> Flow[Graph | None]:
        """With a limit so many of its jobs, the first."""
        ...

    def named(self, workflow_id: str, names: Sequence[str], tenant: str) -> Flow[dict[str, str]]:
        """The ids of jobs of a workflow by their names there, of those that there are."""
        ...

    def parent_results(self, job_id: str, tenant: str) -> Flow[list[ParentResult]]:
        """Of the jobs that this one waits or waited for: where they are and what they returned."""
        ...

    def list(
        self, tenant: str, kind: str | None = None, over: bool | None = None, before: str | None = None, limit: int = 50
    ) -> Flow[list[Workflow]]:
        """A page, newest first; ``before`` is the id of the last one of the page before."""
        ...


MOST = 1000
EDGES = 10  # as many for each job are read where not all are
OWN = ("job_id", "workflow_id", "name", "part", "standing", "unmet")
NODE_COLUMNS = ", ".join(f"{'n' if name in OWN else 's'}.{name}" for name in Record.columns(Node).split(", "))


class WorkflowReads(Reader):
    @flow(writes=False)
    def get(self, workflow_id: str, tenant: str) -> Steps[Workflow | None]:
        own = within(tenant, "w.tenant")
        text = f"select {Record.columns(Workflow, 'w.')} from {{workflow}} w where w.id = :id and {own}"
        rows = yield from self._ask(tenant, text, id=parse_id(workflow_id))
        return Record.decoder(Workflow, self.dialect.codec)(rows[0]) if rows else None

    @flow(writes=False)
    def graph(self, workflow_id: str, tenant: str, limit: int | None = None) -> Steps[Graph | None]:
        found = yield from self.get(workflow_id, tenant).start()
        if found is None:
            return None
        text = (
            f"select {NODE_COLUMNS} from {{node}} n join {{job_state}} s on s.id = n.job_id"
            f" where n.workflow_id = :id and {within(tenant, 'n.tenant')} order by n.job_id{_first(limit)}"
        )
        rows = yield from self._ask(tenant, text, id=found.id)
        decode = Record.decoder(Node, self.dialect.codec)
        nodes = [decode(row) for row in rows]
        text = (
            f"select d.child, d.parent, d.on_failure, d.met from {{node}} n join {{dependency}} d on d.child = n.job_id"
            f" where n.workflow_id = :id and {within(tenant, 'n.tenant')} order by d.child, d.parent"
            f"{_first(None if limit is None else limit * EDGES)}"
        )
        rows = yield from self._ask(tenant, text, id=found.id)
        identity = self.dialect.codec.id
        return Graph(found, nodes, [Edge(identity(c), identity(p), why, bool(met)) for c, p, why, met in rows])

    @flow(writes=False)
    def named(self, workflow_id: str, names: Sequence[str], tenant: str) -> Steps[dict[str, str]]:
        found: dict[str, str] = {}
        own = within(tenant, "n.tenant")
        text = f"select n.job_id from {{node}} n where n.workflow_id = :id and n.name = :name and {own}"
        for name in names:
            rows = yield from self._ask(tenant, text, id=parse_id(workflow_id), name=name)
            if rows:
                found[name] = self.dialect.codec.id(rows[0][0])
        return found

    @flow(writes=False)
    def parent_results(self, job_id: str, tenant: str) -> Steps[list[ParentResult]]:
        text = (
            "select d.parent, n.name, s.kind, s.state, r.value, r.ref from {dependency} d"
            " join {node} n on n.job_id = d.parent join {job_state} s on s.id = d.parent"
            f" left join {{result}} r on r.job_id = d.parent where d.child = :id and {within(tenant, 'd.tenant')}"
            " order by d.parent"
        )
        rows = yield from self._ask(tenant, text, id=parse_id(job_id))
        codec = self.dialect.codec
        return [
            ParentResult(codec.id(i), name, kind, state_of(state), None if value is None else codec.json(value), ref)
            for i, name, kind, state, value, ref in rows
        ]

    @flow(writes=False)
    def list(
        self, tenant: str, kind: str | None = None, over: bool | None = None, before: str | None = None, limit: int = 50
    ) -> Steps[list[Workflow]]:
        conditions = [within(tenant, "w.tenant")]
        if kind is not None:
            conditions.append("w.kind = :kind")
        if over is not None:
            conditions.append(f"w.finished_at is {'not ' if over else ''}null")
        if before is not None:
            conditions.append("w.id < :before")
        text = (
            f"select {Record.columns(Workflow, 'w.')} from {{workflow}} w where {' and '.join(conditions)}"
            f" order by w.id desc limit {max(1, min(limit, MOST)):d}"
        )
        place = None if before is None else parse_id(before)
        rows = yield from self._ask(tenant, text, kind=kind, before=place)
        decode = Record.decoder(Workflow, self.dialect.codec)
        return [decode(row) for row in rows]


def _first(limit: int | None) -> str:
    return "" if limit is None else f" limit {max(1, limit):d}"


class PostgresWorkflows(Calls, WorkflowReads):
    def _start_again(self, spec: WorkflowSpec, tenant: str) -> Steps[Started]:
        """The id is ours: if the first try came through, it is found by it."""
        yield self._call("enter", "%s", tenant)
        there = yield Statement(f"select from {self._s}workflow where id = %s and tenant = %s", (spec.id, tenant))
        if there:
            return Started(spec.id, True)
        return (yield from self.start(spec, tenant).start())

    @flow(single=True, repeat=_start_again)
    def start(self, spec: WorkflowSpec, tenant: str) -> Steps[Started]:
        rows = yield self._call("start_workflow", "%s::json, %s, %s", start_document(spec), tenant, spec.enqueued_by)
        return _started(rows[0])

    @flow(single=True)
    def extend(
        self, workflow_id: str, nodes: Sequence[NodeSpec], edges: Sequence[EdgeSpec], actor: str, tenant: str
    ) -> Steps[Started]:
        document = plan_document(nodes, edges)
        rows = yield self._call(
            "add_to_workflow", "%s, %s::json, %s, %s", parse_id(workflow_id), document, tenant, actor
        )
        return _started(rows[0])

    @flow(single=True)
    def cancel(self, workflow_id: str, reason: str | None, actor: str, tenant: str) -> Steps[Swept]:
        rows = yield self._call("cancel_workflow", "%s, %s, %s, %s", parse_id(workflow_id), reason, actor, tenant)
        return _swept(rows[0])

    @flow(single=True)
    def resume(self, workflow_id: str, reason: str | None, actor: str, tenant: str) -> Steps[Swept]:
        rows = yield self._call("resume_workflow", "%s, %s, %s, %s", parse_id(workflow_id), reason, actor, tenant)
        return _swept(rows[0])


def _started(row: Row) -> Started:
    return Started(str(row[0]), row[1], row[2])


def _swept(row: Row) -> Swept:
    return Swept(str(row[0]), row[1], row[2], row[3])


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


class SqliteWorkflows(SqlitePart, WorkflowReads):
    def __init__(self, jobs: JobStore) -> None:
        self._jobs = jobs

    @flow(tells=True)
    def start(self, spec: WorkflowSpec, tenant: str) -> Steps[Started]:
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
    def extend(
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
    def cancel(self, workflow_id: str, reason: str | None, actor: str, tenant: str) -> Steps[Swept]:
        flow_id = parse_id(workflow_id)
        if not (yield Statement(_FIND, {"id": flow_id, "any": any_tenant(tenant), "tenant": tenant})):
            return Swept(flow_id, 0, True, "not_found")
        active = yield Statement(_ACTIVE, (flow_id,))
        if not active:
            return Swept(flow_id, 0, True, "already_finished")
        ids = [row[0] for row in active]
        verdicts = yield from self._jobs.operate("cancel", ids, reason, actor, tenant).start()
        now = yield from sign(actor)
        yield Statement(_CANCELLED, (now, flow_id))
        yield from unsign()
        return Swept(flow_id, sum(not verdict.refused for verdict in verdicts), False, None)

    @flow(tells=True)
    def resume(self, workflow_id: str, reason: str | None, actor: str, tenant: str) -> Steps[Swept]:
        flow_id = parse_id(workflow_id)
        if not (yield Statement(_FIND, {"id": flow_id, "any": any_tenant(tenant), "tenant": tenant})):
            return Swept(flow_id, 0, True, "not_found")
        ids = [row[0] for row in (yield Statement(_DEAD, (flow_id,)))]
        if not ids:
            return Swept(flow_id, 0, True, "nothing_to_resume")
        verdicts = yield from self._jobs.operate("redrive", ids, reason, actor, tenant).start()
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

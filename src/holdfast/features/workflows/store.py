"""Workflows in the database: port, shared reads, PostgreSQL and SQLite."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from holdfast.engine.ids import parse_id
from holdfast.engine.states import state_of
from holdfast.errors import InvalidInput, Refused
from holdfast.features.workflows.model import (
    BAD,
    Addition,
    Edge,
    EdgeSpec,
    Graph,
    Node,
    ParentResult,
    Standing,
    Started,
    Swept,
    Workflow,
    WorkflowFailure,
    WorkflowSpec,
)
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Flow, Row, Statement, Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.postgres.base import Calls
from holdfast.stores.postgres.codec import job_document, job_of, plan_document, start_document
from holdfast.stores.reader import within
from holdfast.stores.sqlite.admission import duty
from holdfast.stores.sqlite.base import SqlitePart, any_tenant, ids_json, sign, unsign
from holdfast.stores.sqlite.enqueue import add
from holdfast.stores.sqlite.insert_checks import no_room

if TYPE_CHECKING:
    from holdfast.stores.port import JobStore

Ids = list[str]  # inside a class the word is an operation


class WorkflowStore(Protocol):
    def start(self, spec: WorkflowSpec, tenant: str) -> Flow[Started]:
        """All its jobs, in one transaction; jobs with unmet parents wait from the beginning."""
        ...

    def extend(self, workflow_id: str, more: Addition, actor: str, tenant: str) -> Flow[Started]:
        """More jobs for a workflow that is not over."""
        ...

    def fire_callbacks(self, want: int, tenant: str) -> Flow[int]:
        """Make the jobs of callbacks that are due; answers how many. What is refused is tried again later."""
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

    def failure(self, job_id: str, tenant: str) -> Flow[WorkflowFailure | None]:
        """What this job, a callback, was made for."""
        ...

    def name_of(self, job_id: str, tenant: str) -> Flow[str]:
        """The name of a job in its workflow."""
        ...

    def members(self, workflow_id: str, part: str, tenant: str) -> Flow[Ids]:
        """The ids of a group's jobs, in the order in which they were added."""
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
        found = (
            "select d.parent as id from {dependency} d where d.child = :id"
            # Of a callback: the job it is about, or those that end the workflow.
            " union all select n.job_id from {callback} c join {node} n on n.workflow_id = c.workflow_id"
            " where c.job_id = :id and n.name is not null and (n.job_id = c.step_id"
            " or c.step_id is null and not exists (select 1 from {dependency} d where d.parent = n.job_id))"
            # And those that this job has added, if it is a map.
            " union all select m.job_id from {callback} c join {node} n on n.job_id = c.step_id"
            " join {node} m on m.workflow_id = n.workflow_id and m.part = n.name where c.job_id = :id"
        )
        text = (
            f"select p.id, n.name, s.kind, s.state, r.value, r.ref, n.part from ({found}) p"
            " join {node} n on n.job_id = p.id join {job_state} s on s.id = p.id"
            f" left join {{result}} r on r.job_id = p.id where {within(tenant, 'n.tenant')} order by p.id"
        )
        rows = yield from self._ask(tenant, text, id=parse_id(job_id))
        codec = self.dialect.codec
        return [
            ParentResult(
                codec.id(i), name, kind, state_of(state), None if value is None else codec.json(value), ref, part
            )
            for i, name, kind, state, value, ref, part in rows
        ]

    @flow(writes=False)
    def failure(self, job_id: str, tenant: str) -> Steps[WorkflowFailure | None]:
        text = (
            "select w.id, w.kind, n.name, c.failed_job, c.error_code, c.error_message from {callback} c"
            " join {workflow} w on w.id = c.workflow_id left join {node} n on n.job_id = c.failed_job"
            f" where c.job_id = :id and c.failed_job is not null and {within(tenant, 'c.tenant')}"
        )
        rows = yield from self._ask(tenant, text, id=parse_id(job_id))
        identity = self.dialect.codec.id
        found = [WorkflowFailure(identity(w), kind, name, identity(job), *error) for w, kind, name, job, *error in rows]
        return found[0] if found else None

    @flow(writes=False)
    def name_of(self, job_id: str, tenant: str) -> Steps[str]:
        text = f"select n.name from {{node}} n where n.job_id = :id and {within(tenant, 'n.tenant')}"
        rows = yield from self._ask(tenant, text, id=parse_id(job_id))
        return str(rows[0][0])

    @flow(writes=False)
    def members(self, workflow_id: str, part: str, tenant: str) -> Steps[Ids]:
        text = (
            "select n.job_id from {node} n where n.workflow_id = :id"
            " and (n.part = :part or n.part like :inner escape '!')"
            f" and {within(tenant, 'n.tenant')} order by n.job_id"
        )
        inner = part.replace("!", "!!").replace("%", "!%").replace("_", "!_") + ".%"
        rows = yield from self._ask(tenant, text, id=parse_id(workflow_id), part=part, inner=inner)
        return [self.dialect.codec.id(row[0]) for row in rows]

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
    def extend(self, workflow_id: str, more: Addition, actor: str, tenant: str) -> Steps[Started]:
        document = plan_document(more)
        rows = yield self._call(
            "add_to_workflow", "%s, %s::json, %s, %s", parse_id(workflow_id), document, tenant, actor
        )
        return _started(rows[0])

    @flow(single=True)
    def fire_callbacks(self, want: int, tenant: str) -> Steps[int]:
        return int((yield self._call("fire_callbacks", "%s, %s", want, tenant))[0][0])

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


# They wait already, for the job that adds these: none can have been let go.
_WAIT_TOO = (
    "INSERT INTO dependency (child, parent, tenant, on_failure) SELECT d.child, v.value, d.tenant, d.on_failure"
    " FROM dependency d CROSS JOIN json_each(:new) v WHERE d.parent = :behind AND d.tenant = :tenant AND d.met = 0"
)
_UNMET = (
    "UPDATE node SET unmet = (SELECT count(*) FROM dependency d WHERE d.child = node.job_id AND d.met = 0)"
    " WHERE workflow_id = :flow AND job_id IN (SELECT child FROM dependency WHERE parent = :behind AND met = 0)"
)
_CALLBACKS = "INSERT INTO callback (job_id, tenant, workflow_id, step_id, fires, document) VALUES (?, ?, ?, ?, ?, ?)"
_ANY_DUE = (
    "SELECT 1 FROM callback WHERE due_at IS NOT NULL AND fired_at IS NULL AND due_at <= (SELECT now FROM present)"
)
_DUE = (
    "SELECT job_id, tenant, document FROM callback WHERE due_at IS NOT NULL AND fired_at IS NULL AND due_at <= :now"
    " AND (:any OR tenant = :tenant) ORDER BY due_at LIMIT :want"
)
_FIRED = "UPDATE callback SET fired_at = ?, document = NULL WHERE job_id = ?"
_PUT_OFF = "UPDATE callback SET due_at = ? WHERE job_id = ?"
_AGAIN = 30_000_000  # microseconds


def _none_due(*_: object) -> Steps[int | None]:
    return None if (yield Statement(f"{_ANY_DUE} LIMIT 1")) else 0


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
        yield from _plan(spec.id, Addition(spec.nodes, spec.edges, spec.callbacks), tenant, now, stopped=False)
        yield from unsign()
        return Started(spec.id, True)

    @flow(tells=True)
    def extend(self, workflow_id: str, more: Addition, actor: str, tenant: str) -> Steps[Started]:
        flow_id = parse_id(workflow_id)
        now = yield from sign(actor)
        rows = yield Statement(_FIND, {"id": flow_id, "any": any_tenant(tenant), "tenant": tenant})
        reason = "not_found" if not rows else "workflow_over" if rows[0][1] else None
        if reason is None and (yield Statement(_NAMED, (flow_id, ids_json(node.name for node in more.nodes)))):
            reason = "name_taken"
        if reason is None:
            yield from _plan(flow_id, more, rows[0][0], now, stopped=bool(rows[0][2]))
        yield from unsign()
        return Started(flow_id, reason is None, reason)

    @duty(0, _none_due)
    def fire_callbacks(self, want: int, tenant: str) -> Steps[int]:
        now = yield from sign("workflows")
        made = 0
        for job_id, whose, job in (
            yield Statement(_DUE, {"now": now, "any": any_tenant(tenant), "tenant": tenant, "want": want})
        ):
            spec = job_of(json.loads(job))
            refused = yield from no_room(1, spec.kind, whose, now)
            try:
                created = refused is None and (yield from add([spec], whose, now))[0].created
            except Refused:  # paused, or its payload is not accepted: nothing of it was written
                created = False
            yield Statement(_FIRED, (now, job_id)) if created else Statement(_PUT_OFF, (now + _AGAIN, job_id))
            made += created
        yield from unsign()
        return made

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


def _plan(flow_id: str, more: Addition, tenant: str, now: int, *, stopped: bool) -> Steps[None]:
    """Write down who waits for whom, then enqueue: the jobs find their nodes and wait from the beginning."""
    nodes, edges = more.nodes, more.edges
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
    if more.behind is not None:
        behind_it = {"behind": parse_id(more.behind), "new": ids_json(node.job.id for node in nodes), "tenant": tenant}
        yield Statement(_WAIT_TOO, behind_it)
        yield Statement(_UNMET, {"behind": behind_it["behind"], "flow": flow_id})
    if more.callbacks:
        kept = [(c.job.id, tenant, flow_id, c.step, c.fires, job_document(c.job)) for c in more.callbacks]
        yield Statement(_CALLBACKS, kept, many=True)
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

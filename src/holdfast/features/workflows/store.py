"""Workflows in the database: the port with the shared reads, and PostgreSQL."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from holdfast.engine.ids import parse_id
from holdfast.engine.states import state_of
from holdfast.errors import NotFound
from holdfast.features.workflows.model import (
    Addition,
    CallbackRecord,
    Edge,
    Graph,
    Node,
    ParentResult,
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
from holdfast.stores.postgres.codec import plan_document, start_document
from holdfast.stores.reader import within

Ids = list[str]  # inside a class, ``list`` is an operation


FAILED = 100
"""Failed jobs that a callback is told."""


MOST = 1000
EDGES = 10  # dependencies per job that are read if the graph is limited
OWN = ("job_id", "workflow_id", "name", "part", "status", "unmet")
NODE_COLUMNS = ", ".join(f"{'n' if name in OWN else 's'}.{name}" for name in Record.columns(Node).split(", "))


class WorkflowStore(Reader):
    @abstractmethod
    def start(self, spec: WorkflowSpec, tenant: str) -> Flow[Started]:
        """Store all its jobs in one transaction. Jobs with unmet parents are held from the start."""

    @abstractmethod
    def extend(self, workflow_id: str, more: Addition, actor: str, tenant: str) -> Flow[Started]:
        """Add jobs to a workflow that has not ended."""

    @abstractmethod
    def fire_callbacks(self, want: int, tenant: str) -> Flow[int]:
        """Create the jobs of due callbacks; returns their number. Refused ones are retried later."""

    @abstractmethod
    def cancel(self, workflow_id: str, reason: str | None, actor: str, tenant: str) -> Flow[Swept]: ...

    @abstractmethod
    def resume(self, workflow_id: str, reason: str | None, actor: str, tenant: str) -> Flow[Swept]:
        """Redrive its dead letters; the jobs held back behind them are released."""

    @flow(writes=False)
    def get(self, workflow_id: str, tenant: str) -> Steps[Workflow | None]:
        own = within(tenant, "w.tenant")
        text = f"select {Record.columns(Workflow, 'w.')} from {{workflow}} w where w.id = :id and {own}"
        return (yield from self._record(Workflow, tenant, text, id=parse_id(workflow_id)))

    @flow(writes=False)
    def graph(self, workflow_id: str, tenant: str, limit: int | None = None) -> Steps[Graph | None]:
        """With a limit, only the first jobs."""
        workflow = yield from self.get(workflow_id, tenant).start()
        if workflow is None:
            return None
        text = (
            f"select {NODE_COLUMNS} from {{node}} n join {{job_state}} s on s.id = n.job_id"
            f" where n.workflow_id = :id and {within(tenant, 'n.tenant')} order by n.job_id{_first(limit)}"
        )
        rows = yield from self._query(tenant, text, id=workflow.id)
        decode = Record.decoder(Node, self.dialect.codec)
        nodes = [decode(row) for row in rows]
        text = (
            f"select d.child, d.parent, d.on_failure, d.met from {{node}} n join {{dependency}} d on d.child = n.job_id"
            f" where n.workflow_id = :id and {within(tenant, 'n.tenant')} order by d.child, d.parent"
            f"{_first(None if limit is None else limit * EDGES)}"
        )
        rows = yield from self._query(tenant, text, id=workflow.id)
        identity = self.dialect.codec.id
        edges = [Edge(identity(c), identity(p), why, bool(met)) for c, p, why, met in rows]
        text = (
            f"select {Record.columns(CallbackRecord, 'c.')} from {{callback}} c"
            f" where c.workflow_id = :id and {within(tenant, 'c.tenant')} order by c.job_id"
        )
        rows = yield from self._query(tenant, text, id=workflow.id)
        return Graph(workflow, nodes, edges, [Record.decoder(CallbackRecord, self.dialect.codec)(row) for row in rows])

    @flow(writes=False)
    def named(self, workflow_id: str, names: Sequence[str], tenant: str) -> Steps[dict[str, str]]:
        """The ids of jobs of a workflow by name; unknown names are left out."""
        ids: dict[str, str] = {}
        own = within(tenant, "n.tenant")
        text = f"select n.job_id from {{node}} n where n.workflow_id = :id and n.name = :name and {own}"
        for name in names:
            rows = yield from self._query(tenant, text, id=parse_id(workflow_id), name=name)
            if rows:
                ids[name] = self.dialect.codec.id(rows[0][0])
        return ids

    @flow(writes=False)
    def parent_results(self, job_id: str, tenant: str) -> Steps[list[ParentResult]]:
        """States and results of the jobs that this one waits or waited for."""
        parents = (
            "select d.parent as id from {dependency} d where d.child = :id"
            # For a callback: the job it belongs to, or the jobs that end the workflow.
            " union all select n.job_id from {callback} c join {node} n on n.workflow_id = c.workflow_id"
            " where c.job_id = :id and n.name is not null and (n.job_id = c.step_id"
            " or c.step_id is null and not exists (select 1 from {dependency} d where d.parent = n.job_id))"
            # And the jobs that this job added, if it is a map.
            " union all select m.job_id from {callback} c join {node} n on n.job_id = c.step_id"
            " join {node} m on m.workflow_id = n.workflow_id and m.part = n.name where c.job_id = :id"
        )
        text = (
            f"select p.id, n.name, s.kind, s.state, {self.dialect.bounded('r.value', 'p.id', 'r.value')}, r.ref, n.part"
            f" from ({parents}) p"
            " join {node} n on n.job_id = p.id join {job_state} s on s.id = p.id"
            f" left join {{result}} r on r.job_id = p.id where {within(tenant, 'n.tenant')} order by p.id"
        )
        rows = yield from self._query(tenant, text, id=parse_id(job_id))
        codec = self.dialect.codec
        return [
            ParentResult(
                codec.id(i), name, kind, state_of(state), None if value is None else codec.json(value), ref, part
            )
            for i, name, kind, state, value, ref, part in rows
        ]

    @flow(writes=False)
    def failure(self, job_id: str, tenant: str) -> Steps[WorkflowFailure | None]:
        """The failure that this job, a callback, was created for."""
        text = (
            "select w.id, w.kind, n.name, c.failed_job, c.error_code, c.error_message from {callback} c"
            " join {workflow} w on w.id = c.workflow_id left join {node} n on n.job_id = c.failed_job"
            f" where c.job_id = :id and c.failed_job is not null and {within(tenant, 'c.tenant')}"
        )
        rows = yield from self._query(tenant, text, id=parse_id(job_id))
        identity = self.dialect.codec.id
        for workflow_id, kind, name, failed, code, message in rows:
            # What failed before the callback was due: the workflow may have been resumed since.
            text = (
                "select n.name, n.job_id from {callback} c join {node} n on n.workflow_id = c.workflow_id"
                " join {job_state} s on s.id = n.job_id where c.job_id = :id and n.status in ('failed', 'dead')"
                " and s.finished_at <= c.due_at and (c.step_id is null or n.job_id = c.step_id)"
                f" and {within(tenant, 'c.tenant')} order by s.finished_at, s.id limit {FAILED:d}"
            )
            others = yield from self._query(tenant, text, id=parse_id(job_id))
            first, *more = (name or identity(failed), *(other or identity(job) for other, job in others))
            named = (first, *(each for each in more if each != first))
            return WorkflowFailure(identity(workflow_id), kind, name, identity(failed), code, message, named)
        return None

    @flow(writes=False)
    def name_of(self, job_id: str, tenant: str) -> Steps[str]:
        """The name of a job in its workflow."""
        text = f"select n.name from {{node}} n where n.job_id = :id and {within(tenant, 'n.tenant')}"
        rows = yield from self._query(tenant, text, id=parse_id(job_id))
        if not rows:
            raise NotFound(f"job {job_id} is not part of a workflow")
        return str(rows[0][0])

    @flow(writes=False)
    def members(self, workflow_id: str, part: str, tenant: str) -> Steps[Ids]:
        """The ids of a group's jobs, in the order in which they were added."""
        text = (
            "select n.job_id from {node} n where n.workflow_id = :id"
            " and (n.part = :part or n.part like :inner escape '!')"
            f" and {within(tenant, 'n.tenant')} order by n.job_id"
        )
        inner = part.replace("!", "!!").replace("%", "!%").replace("_", "!_") + ".%"
        rows = yield from self._query(tenant, text, id=parse_id(workflow_id), part=part, inner=inner)
        return [self.dialect.codec.id(row[0]) for row in rows]

    @flow(writes=False)
    def list(
        self, tenant: str, kind: str | None = None, over: bool | None = None, before: str | None = None, limit: int = 50
    ) -> Steps[list[Workflow]]:
        """A page, newest first; ``before`` is the last id of the previous page."""
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
        cursor = None if before is None else parse_id(before)
        return (yield from self._records(Workflow, tenant, text, kind=kind, before=cursor))


def _first(limit: int | None) -> str:
    return "" if limit is None else f" limit {max(1, limit):d}"


class PostgresWorkflows(Calls, WorkflowStore):
    def _start_again(self, spec: WorkflowSpec, tenant: str) -> Steps[Started]:
        """Repeat a start whose response was lost. The caller chose the id, so a committed first try is found by it."""
        yield self._call("enter", "%s", tenant)
        rows = yield Statement(f"select from {self._s}workflow where id = %s and tenant = %s", (spec.id, tenant))
        if rows:
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

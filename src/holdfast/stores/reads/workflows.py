"""Looking at workflows: one, a page of them, the graph of one, what a job's parents returned."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.engine.ids import parse_id
from holdfast.engine.states import state_of
from holdfast.features.workflows.model import Edge, Graph, Node, ParentResult, Workflow
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.reader import within

MOST = 1000
EDGES = 10  # as many for each job are read where not all are
OWN = ("job_id", "workflow_id", "name", "part", "standing", "unmet")
NODE_COLUMNS = ", ".join(f"{'n' if name in OWN else 's'}.{name}" for name in Record.columns(Node).split(", "))


class WorkflowReads(Reader):
    @flow(writes=False)
    def workflow(self, workflow_id: str, tenant: str) -> Steps[Workflow | None]:
        own = within(tenant, "w.tenant")
        text = f"select {Record.columns(Workflow, 'w.')} from {{workflow}} w where w.id = :id and {own}"
        rows = yield from self._ask(tenant, text, id=parse_id(workflow_id))
        return Record.decoder(Workflow, self.dialect.codec)(rows[0]) if rows else None

    @flow(writes=False)
    def workflows(
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

    @flow(writes=False)
    def graph(self, workflow_id: str, tenant: str, limit: int | None = None) -> Steps[Graph | None]:
        found = yield from self.workflow(workflow_id, tenant).start()
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


def _first(limit: int | None) -> str:
    return "" if limit is None else f" limit {max(1, limit):d}"

"""Workflows; the functions are in ``code/53_workflows.sql``."""

from __future__ import annotations

import json
from collections.abc import Sequence

from holdfast.engine.ids import parse_id
from holdfast.features.workflows.model import EdgeSpec, NodeSpec, Started, Swept, WorkflowSpec
from holdfast.stores.flow import Row, Statement, Steps, flow
from holdfast.stores.postgres.base import Calls
from holdfast.stores.postgres.codec import enqueue_document, is_plain


class WorkflowVerbs(Calls):
    def _start_again(self, spec: WorkflowSpec, tenant: str) -> Steps[Started]:
        """The id is ours: if the first try came through, it is found by it."""
        yield self._call("enter", "%s", tenant)
        there = yield Statement(f"select from {self._s}workflow where id = %s and tenant = %s", (spec.id, tenant))
        if there:
            return Started(spec.id, True)
        return (yield from self.start_workflow(spec, tenant).start())

    @flow(single=True, repeat=_start_again)
    def start_workflow(self, spec: WorkflowSpec, tenant: str) -> Steps[Started]:
        rows = yield self._call("start_workflow", "%s::json, %s, %s", start_document(spec), tenant, spec.enqueued_by)
        return _started(rows[0])

    @flow(single=True)
    def add_to_workflow(
        self, workflow_id: str, nodes: Sequence[NodeSpec], edges: Sequence[EdgeSpec], actor: str, tenant: str
    ) -> Steps[Started]:
        document = plan_document(nodes, edges)
        rows = yield self._call(
            "add_to_workflow", "%s, %s::json, %s, %s", parse_id(workflow_id), document, tenant, actor
        )
        return _started(rows[0])

    @flow(single=True)
    def cancel_workflow(self, workflow_id: str, reason: str | None, actor: str, tenant: str) -> Steps[Swept]:
        rows = yield self._call("cancel_workflow", "%s, %s, %s, %s", parse_id(workflow_id), reason, actor, tenant)
        return _swept(rows[0])

    @flow(single=True)
    def resume_workflow(self, workflow_id: str, reason: str | None, actor: str, tenant: str) -> Steps[Swept]:
        rows = yield self._call("resume_workflow", "%s, %s, %s, %s", parse_id(workflow_id), reason, actor, tenant)
        return _swept(rows[0])


def start_document(spec: WorkflowSpec) -> str:
    facts = {
        "id": spec.id,
        "kind": spec.kind,
        "generator": spec.generator,
        "on_failure": spec.on_failure,
        "key": spec.key,
        "plan_hash": spec.plan_hash,
        "correlation_id": spec.correlation_id,
        "parent_id": spec.parent_id,
        "enqueued_by": spec.enqueued_by,
        "source_system": spec.source_system,
    }
    return f'{{"workflow":{json.dumps(facts)},{plan_document(spec.nodes, spec.edges)[1:]}'


def plan_document(nodes: Sequence[NodeSpec], edges: Sequence[EdgeSpec]) -> str:
    """Payloads are JSON already and are put in as they are."""
    named = json.dumps(
        [{"id": node.job.id, "name": node.name, "part": node.part, "fatal": node.fatal} for node in nodes]
    )
    drawn = json.dumps([{"child": e.child, "parent": e.parent, "on_failure": e.on_failure} for e in edges])
    specs = [node.job for node in nodes]
    plain = json.dumps(is_plain(specs))
    return f'{{"jobs":{enqueue_document(specs)},"plain":{plain},"nodes":{named},"edges":{drawn}}}'


def _started(row: Row) -> Started:
    return Started(str(row[0]), row[1], row[2])


def _swept(row: Row) -> Swept:
    return Swept(str(row[0]), row[1], row[2], row[3])

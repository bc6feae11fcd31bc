"""Attacks on workflows (DP-14): children released early, false counts, changed plans."""

from __future__ import annotations

from tests.attacks.attack import NOW, Table

# `:flow` is a workflow of two jobs: `:child` waits for `:parent`.
PLANNED = (
    "insert into workflow (id, tenant, kind, generator, enqueued_by, source_system, created_at)"
    f" values (:flow, 'default', 'publish', 'planner', 'by hand', 'sql', {NOW})",
    "insert into dependency (child, parent, tenant, on_failure) values (:child, :parent, 'default', 'skip')",
    "insert into node (job_id, tenant, workflow_id, name) values (:parent, 'default', :flow, 'parent')",
    "insert into node (job_id, tenant, workflow_id, name, unmet) values (:child, 'default', :flow, 'child', 1)",
    "insert into job (id, tenant, kind, workflow_id) values (:parent, 'default', 'mail.send', :flow)",
    "insert into job (id, tenant, kind, workflow_id) values (:child, 'default', 'mail.send', :flow)",
    "insert into callback (job_id, tenant, workflow_id, fires, document, due_at)"
    f" values (:other, 'default', :flow, 'failure', '{{}}', {NOW})",
)

_BY_TRIGGERS = ("nodes are written by triggers only", "written by triggers only")
_PLANNED = ("the plan of a workflow never changes", "the plan never changes")

WORKFLOWS: Table = {
    "release a job before its parents have ended": (
        "update job_state set due_at = null, note = null where id = :child",
        ("only the ends of its parents release a job", "waits for its parents"),
    ),
    "start a job before its parents have ended": (
        "update job_state set due_at = null where id = :child"
        "; update job_state set state = 'in_progress', attempt = 1, lease = :other where id = :child",
        ("only the ends of its parents release a job", "waits for its parents"),
    ),
    "clear the open parents of a job": ("update node set unmet = 0 where job_id = :child", _BY_TRIGGERS),
    "mark a node as succeeded": ("update node set status = 'succeeded' where job_id = :child", _BY_TRIGGERS),
    "mark a dependency as met": (
        "update dependency set met = (1 = 1) where child = :child",
        ("dependencies are written by triggers only", "written by triggers only"),
    ),
    "change the parent of a dependency": (
        "update dependency set parent = :queued where child = :child",
        ("dependencies are written by triggers only", "the plan never changes"),
    ),
    "change the job of a callback": (
        """update callback set document = '{"kind": "pay"}' where workflow_id = :flow""",
        ("the plan of a callback never changes", "the plan never changes"),
    ),
    "fire a callback twice": (
        f"update callback set due_at = {NOW}, fired_at = {NOW}, document = null where workflow_id = :flow"
        "; update callback set fired_at = null, document = '{}' where workflow_id = :flow",
        ("the plan of a callback never changes", "the plan never changes"),
    ),
    "delete a callback": (
        "delete from callback where workflow_id = :flow",
        "callback: rows are never deleted while their workflow exists",
    ),
    "delete a dependency": (
        "delete from dependency where child = :child",
        "dependency: rows are never deleted while their jobs exist",
    ),
    "delete a node": (
        "delete from node where job_id = :child",
        "node: rows are never deleted while their job exists",
    ),
    "delete a workflow": (
        "delete from workflow where id = :flow",
        "workflow: rows are never deleted while their jobs exist",
    ),
    "change the counts of a workflow": (
        "update workflow set open = open - 1 where id = :flow",
        ("counts_add_up", "triggers only"),
    ),
    "mark an open workflow as finished": (
        "update workflow set finished_at = created_at where id = :flow",
        ("finished_when_over", "triggers only"),
    ),
    "change the generator of a workflow": ("update workflow set generator = 'me' where id = :flow", _PLANNED),
    "move a job to another workflow": ("update node set workflow_id = :unknown where job_id = :child", _PLANNED),
    "take a job out of its workflow": (
        "update job_state set workflow_id = null where id = :child",
        (
            "number, id, tenant, kind, agent, executor and crash limit",
            "id, tenant, kind, agent, executor and crash limit",
        ),
    ),
    "make a job depend on itself": (
        "insert into dependency (child, parent, tenant, on_failure) values (:child, :child, 'default', 'skip')",
        "not_of_itself",
    ),
    "truncate the dependencies": ("truncate dependency", (None, "rows are never changed")),
    "write to a scratch table": (
        "insert into round (id) values (1)",
        ("the scratch tables are written by triggers only", None),
    ),
}

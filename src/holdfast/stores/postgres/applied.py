"""What was applied to a database: read before anything is laid over it, and shown by whoever looks at the system."""

from __future__ import annotations

from holdfast.stores.base import SchemaStatus
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.migrate import Plan
from holdfast.stores.postgres.doctor import ROLES


def plan_for(plan: Plan) -> Steps[Plan]:
    """Grants go to the roles there are, so the code is laid again when there are others."""
    rows = yield Statement("select rolname from pg_roles where rolname = any(%s)", (list(ROLES),), alone=True)
    return plan.for_roles(row[0] for row in rows)


def applied(schema: str) -> Steps[dict[str, str]]:
    there = yield Statement("select to_regclass(%s)", (f'"{schema}".migration',), alone=True)
    if there[0][0] is None:
        return {}
    rows = yield Statement(f'select name, digest from "{schema}".migration', alone=True)
    return {row[0]: row[1] for row in rows}


@flow(writes=False)
def status(plan: Plan, schema: str) -> Steps[SchemaStatus]:
    ours = yield from plan_for(plan)
    return ours.status((yield from applied(schema)))

"""Asks which maintenance tasks have work; the function is in ``code/45_due_work.sql``."""

from __future__ import annotations

from holdfast.stores.due import DueWork
from holdfast.stores.flow import Statement, Steps, flow


@flow(writes=False, single=True, hot=True)
def due_work(schema: str, lease: str | None, tenant: str) -> Steps[DueWork]:
    text = f'select tasks, leads, next_in, notifies from "{schema}".due_work(%s::uuid, %s)'
    rows = yield Statement(text, (lease or None, tenant))
    tasks, leads, next_in, notifies = rows[0]
    return DueWork(frozenset(tasks), leads, next_in, notifies)

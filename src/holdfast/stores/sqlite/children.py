"""Cancel the children of cancelled jobs, within a signed write."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.engine.steps import SPAWN
from holdfast.stores.flow import Statement, Steps
from holdfast.stores.sqlite.base import ids_json

# The step that spawned a child names it.
_CHILDREN = (
    "SELECT s.id FROM holdfast_step t JOIN holdfast_job c ON c.id = json_extract(t.value, '$.job') AND c.parent_id ="
    " t.job_id AND c.tenant = t.tenant JOIN holdfast_job_state s ON s.n = c.n"
    " WHERE t.job_id IN (SELECT value FROM json_each(?)) AND t.kind = 'step'"
    f" AND substr(t.name, 1, {len(SPAWN)}) = '{SPAWN}' AND json_extract(t.value, '$.cancel')"
    " AND s.state IN ('queued', 'leased', 'in_progress', 'retry_waiting', 'waiting_for_approval')"
)
COUNT_CANCELLATION = (
    "INSERT INTO holdfast_cancellation (lease, times) SELECT DISTINCT lease, 1 FROM holdfast_job_state"
    " WHERE id IN (SELECT value FROM json_each(:ids)) AND lease IS NOT NULL"
    " ON CONFLICT (lease) DO UPDATE SET times = times + 1"
)
STOP = (
    "UPDATE holdfast_job_state SET state = 'cancelled', lease = NULL, due_at = NULL, approval_id = NULL, finished_at"
    " = :now, note = :note WHERE id IN (SELECT value FROM json_each(:ids))"
)
_NOTE = '{"reason": "its parent was cancelled"}'


def cancel_children(jobs: Sequence[str], now: int) -> Steps[None]:
    """Cancel the children that were spawned with ``on_cancel="cancel"``, and the children of those."""
    while jobs:
        jobs = [row[0] for row in (yield Statement(_CHILDREN, (ids_json(jobs),)))]
        if jobs:
            yield Statement(COUNT_CANCELLATION, {"ids": ids_json(jobs)})
            yield Statement(STOP, {"ids": ids_json(jobs), "now": now, "note": _NOTE})

"""Cleaning and purging jobs (DP-16), inside a flow that has signed. What may go was found before."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.stores.flow import Statement, Steps
from holdfast.stores.sqlite.base import ids_json
from holdfast.stores.sqlite.operations.audit import record_removed
from holdfast.stores.sqlite.operations.bookkeeping import READ
from holdfast.stores.sqlite.operations.leftovers import leave_behind
from holdfast.stores.sqlite.settle import ADVANCE

_THESE = "IN (SELECT value FROM json_each(:ids))"
# A dead letter is discarded first: the table of steps knows no other way.
_DISCARD = (
    "UPDATE job_state SET state = 'cancelled', note = '{\"reason\": \"retention\"}'"
    f" WHERE id {_THESE} AND state = 'dead_letter' RETURNING id"
)
_CLEAN = (
    "UPDATE job_state SET state = 'cleaned', error_message = NULL,"
    " note = json_object('was', CASE WHEN id IN (SELECT value FROM json_each(:dead)) THEN 'dead_letter' ELSE state END)"
    f" WHERE id {_THESE}"
)
_EMPTY = f"UPDATE job SET payload = '{{}}' WHERE id {_THESE} AND payload <> '{{}}'"
_CARRIED = ("result", "checkpoint", "artifact", "step")
_KEYS = (
    "DELETE FROM idempotency WHERE (tenant, kind, key, job_id) IN"
    f" (SELECT tenant, kind, idempotency_key, id FROM job WHERE id {_THESE} AND idempotency_key IS NOT NULL)",
    "DELETE FROM content WHERE (tenant, key, job_id) IN"
    f" (SELECT tenant, content_key, id FROM job WHERE id {_THESE} AND content_key IS NOT NULL)",
    "DELETE FROM job_tag WHERE (tenant, tag, job_id) IN"
    f" (SELECT j.tenant, t.value, j.id FROM job j, json_each(j.tags) t WHERE j.id {_THESE} AND j.tags <> '[]')",
)
_OTHERS = ("place", "delivery", "redriven_as", "reference", "resealed", "quarantine")
_FIRES = (
    "SELECT f.schedule_id, f.due_at, f.manual FROM made_from m JOIN fire f ON f.schedule_id = m.schedule_id"
    f" AND f.due_at = m.due_at AND f.job_id = m.job_id WHERE m.job_id {_THESE}"
)
_DELETE_FIRE = "DELETE FROM fire WHERE schedule_id = ? AND due_at = ? AND manual = ?"
_WORKFLOWS = (
    "DELETE FROM workflow WHERE id IN (SELECT value FROM json_each(?))"
    " AND NOT EXISTS (SELECT 1 FROM node o WHERE o.workflow_id = workflow.id)"
)


def clean_jobs(jobs: Sequence[str]) -> Steps[None]:
    """What a job carried goes; its facts but the payload, its keys, what people decided and its ledger stay."""
    ids = ids_json(jobs)
    dead = yield Statement(_DISCARD, {"ids": ids})
    if dead:
        yield ADVANCE  # a workflow is told of the discarding, not of the cleaning
    yield Statement(_CLEAN, {"ids": ids, "dead": ids_json(row[0] for row in dead)})
    yield from leave_behind(ids)  # what lies in the artifact store
    yield Statement(_EMPTY, {"ids": ids})
    for table in _CARRIED:
        yield Statement(f"DELETE FROM {table} WHERE job_id {_THESE}", {"ids": ids})


def purge_jobs(jobs: Sequence[str]) -> Steps[None]:
    """A cleaned job goes whole: all that names it (tests/contract/test_retention_catalogue.py knows every column)."""
    these = {"ids": ids_json(jobs)}
    gates = yield Statement(f"SELECT id FROM gate WHERE job_id {_THESE}", these)
    flows = yield Statement(f"SELECT DISTINCT workflow_id FROM node WHERE job_id {_THESE}", these)
    fires = yield Statement(_FIRES, these)
    for text in _KEYS:
        yield Statement(text, these)
    yield Statement(f"DELETE FROM job_state WHERE id {_THESE}", these)
    yield Statement(f"DELETE FROM job WHERE id {_THESE}", these)
    yield from record_removed(jobs)  # the seals over the ledger hold without them
    yield Statement(f"DELETE FROM event WHERE job_id {_THESE}", these)
    for table in (*_CARRIED, *_OTHERS):
        yield Statement(f"DELETE FROM {table} WHERE job_id {_THESE}", these)
    yield Statement(f"DELETE FROM redriven_as WHERE new_id {_THESE}", these)
    yield Statement(f"DELETE FROM app_event WHERE job_id {_THESE} AND {READ}", these)
    if gates:
        these_gates = {"ids": ids_json(row[0] for row in gates)}
        yield Statement(f"DELETE FROM gate WHERE id {_THESE}", these_gates)
        for table in ("vote", "gate_token"):
            yield Statement(f"DELETE FROM {table} WHERE gate_id {_THESE}", these_gates)
    yield Statement(f"DELETE FROM made_from WHERE job_id {_THESE}", these)
    if fires:
        yield Statement(_DELETE_FIRE, [tuple(row) for row in fires], many=True)
    if flows:
        yield Statement(f"DELETE FROM node WHERE job_id {_THESE}", these)
        for end in ("child", "parent"):
            yield Statement(f"DELETE FROM dependency WHERE {end} {_THESE}", these)
        yield Statement(_WORKFLOWS, (ids_json(row[0] for row in flows),))

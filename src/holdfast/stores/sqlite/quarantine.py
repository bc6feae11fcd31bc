"""Find the jobs that make a claim or a maintenance task fail, and pass them over for a while.

A statement that moves a batch of jobs fails as a whole when one row breaks a rule. Such a row can only have been
written past the operations. This tries each candidate alone, in a savepoint that is always undone, and notes those
that fail. It runs after a failure only: the usual path pays for one look at an empty table.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from holdfast.engine.job import EVERY_TENANT
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.sqlite.base import PASSED_OVER, any_tenant, ids_json, sign, unsign
from holdfast.stores.sqlite.leases import free

LASTS = 600 * 1_000_000

_SCOPE = f"AND s.id {PASSED_OVER} AND (:any OR s.tenant = :tenant)"
_CANDIDATES = (
    (
        "take",
        "SELECT s.n, s.id, s.state FROM job_state s WHERE s.queue IN (SELECT value FROM json_each(:queues))"
        " AND s.state = 'queued' AND s.due_at IS NULL"
        f" AND (:kinds IS NULL OR s.kind IN (SELECT value FROM json_each(:kinds))) {_SCOPE}"
        " ORDER BY s.queue, s.priority DESC, s.position LIMIT :want",
    ),
    (
        "promote",
        "SELECT s.n, s.id, s.state FROM job_state s WHERE s.due_at <= :now AND s.due_at IS NOT NULL"
        f" AND s.state IN ('queued', 'retry_waiting') {_SCOPE} ORDER BY s.due_at LIMIT :want",
    ),
    (
        "expire",
        "SELECT s.n, s.id, s.state FROM job_state s WHERE s.deadline_at <= :now AND s.deadline_at IS NOT NULL"
        f" AND s.state IN ('queued', 'retry_waiting', 'waiting_for_approval') {_SCOPE}"
        " ORDER BY s.deadline_at LIMIT :want",
    ),
    (
        "free",
        "SELECT s.n, s.id, s.state FROM job_state s WHERE s.state IN ('leased', 'in_progress') AND s.lease IN"
        f" (SELECT id FROM lease WHERE ended_at IS NOT NULL AND swept_at IS NULL) {_SCOPE} ORDER BY s.id LIMIT :want",
    ),
)
_TRY = {
    "take": "UPDATE job_state SET state = 'in_progress', lease = :lease, settled_by = NULL, note = NULL,"
    " held_by = NULL, attempt = attempt + 1, started_at = :now WHERE n = :n",
    "promote": "UPDATE job_state SET state = 'queued', due_at = NULL, note = NULL WHERE n = :n",
    "expire": "UPDATE job_state SET state = 'failed', due_at = NULL, gate_id = NULL, finished_at = :now, note = NULL,"
    " error_code = 'deadline_passed', error_message = '' WHERE n = :n",
}
_LIVE = "SELECT 1 FROM lease WHERE id = ? AND tenant = ? AND ended_at IS NULL AND until > ?"
_NOTE = (
    "INSERT INTO quarantine (job_id, tenant, why, at, until)"
    " SELECT s.id, s.tenant, :why, :now, :until FROM job_state s WHERE s.n = :n"
    " ON CONFLICT (job_id) DO UPDATE SET why = excluded.why, at = excluded.at, until = excluded.until"
)
# What says nothing about the row.
_PASSING = ("stale lease", "paused", "executor", "generator only", "database is", "disk")


class SqliteQuarantine:
    @flow()
    def set_aside(
        self,
        lease: str | None,
        queues: Sequence[str],
        kinds: Sequence[str] | None = None,
        want: int = 1000,
        tenant: str = EVERY_TENANT,
    ) -> Steps[list[str]]:
        now = yield from sign("reaper")
        live = yield Statement(_LIVE, (lease, tenant, now))
        scope = {"now": now, "any": any_tenant(tenant), "tenant": tenant, "want": want, "queues": ids_json(queues)}
        scope["kinds"] = None if kinds is None else ids_json(kinds)
        found: list[str] = []
        for how, candidates in _CANDIDATES:
            if how == "take" and not live:
                continue
            for n, id, state in (yield Statement(candidates, scope)):
                one = {"n": n, "now": now, "lease": lease}
                steps = free([(n, state)], now) if how == "free" else _one(Statement(_TRY[how], one))
                why = yield from _refusal(steps)
                if why is not None:
                    yield Statement(_NOTE, {"n": n, "why": why[:1000], "now": now, "until": now + LASTS})
                    found.append(id)
        yield from unsign()
        return found


def _one(statement: Statement) -> Steps[None]:
    yield statement


def _refusal(steps: Steps[Any]) -> Steps[str | None]:
    """What the database says against moving a row alone; nothing of it stays."""
    why = None
    yield Statement("SAVEPOINT alone")
    try:
        yield from steps
    except (sqlite3.Error, ValueError) as error:
        why = str(error)
        if why.startswith(_PASSING):
            raise
    yield Statement("ROLLBACK TO alone")
    yield Statement("RELEASE alone")
    return why

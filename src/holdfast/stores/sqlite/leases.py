"""``store.leases`` on SQLite: exchange, settle, promote, expire, recover, and ``quarantine``.

A statement that updates a batch of jobs fails as a whole when one row breaks a rule. Such a row can only have been
written without using the operations. ``quarantine`` tries each candidate alone, in a savepoint that is always rolled
back, and quarantines those that fail: claims and maintenance skip them for a while. It runs only after a failure; the
normal path pays for one read of an empty table.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.engine.job import EVERY_TENANT, Exchange, Sweep
from holdfast.engine.settlement import Settlement, fingerprint
from holdfast.stores.flow import Row, Statement, Steps, flow
from holdfast.stores.requests import ClaimRequest
from holdfast.stores.sqlite.admission import maintenance_flow
from holdfast.stores.sqlite.base import NOT_QUARANTINED, act_under, any_tenant, begin_write, end_write, ids_json
from holdfast.stores.sqlite.claim import SqliteLeaseRows, executor_refused, has_work, lease_state
from holdfast.stores.sqlite.enqueue import retry_as_new
from holdfast.stores.sqlite.fair_shares import SHARING_NEEDED, share_when_needed
from holdfast.stores.sqlite.settle import end_attempts

_PROMOTE = (
    "UPDATE holdfast_job_state SET state = 'queued', due_at = NULL, note = NULL WHERE n IN ("
    "SELECT n FROM holdfast_job_state WHERE due_at <= :now AND due_at IS NOT NULL AND state IN ('queued',"
    f" 'retry_waiting') AND id {NOT_QUARANTINED} AND (:any OR tenant = :tenant) ORDER BY due_at LIMIT :want)"
    " RETURNING 1"
)
_IS_DUE = (
    "SELECT 1 WHERE EXISTS (SELECT 1 FROM holdfast_job_state WHERE due_at <= :now AND due_at IS NOT NULL"
    f" AND state IN ('queued', 'retry_waiting') AND id {NOT_QUARANTINED}) OR :every AND EXISTS ({SHARING_NEEDED})"
)
_IS_OVERDUE = (
    "SELECT 1 FROM holdfast_job_state WHERE deadline_at <= :now AND deadline_at IS NOT NULL"
    f" AND state IN ('queued', 'leased', 'retry_waiting', 'waiting_for_approval') AND id {NOT_QUARANTINED} LIMIT 1"
)
_IS_LAPSED = (
    "SELECT 1 WHERE EXISTS (SELECT 1 FROM holdfast_lease WHERE ended_at IS NULL AND until <= :now)"
    " OR EXISTS (SELECT 1 FROM holdfast_lease WHERE ended_at IS NOT NULL AND swept_at IS NULL)"
    " OR EXISTS (SELECT 1 FROM holdfast_lease WHERE ended_at IS NULL AND renewed_at > :now + 5000000)"
)
_EXPIRE = (
    "UPDATE holdfast_job_state SET state = 'failed', lease = NULL, due_at = NULL, approval_id = NULL, finished_at ="
    " :now, note = NULL, error_code = 'deadline_passed', error_message = 'the deadline passed before the job was done'"
    " WHERE n IN (SELECT n FROM holdfast_job_state WHERE deadline_at <= :now AND deadline_at IS NOT NULL"
    " AND state IN ('queued', 'leased', 'retry_waiting', 'waiting_for_approval')"
    f" AND id {NOT_QUARANTINED} AND (:any OR tenant = :tenant)"
    " ORDER BY deadline_at LIMIT :want) RETURNING id"
)
# A renewal in the future means that the clock was set back. The lease then lasts from now for its usual duration;
# otherwise a dead worker would count as alive until the clock reaches that time again.
_ANCHOR = (
    "UPDATE holdfast_lease SET until = :now + (until - renewed_at), renewed_at = :now"
    " WHERE ended_at IS NULL AND renewed_at > :now + 5000000 AND (:any OR tenant = :tenant)"
)
_EXPIRED_LEASES = (
    "UPDATE holdfast_lease SET ended_at = :now, ended_why = 'expired' WHERE id IN ("
    "SELECT id FROM holdfast_lease WHERE ended_at IS NULL AND until <= :now AND (:any OR tenant = :tenant)"
    " ORDER BY until LIMIT :want) RETURNING 1"
)
_UNSWEPT = (
    "SELECT id FROM holdfast_lease WHERE ended_at IS NOT NULL AND swept_at IS NULL AND (:any OR tenant = :tenant)"
    " ORDER BY ended_at LIMIT :want"
)
_HELD = (
    "SELECT n, state FROM holdfast_job_state"
    " WHERE state IN ('leased', 'in_progress') AND lease IN (SELECT value FROM json_each(:leases))"
    f" AND id {NOT_QUARANTINED} ORDER BY id LIMIT :want"
)
_REQUEUE = (
    "UPDATE holdfast_job_state SET state = 'queued', lease = NULL, note = '{\"reason\": \"lease_expired\"}'"
    " WHERE n IN (SELECT value FROM json_each(?))"
)
_LOST, _LOST_HOW = "worker_lost", "the worker that ran this job stopped renewing its lease"
_CRASH = (
    "UPDATE holdfast_job_state SET state = 'failed', lease = NULL, finished_at = ?, note = NULL,"
    f" error_code = '{_LOST}', error_message = '{_LOST_HOW}' WHERE n IN (SELECT value FROM json_each(?))"
)
_RESCUE = (
    "UPDATE holdfast_job_state SET state = 'retry_waiting', crashes = min(crashes, 32766) + 1, due_at = :now,"
    " finished_at = NULL, note = NULL WHERE crashes < max_crashes AND n IN (SELECT value FROM json_each(:numbers))"
)
_LAST = (
    "SELECT n, kind FROM holdfast_job_state WHERE crashes >= max_crashes AND n IN (SELECT value FROM json_each(?))"
    " ORDER BY n"
)
_DEAD_LETTER = (
    "UPDATE holdfast_job_state SET state = 'dead_letter', crashes = min(crashes, 32766) + 1, due_at = NULL,"
    " finished_at = :now, note = json_object('fingerprint', :group) WHERE n = :n"
)
_DEAD = (
    "SELECT id FROM holdfast_job_state WHERE state = 'dead_letter' AND n IN (SELECT value FROM json_each(?)) ORDER BY n"
)
_RETRIED_AS_NEW = (
    "SELECT s.n, s.id FROM holdfast_job_state s JOIN holdfast_job j ON j.n = s.n WHERE s.n IN (SELECT value FROM"
    " json_each(?)) AND j.retry_as IS NOT NULL AND s.crashes < s.max_crashes"
)
_SWEPT = (
    "UPDATE holdfast_lease SET swept_at = ? WHERE id IN (SELECT value FROM json_each(?))"
    " AND NOT EXISTS (SELECT 1 FROM holdfast_job_state s WHERE s.lease = holdfast_lease.id AND s.state IN ('leased',"
    " 'in_progress'))"
)


def _idle_unless(query: str, result: Any) -> Callable[..., Steps[Any]]:
    """A ``peek`` that returns ``result`` if the query finds nothing to do: a write without effect would wake every
    listener."""

    def peek(_: object, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[Any]:
        present = yield Statement("SELECT now FROM holdfast_present")
        rows = yield Statement(query, {"now": present[0][0], "every": tenant == EVERY_TENANT})
        return None if rows else result

    return peek


def free(held: Sequence[Row], now: int) -> Steps[tuple[list[int], list[int]]]:
    """Take jobs (number and state) from ended leases: leased ones are queued again, started ones have crashed. Returns
    the numbers of both."""
    leased = [number for number, state in held if state == "leased"]
    begun = [number for number, state in held if state == "in_progress"]
    if leased:
        yield Statement(_REQUEUE, (ids_json(leased),))
    if begun:
        yield Statement(_CRASH, (now, ids_json(begun)))
        rows = yield Statement(_RETRIED_AS_NEW, (ids_json(begun),))
        as_new: dict[int, str] = {row[0]: row[1] for row in rows}
        for job_id in as_new.values():
            yield from retry_as_new(job_id, now, None, lost=1)
        others = ids_json(n for n in begun if n not in as_new)
        last = yield Statement(_LAST, (others,))
        yield Statement(_RESCUE, {"now": now, "numbers": others})
        for n, kind in last:
            yield Statement(_DEAD_LETTER, {"n": n, "now": now, "group": fingerprint(kind, _LOST, _LOST_HOW)})
    return leased, begun


def _peek(_: object, settlements: Sequence[Settlement], request: ClaimRequest) -> Steps[Exchange | None]:
    """An idle worker must not write: each commit waits for the disk and notifies all other idle workers."""
    if settlements:
        return None
    rows = yield Statement("SELECT now FROM holdfast_present")
    state = yield from lease_state(request.lease, request.tenant, rows[0][0])
    if state.live and not state.may_claim and request.want > 0:
        raise executor_refused()
    next_in: float | None = None
    if state.live and request.want > 0:
        has_jobs, next_in = yield from has_work(request, rows[0][0])
        if has_jobs:
            return None
    return Exchange([], [], state.live, next_in=next_in)


QUARANTINE = 600 * 1_000_000

_SCOPE = f"AND s.id {NOT_QUARANTINED} AND (:any OR s.tenant = :tenant)"
_CANDIDATES = (
    (
        "take",
        "SELECT s.n, s.id, s.state FROM holdfast_job_state s WHERE s.queue IN (SELECT value FROM json_each(:queues))"
        " AND s.state = 'queued' AND s.due_at IS NULL"
        f" AND (:kinds IS NULL OR s.kind IN (SELECT value FROM json_each(:kinds))) {_SCOPE}"
        " ORDER BY s.queue, s.priority DESC, s.position LIMIT :want",
    ),
    (
        "promote",
        "SELECT s.n, s.id, s.state FROM holdfast_job_state s WHERE s.due_at <= :now AND s.due_at IS NOT NULL"
        f" AND s.state IN ('queued', 'retry_waiting') {_SCOPE} ORDER BY s.due_at LIMIT :want",
    ),
    (
        "expire",
        "SELECT s.n, s.id, s.state FROM holdfast_job_state s WHERE s.deadline_at <= :now AND s.deadline_at IS NOT NULL"
        f" AND s.state IN ('queued', 'leased', 'retry_waiting', 'waiting_for_approval') {_SCOPE}"
        " ORDER BY s.deadline_at LIMIT :want",
    ),
    (
        "free",
        "SELECT s.n, s.id, s.state FROM holdfast_job_state s WHERE s.state IN ('leased', 'in_progress') AND s.lease IN"
        f" (SELECT id FROM holdfast_lease WHERE ended_at IS NOT NULL AND swept_at IS NULL) {_SCOPE} ORDER BY s.id"
        " LIMIT :want",
    ),
)
_TRY = {
    "take": "UPDATE holdfast_job_state SET state = 'in_progress', lease = :lease, settled_by = NULL, note = NULL,"
    " held_by = NULL, attempt = attempt + 1, started_at = :now WHERE n = :n",
    "promote": "UPDATE holdfast_job_state SET state = 'queued', due_at = NULL, note = NULL WHERE n = :n",
    "expire": "UPDATE holdfast_job_state SET state = 'failed', lease = NULL, due_at = NULL, approval_id = NULL,"
    " finished_at = :now, note = NULL, error_code = 'deadline_passed', error_message = '' WHERE n = :n",
}
_LIVE = "SELECT 1 FROM holdfast_lease WHERE id = ? AND tenant = ? AND ended_at IS NULL AND until > ?"
_NOTE = (
    "INSERT INTO holdfast_quarantine (job_id, tenant, why, at, until)"
    " SELECT s.id, s.tenant, :why, :now, :until FROM holdfast_job_state s WHERE s.n = :n"
    " ON CONFLICT (job_id) DO UPDATE SET why = excluded.why, at = excluded.at, until = excluded.until"
)
# Errors that are not about the row.
_TRANSIENT = ("stale lease", "paused", "executor", "generator only", "database is", "disk")


def _one(statement: Statement) -> Steps[None]:
    yield statement


def _refusal(steps: Steps[Any]) -> Steps[str | None]:
    """The error of updating one row alone, None if there is none. The update is rolled back."""
    why = None
    yield Statement("SAVEPOINT alone")
    try:
        yield from steps
    except (sqlite3.Error, ValueError) as error:
        why = str(error)
        if why.startswith(_TRANSIENT):
            raise
    yield Statement("ROLLBACK TO alone")
    yield Statement("RELEASE alone")
    return why


class SqliteLeases(SqliteLeaseRows):
    """``store.leases``."""

    @flow(peek=_peek)
    def exchange(self, settlements: Sequence[Settlement], request: ClaimRequest) -> Steps[Exchange]:
        now = yield from act_under(request.lease, request.tenant)
        stale = (yield from end_attempts(request.lease, settlements, now)) if settlements else []
        state = yield from lease_state(request.lease, request.tenant, now)
        # An executor that was removed from the allowlist keeps its settlements, but claims nothing more.
        may = state.live and state.may_claim and request.want > 0
        claims, next_in = (yield from self.take(request, now, state)) if may else ([], None)
        yield from end_write()
        return Exchange(claims, stale, state.live, next_in=next_in)

    @maintenance_flow(0, _idle_unless(_IS_DUE, 0))
    def promote(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[int]:
        now = yield from begin_write("maintenance")
        yield from share_when_needed(tenant)
        rows = yield Statement(_PROMOTE, {"now": now, "any": any_tenant(tenant), "tenant": tenant, "want": want})
        yield from end_write()
        return len(rows)

    @maintenance_flow(0, _idle_unless(_IS_OVERDUE, 0))
    def expire(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[int]:
        now = yield from begin_write("maintenance")
        rows = yield Statement(_EXPIRE, {"now": now, "any": any_tenant(tenant), "tenant": tenant, "want": want})
        yield from end_write()
        return len(rows)

    @maintenance_flow(Sweep(0, 0, 0), _idle_unless(_IS_LAPSED, Sweep(0, 0, 0)))
    def recover(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[Sweep]:
        now = yield from begin_write("recovery")
        scope = {"any": any_tenant(tenant), "tenant": tenant, "want": want}
        yield Statement(_ANCHOR, {"now": now, **scope})
        expired = yield Statement(_EXPIRED_LEASES, {"now": now, **scope})
        unswept = yield Statement(_UNSWEPT, scope)
        leased: list[int] = []
        begun: list[int] = []
        dead: list[Row] = []
        if unswept:
            leases = ids_json(row[0] for row in unswept)
            held = yield Statement(_HELD, {"leases": leases, "want": want, "now": now})
            leased, begun = yield from free(held, now)
            yield Statement(
                "DELETE FROM holdfast_cancellation WHERE lease IN (SELECT value FROM json_each(?))", (leases,)
            )
            yield Statement(_SWEPT, (now, leases))
            if begun:
                dead = yield Statement(_DEAD, (ids_json(begun),))
        yield from end_write()
        return Sweep(len(expired), len(leased), len(begun), tuple(row[0] for row in dead))

    @flow()
    def quarantine(
        self,
        lease: str | None,
        queues: Sequence[str],
        kinds: Sequence[str] | None = None,
        want: int = 1000,
        tenant: str = EVERY_TENANT,
    ) -> Steps[list[str]]:
        now = yield from begin_write("recovery")
        live = yield Statement(_LIVE, (lease, tenant, now))
        scope = {"now": now, "any": any_tenant(tenant), "tenant": tenant, "want": want, "queues": ids_json(queues)}
        scope["kinds"] = None if kinds is None else ids_json(kinds)
        quarantined: list[str] = []
        for how, candidates in _CANDIDATES:
            if how == "take" and not live:
                continue
            for n, job_id, state in (yield Statement(candidates, scope)):
                params = {"n": n, "now": now, "lease": lease}
                steps = free([(n, state)], now) if how == "free" else _one(Statement(_TRY[how], params))
                why = yield from _refusal(steps)
                if why is not None:
                    yield Statement(_NOTE, {"n": n, "why": why[:1000], "now": now, "until": now + QUARANTINE})
                    quarantined.append(job_id)
        yield from end_write()
        return quarantined

    @flow()
    def settle(self, lease: str, settlements: Sequence[Settlement], tenant: str) -> Steps[list[str]]:
        now = yield from act_under(lease, tenant)
        stale = yield from end_attempts(lease, settlements, now)
        yield from end_write()
        return stale

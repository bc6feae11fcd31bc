"""Retention policies, sweeps and usage on SQLite.

A pass walks the jobs in the same way as on PostgreSQL; ``postgres.sql`` explains it.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from holdfast.engine.job import EVERY_TENANT
from holdfast.features.retention.model import (
    ANY,
    COUNTS,
    ENDS,
    IDLE,
    PREVIEWED,
    Preview,
    Retention,
    RetentionRule,
    SweepResult,
)
from holdfast.features.retention.sqlite_purge import SqliteOrphans, clean_jobs, first_id, prune_bookkeeping, purge_jobs
from holdfast.features.retention.store import RetentionReads, UsageReads
from holdfast.stores.codecs import Record, from_micros, in_micros
from holdfast.stores.flow import Row, Statement, Steps, flow
from holdfast.stores.sqlite.admission import maintenance_flow
from holdfast.stores.sqlite.base import SqlitePart, any_tenant, begin_write, end_write, ids_json, upsert
from holdfast.stores.sqlite.codec import NEVER, SqliteCodec

DAY, MINUTE, SOON = 86_400_000_000, 60_000_000, 10_000_000
NEWEST = "the newest event"

_COLUMNS = Record.columns(Retention)
_SET = (
    upsert(
        "holdfast_retention",
        Retention,
        keep="tenant kind state created_at",
        compare="clean_after purge_after archive declared",
    )
    + " AND (t.declared OR NOT excluded.declared) RETURNING 1"
)
_DELETE_PASS = (
    "DELETE FROM holdfast_retention_pass WHERE tenant = :tenant AND kind = :kind AND state = :state AND action ="
    " :action"
)
_ONE = f"SELECT {_COLUMNS} FROM holdfast_retention WHERE tenant = ? AND kind = ? AND state = ?"
_DELETE = "DELETE FROM holdfast_retention WHERE tenant = ? AND kind = ? AND state = ? RETURNING 1"
# After a change of the policies each policy gets its passes, and they start at the first job.
_DELETE_PASSES = "DELETE FROM holdfast_retention_pass WHERE :any OR tenant = :tenant"
_START_PASSES = (
    "INSERT INTO holdfast_retention_pass (tenant, kind, state, action, again_at) SELECT r.tenant, r.kind, r.state,"
    " v.value, :now"
    ' FROM holdfast_retention r, json_each(\'["clean", "purge"]\') v WHERE (:any OR r.tenant = :tenant)'
    " AND CASE v.value WHEN 'clean' THEN coalesce(r.clean_after, r.purge_after) ELSE r.purge_after END IS NOT NULL"
)
_START_COUNTING = "INSERT INTO holdfast_usage_place (id, cursor, updated_at) VALUES (1, NULL, ?) ON CONFLICT DO NOTHING"
_PRUNE_DUE = "SELECT 1 FROM holdfast_upkeep WHERE prune_at <= :now AND :any"
_NEXT_PASS = (
    "SELECT tenant, kind, state, action, reached, looked, restart_at, held, held_by FROM holdfast_retention_pass"
    " WHERE again_at <= :now AND (:any OR tenant = :tenant) ORDER BY again_at, action LIMIT 1"
)
_PASSES = (
    "SELECT tenant, kind, state, action, reached, looked, restart_at, held, held_by FROM holdfast_retention_pass"
    " WHERE :any OR tenant IN (:tenant, '*') ORDER BY tenant, kind, state, action"
)
_REACHED = (
    "SELECT reached FROM holdfast_retention_pass WHERE tenant = ? AND kind = ? AND state = ? AND action = 'clean'"
)
_ADVANCE = (
    "UPDATE holdfast_retention_pass SET reached = :reached, looked = :looked, again_at = :again, restart_at = :restart,"
    " held = :held, held_by = :held_by WHERE tenant = :tenant AND kind = :kind AND state = :state AND action = :action"
)
_ORPHANED_FILES = (
    "SELECT count(*), min(at) FROM (SELECT at FROM holdfast_orphaned_file WHERE :any OR tenant = :tenant LIMIT :most)"
)
_AHEAD = "id > :after AND id <= :upto"
_NEXT_OF_TENANT = (
    " UNION ALL ".join(
        f"SELECT id FROM (SELECT id FROM holdfast_job_state WHERE tenant = :tenant AND state = '{state}'"
        f" AND state NOT IN ('leased', 'in_progress') AND {_AHEAD} ORDER BY id LIMIT :look)"
        for state in (*ENDS, "cleaned")
    )
    + " ORDER BY id LIMIT :look"
)
_WAS = "CASE s.state WHEN 'cleaned' THEN coalesce(json_extract(s.note, '$.was'), 'succeeded') ELSE s.state END"
# The rule of features/retention/model.py: no policy that is more specific matches.
_DUE = (
    f"SELECT s.id, s.finished_at FROM (SELECT *, {_WAS} AS was FROM holdfast_job_state s"
    " WHERE s.id IN (SELECT value FROM json_each(:ids))) s"
    " WHERE s.finished_at <= :cutoff AND CASE :action WHEN 'purge' THEN s.state = 'cleaned'"
    " ELSE s.state IN ('succeeded', 'failed', 'cancelled', 'dead_letter') END"
    " AND :tenant IN (s.tenant, '*') AND :kind IN (s.kind, '*')"
    " AND (:state = s.was OR (:state = '*' AND s.was <> 'dead_letter'))"
    " AND NOT EXISTS (SELECT 1 FROM holdfast_retention r WHERE r.tenant IN (s.tenant, '*') AND r.kind IN (s.kind, '*')"
    " AND (r.state = s.was OR (r.state = '*' AND s.was <> 'dead_letter'))"
    " AND (r.tenant = '*', r.kind = '*', r.state = '*') < (:tenant = '*', :kind = '*', :state = '*'))"
    " AND (s.workflow_id IS NULL OR EXISTS (SELECT 1 FROM holdfast_workflow w WHERE w.id = s.workflow_id"
    " AND w.finished_at IS NOT NULL AND (w.dead = 0 OR s.state = 'dead_letter')))"
    " AND NOT EXISTS (SELECT 1 FROM holdfast_job r JOIN holdfast_job_state t ON t.n = r.n"
    " WHERE r.retry_of = s.id AND r.retry_of IS NOT NULL AND (:action = 'purge' OR t.finished_at IS NULL))"
    " ORDER BY s.id LIMIT :want"
)
# Readers of the ledger never miss events, and the newest event of all stays, so that no number is used twice. No usage
# depends on the event that a job was cleaned, so a purge does not wait for the usage counter to reach it.
_UNREAD = (
    "WITH reader (tenant, name, seq) AS ("
    " SELECT tenant, 'consumer ' || name, CAST(cursor AS INTEGER) FROM holdfast_consumer WHERE cursor NOT LIKE 'a%'"
    " UNION ALL SELECT tenant, 'subscription ' || name, CAST(coalesce(cursor, 0) AS INTEGER) FROM holdfast_subscription"
    " WHERE pattern LIKE 'job.%'"
    " UNION ALL SELECT '*', 'usage', CAST(coalesce(cursor, 0) AS INTEGER) FROM holdfast_usage_place)"
    " SELECT e.job_id, min(r.name) FROM holdfast_event e JOIN reader r ON r.tenant IN (e.tenant, '*') AND e.seq > r.seq"
    " WHERE e.job_id IN (SELECT value FROM json_each(:ids)) AND NOT (r.name = 'usage' AND e.to_state = 'cleaned')"
    " GROUP BY e.job_id"
    f" UNION ALL SELECT job_id, '{NEWEST}' FROM holdfast_event WHERE seq = (SELECT max(seq) FROM holdfast_event)"
    " AND job_id IN (SELECT value FROM json_each(:ids))"
    # If a seal covers some events of a job, it must cover all of them. The last event lists the others; without it a
    # purge could not be told from tampering.
    " UNION ALL SELECT e.job_id, 'seal' FROM holdfast_event e, (SELECT max(floor) AS floor FROM holdfast_seal) l"
    " WHERE e.job_id IN (SELECT value FROM json_each(:ids)) GROUP BY e.job_id"
    " HAVING min(e.seq) <= l.floor AND max(e.seq) > l.floor"
)

# A cleaned job never changes any more; another one may have been redriven since it was archived.
_UNARCHIVED = (
    "SELECT s.id FROM holdfast_job_state s WHERE s.id IN (SELECT value FROM json_each(:ids)) AND NOT EXISTS (SELECT 1"
    " FROM holdfast_archived a WHERE a.job_id = s.id AND (s.state = 'cleaned' OR s.finished_at = a.finished_at))"
)


def _peek_sweep(_: object, want: int = 200, look: int = 2000, tenant: str = EVERY_TENANT) -> Steps[Any]:
    """Check first whether a pass is due: a task that writes without need would wake every listener."""
    ((now,),) = yield Statement("SELECT now FROM holdfast_present")
    scope = {"now": now, "any": any_tenant(tenant), "tenant": tenant}
    rows = (yield Statement(_PRUNE_DUE, scope)) or (yield Statement(_NEXT_PASS, scope))
    return None if rows else IDLE


class SqliteRetention(SqlitePart, SqliteOrphans, RetentionReads):
    @flow()
    def remove(self, kind: str, state: str, actor: str, tenant: str) -> Steps[bool]:
        now = yield from begin_write(actor)
        rows = yield Statement(_DELETE, (tenant, kind, state))
        if rows:
            yield from _restart(tenant, now)
        yield from end_write()
        return bool(rows)

    @flow(writes=False)
    def preview(self, tenant: str, most: int = PREVIEWED) -> Steps[list[Preview]]:
        now = int((yield Statement("SELECT now FROM holdfast_present"))[0][0])
        previews = []
        for *key, action, _, _, _, held, held_by in (
            yield Statement(_PASSES, {"any": any_tenant(tenant), "tenant": tenant})
        ):
            rows = yield Statement(_ONE, tuple(key))
            if not rows:  # a pass without its policy
                continue
            policy = _decode(rows[0])
            cutoff = _cutoff(policy, action, now)
            ids = yield from _next_ids(policy, "", _first_id_after(cutoff), most)
            due = yield from _due(policy, action, ids, cutoff, most)
            oldest = min((at for _, at in due), default=None)
            oldest_at = None if oldest is None else from_micros(oldest)
            selection = (policy.tenant, policy.kind, policy.state)
            previews.append(Preview(*selection, action, len(due), len(ids) >= most, oldest_at, held, held_by))
        params = {"any": any_tenant(tenant), "tenant": tenant, "most": most}
        ((count, oldest),) = yield Statement(_ORPHANED_FILES, params)
        if count:
            previews.append(Preview(tenant, ANY, ANY, "delete", count, count >= most, from_micros(oldest), 0, None))
        return previews

    @maintenance_flow(IDLE, _peek_sweep)
    def sweep(self, want: int = 200, look: int = 2000, tenant: str = EVERY_TENANT) -> Steps[SweepResult]:
        now = yield from begin_write("retention")
        scope = {"now": now, "any": any_tenant(tenant), "tenant": tenant}
        if (yield Statement(_PRUNE_DUE, scope)):
            result = yield from _prune(want, now)
        else:
            rows = yield Statement(_NEXT_PASS, scope)
            result = (yield from _sweep_slice(rows[0], want, look, now)) if rows else IDLE
        yield from end_write()
        return result

    @flow()
    def set(self, rule: RetentionRule, actor: str, tenant: str) -> Steps[Retention]:
        now = yield from begin_write(actor)
        written = {"tenant": tenant, "set_by": actor, "created_at": now, "updated_at": now}
        changed = yield Statement(_SET, asdict(rule) | written)
        if changed:
            yield from _restart(tenant, now)
            if rule.purge_after is not None:  # usage is counted before jobs are purged
                yield Statement(_START_COUNTING, (now,))
        rows = yield Statement(_ONE, (tenant, rule.kind, rule.state))
        yield from end_write()
        return _decode(rows[0])


def _prune(want: int, now: int) -> Steps[SweepResult]:
    pruned = yield from prune_bookkeeping(want, now)
    more = pruned >= want
    yield Statement("UPDATE holdfast_upkeep SET prune_at = ?", (now if more else now + 10 * MINUTE,))
    return SweepResult("prune", pruned, pruned, 0, None, more)


def _sweep_slice(row: Row, want: int, look: int, now: int) -> Steps[SweepResult]:
    """Process one slice of a pass and save its position."""
    tenant, kind, state, action, reached, walked, restart, held, held_by = row
    key: dict[str, Any] = {"tenant": tenant, "kind": kind, "state": state, "action": action}
    rows = yield Statement(_ONE, (tenant, kind, state))
    if not rows:  # a pass without its policy would block the other passes
        yield Statement(_DELETE_PASS, key)
        return SweepResult(action, 0, 0, 0, None, True)
    policy = _decode(rows[0])
    if restart is not None and restart <= now:
        reached, walked, restart, held, held_by = "", 0, None, 0, None
    cutoff = _cutoff(policy, action, now)
    end = _first_id_after(cutoff)
    if action == "purge":  # a purge never overtakes the cleaning
        end = min(end, (yield Statement(_REACHED, (tenant, kind, state)))[0][0])
    ids = yield from _next_ids(policy, reached, end, look)
    due: list[str] = []
    for start in range(0, len(ids), want):  # part by part: usually the first part contains enough jobs
        part = yield from _due(policy, action, ids[start : start + want], cutoff, want - len(due))
        due += [job_id for job_id, _ in part]
        if len(due) >= want:
            break
    unread: dict[str, str] = {}
    if policy.archive and due:
        unread = {job_id: "archive" for (job_id,) in (yield Statement(_UNARCHIVED, {"ids": ids_json(due)}))}
    if action == "purge" and due:
        for job_id, reader in (yield Statement(_UNREAD, {"ids": ids_json(due)})):
            unread.setdefault(job_id, reader)
    if removable := [job_id for job_id in due if job_id not in unread]:
        yield from (clean_jobs if action == "clean" else purge_jobs)(removable)
    full = len(due) >= want  # more of the jobs read may be due
    more = full or len(ids) >= look
    held += len(unread)
    held_by = min(unread.values(), default=held_by)
    walked += len(ids)
    if not more:  # less often the longer its walk, and soon if only a reader lagged behind
        pause = SOON if held else min(DAY, max(MINUTE, (now - cutoff) // 24))
        restart = min(now + pause + walked * 100, NEVER if restart is None else restart)
    params = {
        "reached": due[-1] if full else ids[-1] if ids else reached,
        "looked": walked,
        "again": now if more else now + SOON,
        "restart": restart,
        "held": held,
        "held_by": held_by,
    }
    yield Statement(_ADVANCE, key | params)
    return SweepResult(action, len(ids), len(due) - len(unread), len(unread), min(unread.values(), default=None), more)


def _next_ids(policy: Retention, after: str, upto: str, look: int) -> Steps[list[str]]:
    """The next ids of a pass. A policy for one tenant, or one tenant and kind, uses an index and reads no other
    jobs."""
    params = {"after": after, "upto": upto, "tenant": policy.tenant, "kind": policy.kind, "look": look}
    if policy.tenant == ANY:
        rows = yield Statement(f"SELECT id FROM holdfast_job WHERE {_AHEAD} ORDER BY id LIMIT :look", params)
    elif policy.kind != ANY:
        own = "tenant = :tenant AND kind = :kind"
        rows = yield Statement(f"SELECT id FROM holdfast_job WHERE {own} AND {_AHEAD} ORDER BY id LIMIT :look", params)
    else:
        rows = yield Statement(_NEXT_OF_TENANT, params)
    return [row[0] for row in rows]


def _due(policy: Retention, action: str, ids: list[str], cutoff: int, want: int) -> Steps[list[tuple[str, int]]]:
    """Of these jobs, those that the policy decides about and that are due, with the time of their end."""
    params = {"tenant": policy.tenant, "kind": policy.kind, "state": policy.state, "action": action}
    rows = yield Statement(_DUE, params | {"ids": ids_json(ids), "cutoff": cutoff, "want": want})
    return [(row[0], row[1]) for row in rows]


MAX_AGE = 100 * 366 * 86_400.0


def _cutoff(policy: Retention, action: str, now: int) -> int:
    """Jobs that ended before this time are due. An invalid age, written with SQL, counts as a hundred years, so that
    no job is removed early because of it."""
    ages = (policy.clean_after, policy.purge_after) if action == "clean" else (policy.purge_after,)
    return now - in_micros(min(age if 0 <= age < MAX_AGE else MAX_AGE for age in ages if age is not None))


def _first_id_after(at: int) -> str:
    """The lowest id of the millisecond after a time. A job that ended by then has a lower id."""
    return first_id(at + 1000)


def _restart(tenant: str, now: int) -> Steps[None]:
    scope = {"any": any_tenant(tenant), "tenant": tenant}
    yield Statement(_DELETE_PASSES, scope)
    yield Statement(_START_PASSES, scope | {"now": now})


_decode = Record.decoder(Retention, SqliteCodec())


_SUMS = (*COUNTS, "run_time", "wait_time", "cost")
_UNCOUNTED = (
    "SELECT 1 FROM holdfast_usage_place u WHERE EXISTS (SELECT 1 FROM holdfast_event WHERE seq >"
    " CAST(coalesce(u.cursor, 0) AS INTEGER))"
)
_CURSOR = "SELECT CAST(coalesce(cursor, 0) AS INTEGER) FROM holdfast_usage_place"
_LAST = "SELECT count(*), max(seq) FROM (SELECT seq FROM holdfast_event WHERE seq > :after ORDER BY seq LIMIT :want)"
_SAVE_CURSOR = "UPDATE holdfast_usage_place SET cursor = ?, updated_at = ?"
# An event written with SQL must not stop the counting of the others: its time is clamped to the years 1 to 9999, its
# context is ignored if it is not JSON, and its cost is bounded.
_AT = "max(-62135596800000000, min(253402300799999999, {}))"
_META = "CASE WHEN json_valid({0}) THEN {0} END"
_MAX_MICROS = 10**15
_RAN = (
    f"(SELECT {_AT.format('e.at')} - {_AT.format('b.at')} FROM holdfast_event b"
    " WHERE b.job_id = e.job_id AND b.seq < e.seq AND b.to_state = 'in_progress' ORDER BY b.seq DESC LIMIT 1)"
)
_READY = (
    "CASE q.type WHEN 'enqueue' THEN (SELECT j.run_at FROM holdfast_job j WHERE j.id = e.job_id)"
    f" WHEN 'reschedule' THEN CAST(round((julianday(nullif(json_extract({_META.format('q.meta')}, '$.rescheduled'),"
    " 'now')) - 2440587.5) * 86400000) AS INTEGER) * 1000 END"
)
# From the moment it could have been claimed: enqueued, and due. Times in the ledger's context have milliseconds.
_WAITED = (
    f"(SELECT {_AT.format('e.at')} - {_AT.format('max(q.at, coalesce(' + _READY + ', q.at))')} FROM holdfast_event q"
    " WHERE q.job_id = e.job_id AND q.seq < e.seq AND q.to_state = 'queued' ORDER BY q.seq DESC LIMIT 1)"
)
_ADD = (
    f"INSERT INTO holdfast_usage (tenant, day, kind, {', '.join(_SUMS)})"
    f" SELECT e.tenant, date({_AT.format('e.at')} / 1000000, 'unixepoch'), e.kind, sum(e.type = 'enqueue'),"
    " sum(e.to_state = 'in_progress'), sum(e.to_state = 'succeeded'), sum(e.type = 'fail'),"
    " sum(e.from_state IS 'in_progress' AND e.type IN ('lease_expired', 'crash')), sum(e.type = 'dead_letter'),"
    " sum(e.type = 'cancel'), sum(e.to_state = 'failed' AND e.type IN ('expire', 'deny')),"
    f" sum(CASE WHEN e.from_state = 'in_progress' THEN max(0, coalesce({_RAN}, 0)) ELSE 0 END),"
    f" sum(CASE WHEN e.to_state = 'in_progress' THEN max(0, coalesce({_WAITED}, 0)) ELSE 0 END),"
    " sum(CASE WHEN e.from_state = 'in_progress'"
    f" AND json_type({_META.format('e.meta')}, '$.cost') IN ('integer', 'real')"
    f" THEN max(0, min({_MAX_MICROS}, CAST(round(json_extract(e.meta, '$.cost') * 1000000) AS INTEGER))) ELSE 0 END)"
    " FROM holdfast_event e WHERE e.seq > :after AND e.seq <= :last GROUP BY 1, 2, 3"
    " ON CONFLICT DO UPDATE SET " + ", ".join(f"{name} = {name} + excluded.{name}" for name in _SUMS)
)


def _peek_count(_: object, want: int = 2000, begin: bool = False) -> Steps[Any]:
    """Check for new events first: a count without any must not take the write lock."""
    rows = yield Statement(_UNCOUNTED)
    return None if rows or begin else 0


class SqliteUsage(SqlitePart, UsageReads):
    @flow(peek=_peek_count)
    def count(self, want: int = 2000, begin: bool = False) -> Steps[int]:
        now = yield from begin_write(None)
        if begin:
            yield Statement(_START_COUNTING, (now,))
        rows = yield Statement(_CURSOR)
        count = 0
        if rows:
            after = int(rows[0][0])
            ((count, last),) = yield Statement(_LAST, {"after": after, "want": want})
            if count:
                yield Statement(_ADD, {"after": after, "last": last})
                yield Statement(_SAVE_CURSOR, (str(last), now))
        yield from end_write()
        return int(count)

"""Retention policies, sweeps and usage on SQLite.

Retention (DP-16): policies, their previews, and the sweep, a slice at a time.

How a pass walks the jobs is told in the PostgreSQL store's features/retention/postgres.sql; it is the same here.
"""

from __future__ import annotations

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
    Swept,
)
from holdfast.features.retention.sqlite_purge import SqliteOrphans, clean_jobs, prune_bookkeeping, purge_jobs
from holdfast.features.retention.store import RetentionReads, UsageReads
from holdfast.stores.codecs import Record, from_micros, in_micros
from holdfast.stores.flow import Row, Statement, Steps, flow
from holdfast.stores.sqlite.admission import duty
from holdfast.stores.sqlite.base import SqlitePart, any_tenant, ids_json, sign, unsign
from holdfast.stores.sqlite.codec import NEVER, SqliteCodec

DAY, MINUTE, SOON = 86_400_000_000, 60_000_000, 10_000_000
NEWEST = "the newest event"

_COLUMNS = Record.columns(Retention)
_SET = (
    f"INSERT INTO retention ({_COLUMNS})"
    " VALUES (:tenant, :kind, :state, :clean_after, :purge_after, :declared, :actor, :now, :now)"
    " ON CONFLICT DO UPDATE SET clean_after = excluded.clean_after, purge_after = excluded.purge_after,"
    " declared = excluded.declared, set_by = excluded.set_by, updated_at = excluded.updated_at"
    " WHERE (retention.declared OR NOT excluded.declared)"
    " AND (retention.clean_after, retention.purge_after, retention.declared)"
    " IS NOT (excluded.clean_after, excluded.purge_after, excluded.declared) RETURNING 1"
)
_ORPHAN = "DELETE FROM retention_pass WHERE tenant = :tenant AND kind = :kind AND state = :state AND action = :action"
_ONE = f"SELECT {_COLUMNS} FROM retention WHERE tenant = ? AND kind = ? AND state = ?"
_DELETE = "DELETE FROM retention WHERE tenant = ? AND kind = ? AND state = ? RETURNING 1"
# Policies have changed: each has its passes, and they begin at the first job.
_FORGET = "DELETE FROM retention_pass WHERE :any OR tenant = :tenant"
_BEGIN = (
    "INSERT INTO retention_pass (tenant, kind, state, action, again_at) SELECT r.tenant, r.kind, r.state, v.value, :now"
    ' FROM retention r, json_each(\'["clean", "purge"]\') v WHERE (:any OR r.tenant = :tenant)'
    " AND CASE v.value WHEN 'clean' THEN coalesce(r.clean_after, r.purge_after) ELSE r.purge_after END IS NOT NULL"
)
_COUNT = "INSERT INTO usage_place (id, cursor, updated_at) VALUES (1, NULL, ?) ON CONFLICT DO NOTHING"
_PRUNE = "SELECT 1 FROM upkeep WHERE prune_at <= :now AND :any"
_TURN = (
    "SELECT tenant, kind, state, action, reached, looked, restart_at, held, held_by FROM retention_pass"
    " WHERE again_at <= :now AND (:any OR tenant = :tenant) ORDER BY again_at, action LIMIT 1"
)
_PASSES = (
    "SELECT tenant, kind, state, action, reached, looked, restart_at, held, held_by FROM retention_pass"
    " WHERE :any OR tenant IN (:tenant, '*') ORDER BY tenant, kind, state, action"
)
_REACHED = "SELECT reached FROM retention_pass WHERE tenant = ? AND kind = ? AND state = ? AND action = 'clean'"
_GO_ON = (
    "UPDATE retention_pass SET reached = :reached, looked = :looked, again_at = :again, restart_at = :restart,"
    " held = :held, held_by = :held_by WHERE tenant = :tenant AND kind = :kind AND state = :state AND action = :action"
)
_LEFT = "SELECT count(*), min(at) FROM (SELECT at FROM leftover WHERE :any OR tenant = :tenant LIMIT :most)"
_AHEAD = "id > :after AND id <= :upto"
_NEXT_OF_TENANT = (
    " UNION ALL ".join(
        f"SELECT id FROM (SELECT id FROM job_state WHERE tenant = :tenant AND state = '{state}'"
        f" AND state NOT IN ('leased', 'in_progress') AND {_AHEAD} ORDER BY id LIMIT :look)"
        for state in (*ENDS, "cleaned")
    )
    + " ORDER BY id LIMIT :look"
)
_WAS = "CASE s.state WHEN 'cleaned' THEN coalesce(json_extract(s.note, '$.was'), 'succeeded') ELSE s.state END"
# The rule of features/retention/model.py: nobody who names more has the say.
_DUE = (
    f"SELECT s.id, s.finished_at FROM (SELECT *, {_WAS} AS was FROM job_state s"
    " WHERE s.id IN (SELECT value FROM json_each(:ids))) s"
    " WHERE s.finished_at <= :cutoff AND CASE :action WHEN 'purge' THEN s.state = 'cleaned'"
    " ELSE s.state IN ('succeeded', 'failed', 'cancelled', 'dead_letter') END"
    " AND :tenant IN (s.tenant, '*') AND :kind IN (s.kind, '*')"
    " AND (:state = s.was OR (:state = '*' AND s.was <> 'dead_letter'))"
    " AND NOT EXISTS (SELECT 1 FROM retention r WHERE r.tenant IN (s.tenant, '*') AND r.kind IN (s.kind, '*')"
    " AND (r.state = s.was OR (r.state = '*' AND s.was <> 'dead_letter'))"
    " AND (r.tenant = '*', r.kind = '*', r.state = '*') < (:tenant = '*', :kind = '*', :state = '*'))"
    " AND (s.workflow_id IS NULL OR EXISTS (SELECT 1 FROM workflow w WHERE w.id = s.workflow_id"
    " AND w.finished_at IS NOT NULL AND (w.dead = 0 OR s.state = 'dead_letter')))"
    " AND NOT EXISTS (SELECT 1 FROM job r JOIN job_state t ON t.n = r.n"
    " WHERE r.retry_of = s.id AND r.retry_of IS NOT NULL AND (:action = 'purge' OR t.finished_at IS NULL))"
    " ORDER BY s.id LIMIT :want"
)
# Nobody who reads the ledger is robbed of an event; and the newest of all stays, so that no number is used twice.
# That a job was cleaned is counted by nobody: a purge need not wait until the counting has come so far.
_UNREAD = (
    "WITH reader (tenant, name, seq) AS ("
    " SELECT tenant, 'consumer ' || name, CAST(cursor AS INTEGER) FROM consumer WHERE cursor NOT LIKE 'a%'"
    " UNION ALL SELECT tenant, 'subscription ' || name, CAST(coalesce(cursor, 0) AS INTEGER) FROM subscription"
    " WHERE pattern LIKE 'job.%'"
    " UNION ALL SELECT '*', 'usage', CAST(coalesce(cursor, 0) AS INTEGER) FROM usage_place)"
    " SELECT e.job_id, min(r.name) FROM event e JOIN reader r ON r.tenant IN (e.tenant, '*') AND e.seq > r.seq"
    " WHERE e.job_id IN (SELECT value FROM json_each(:ids)) AND NOT (r.name = 'usage' AND e.to_state = 'cleaned')"
    " GROUP BY e.job_id"
    f" UNION ALL SELECT job_id, '{NEWEST}' FROM event WHERE seq = (SELECT max(seq) FROM event)"
    " AND job_id IN (SELECT value FROM json_each(:ids))"
    # If a seal has events of a job, it has to have all of them. The last one lists the others, and without it nobody
    # could tell a purge from a deletion.
    " UNION ALL SELECT e.job_id, 'seal' FROM event e, (SELECT max(floor) AS floor FROM seal) l"
    " WHERE e.job_id IN (SELECT value FROM json_each(:ids)) GROUP BY e.job_id"
    " HAVING min(e.seq) <= l.floor AND max(e.seq) > l.floor"
)


def _nothing(_: object, want: int = 200, look: int = 2000, tenant: str = EVERY_TENANT) -> Steps[Any]:
    """Whether it is anybody's turn: a task that writes for nothing would wake every listener."""
    present = yield Statement("SELECT now FROM present")
    scope = {"now": present[0][0], "any": any_tenant(tenant), "tenant": tenant}
    rows = (yield Statement(_PRUNE, scope)) or (yield Statement(_TURN, scope))
    return None if rows else IDLE


class SqliteRetention(SqlitePart, SqliteOrphans, RetentionReads):
    @flow()
    def remove(self, kind: str, state: str, actor: str, tenant: str) -> Steps[bool]:
        now = yield from sign(actor)
        rows = yield Statement(_DELETE, (tenant, kind, state))
        if rows:
            yield from _restart(tenant, now)
        yield from unsign()
        return bool(rows)

    @flow(writes=False)
    def preview(self, tenant: str, most: int = PREVIEWED) -> Steps[list[Preview]]:
        now = int((yield Statement("SELECT now FROM present"))[0][0])
        found = []
        for walk in (yield Statement(_PASSES, {"any": any_tenant(tenant), "tenant": tenant})):
            key, action = walk[:3], walk[3]
            found_rule = yield Statement(_ONE, key)
            if not found_rule:  # a pass without its policy has nothing to say
                continue
            rule = _decode(found_rule[0])
            cutoff = _cutoff(rule, action, now)
            ids = yield from _next(rule, "", _first_id(cutoff), most)
            due = yield from _due(rule, action, ids, cutoff, most)
            oldest = min((at for _, at in due), default=None)
            oldest_at = None if oldest is None else from_micros(oldest)
            found.append(
                Preview(
                    rule.tenant, rule.kind, rule.state, action, len(due), len(ids) >= most, oldest_at, walk[7], walk[8]
                )
            )
        ((count, oldest),) = yield Statement(_LEFT, {"any": any_tenant(tenant), "tenant": tenant, "most": most})
        if count:
            found.append(Preview(tenant, ANY, ANY, "delete", count, count >= most, from_micros(oldest), 0, None))
        return found

    @duty(IDLE, _nothing)
    def sweep(self, want: int = 200, look: int = 2000, tenant: str = EVERY_TENANT) -> Steps[Swept]:
        now = yield from sign("retention")
        scope = {"now": now, "any": any_tenant(tenant), "tenant": tenant}
        if (yield Statement(_PRUNE, scope)):
            swept = yield from _prune(want, now)
        else:
            turn = yield Statement(_TURN, scope)
            swept = (yield from _slice(turn[0], want, look, now)) if turn else IDLE
        yield from unsign()
        return swept

    @flow()
    def set(self, keeping: RetentionRule, actor: str, tenant: str) -> Steps[Retention]:
        now = yield from sign(actor)
        params = {
            "tenant": tenant,
            "kind": keeping.kind,
            "state": keeping.state,
            "clean_after": keeping.clean_after,
            "purge_after": keeping.purge_after,
            "declared": int(keeping.declared),
            "actor": actor,
            "now": now,
        }
        changed = yield Statement(_SET, params)
        if changed:
            yield from _restart(tenant, now)
            if keeping.purge_after is not None:  # what is purged was counted before
                yield Statement(_COUNT, (now,))
        rows = yield Statement(_ONE, (tenant, keeping.kind, keeping.state))
        yield from unsign()
        return _decode(rows[0])


def _prune(want: int, now: int) -> Steps[Swept]:
    pruned = yield from prune_bookkeeping(want, now)
    more = pruned >= want
    yield Statement("UPDATE upkeep SET prune_at = ?", (now if more else now + 10 * MINUTE,))
    return Swept("prune", pruned, pruned, 0, None, more)


def _slice(turn: Row, want: int, look: int, now: int) -> Steps[Swept]:
    tenant, kind, state, action, reached, walked, restart, held, held_by = turn
    place: dict[str, Any] = {"tenant": tenant, "kind": kind, "state": state, "action": action}
    rows = yield Statement(_ONE, (tenant, kind, state))
    if not rows:  # a pass without its policy would keep the others from theirs
        yield Statement(_ORPHAN, place)
        return Swept(action, 0, 0, 0, None, True)
    rule = _decode(rows[0])
    if restart is not None and restart <= now:
        reached, walked, restart, held, held_by = "", 0, None, 0, None
    cutoff = _cutoff(rule, action, now)
    top = _first_id(cutoff)
    if action == "purge":  # never ahead of the cleaning
        top = min(top, (yield Statement(_REACHED, (tenant, kind, state)))[0][0])
    ids = yield from _next(rule, reached, top, look)
    due: list[str] = []
    for start in range(0, len(ids), want):  # a part at a time: mostly the first has as many as are wanted
        found = yield from _due(rule, action, ids[start : start + want], cutoff, want - len(due))
        due += [row[0] for row in found]
        if len(due) >= want:
            break
    unread: dict[str, str] = {}
    if action == "clean" and due:
        yield from clean_jobs(due)
    elif due:
        for job_id, reader in (yield Statement(_UNREAD, {"ids": ids_json(due)})):
            unread.setdefault(job_id, reader)
        if going := [job_id for job_id in due if job_id not in unread]:
            yield from purge_jobs(going)
    full = len(due) >= want  # there may be more of those that were looked at
    more = full or len(ids) >= look
    held += len(unread)
    held_by = min(unread.values(), default=held_by)
    walked += len(ids)
    if not more:  # the less often the longer its way, and soon if somebody only had to read
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
    yield Statement(_GO_ON, place | params)
    return Swept(action, len(ids), len(due) - len(unread), len(unread), min(unread.values(), default=None), more)


def _next(rule: Retention, after: str, upto: str, look: int) -> Steps[list[str]]:
    """The next ids. A policy that names a tenant, or a tenant and a kind, walks its own index and no other's jobs."""
    params = {"after": after, "upto": upto, "tenant": rule.tenant, "kind": rule.kind, "look": look}
    if rule.tenant == ANY:
        rows = yield Statement(f"SELECT id FROM job WHERE {_AHEAD} ORDER BY id LIMIT :look", params)
    elif rule.kind != ANY:
        own = "tenant = :tenant AND kind = :kind"
        rows = yield Statement(f"SELECT id FROM job WHERE {own} AND {_AHEAD} ORDER BY id LIMIT :look", params)
    else:
        rows = yield Statement(_NEXT_OF_TENANT, params)
    return [row[0] for row in rows]


def _due(rule: Retention, action: str, ids: list[str], cutoff: int, want: int) -> Steps[list[tuple[str, int]]]:
    names = {"tenant": rule.tenant, "kind": rule.kind, "state": rule.state, "action": action}
    rows = yield Statement(_DUE, names | {"ids": ids_json(ids), "cutoff": cutoff, "want": want})
    return [(row[0], row[1]) for row in rows]


LONGEST = 100 * 366 * 86_400.0


def _cutoff(rule: Retention, action: str, now: int) -> int:
    ages = (rule.clean_after, rule.purge_after) if action == "clean" else (rule.purge_after,)
    # A number that is no age keeps for a hundred years: nothing goes early for it.
    return now - in_micros(min(age if 0 <= age < LONGEST else LONGEST for age in ages if age is not None))


def _first_id(at: int) -> str:
    """The least id of the millisecond after a moment: whoever ended by then has a lower one."""
    digits = f"{max(0, at // 1000 + 1):012x}"
    return f"{digits[:8]}-{digits[8:]}"


def _restart(tenant: str, now: int) -> Steps[None]:
    scope = {"any": any_tenant(tenant), "tenant": tenant}
    yield Statement(_FORGET, scope)
    yield Statement(_BEGIN, scope | {"now": now})


_decode = Record.decoder(Retention, SqliteCodec())


_SUMS = (*COUNTS, "run_time", "wait_time", "cost")
_MORE = (
    "SELECT 1 FROM usage_place u WHERE EXISTS (SELECT 1 FROM event WHERE seq > CAST(coalesce(u.cursor, 0) AS INTEGER))"
)
_PLACE = "SELECT CAST(coalesce(cursor, 0) AS INTEGER) FROM usage_place"
_USAGE_BEGIN = "INSERT INTO usage_place (id, cursor, updated_at) VALUES (1, NULL, ?) ON CONFLICT DO NOTHING"
_LAST = "SELECT count(*), max(seq) FROM (SELECT seq FROM event WHERE seq > :after ORDER BY seq LIMIT :want)"
_USAGE_GO_ON = "UPDATE usage_place SET cursor = ?, updated_at = ?"
# One event that was written by hand must not keep the others from being counted: its time is taken to be within the
# years 1 to 9999, its context to be JSON, and it costs no more than this.
_AT = "max(-62135596800000000, min(253402300799999999, {}))"
_META = "CASE WHEN json_valid({0}) THEN {0} END"
_MOST = 10**15
_RAN = (
    f"(SELECT {_AT.format('e.at')} - {_AT.format('b.at')} FROM event b"
    " WHERE b.job_id = e.job_id AND b.seq < e.seq AND b.to_state = 'in_progress' ORDER BY b.seq DESC LIMIT 1)"
)
_READY = (
    "CASE q.type WHEN 'enqueue' THEN (SELECT j.run_at FROM job j WHERE j.id = e.job_id)"
    f" WHEN 'reschedule' THEN CAST(round((julianday(nullif(json_extract({_META.format('q.meta')}, '$.rescheduled'),"
    " 'now')) - 2440587.5) * 86400000) AS INTEGER) * 1000 END"
)
# From when it could have been taken: asked for, and due by then. Times in the ledger's context have milliseconds.
_WAITED = (
    f"(SELECT {_AT.format('e.at')} - {_AT.format('max(q.at, coalesce(' + _READY + ', q.at))')} FROM event q"
    " WHERE q.job_id = e.job_id AND q.seq < e.seq AND q.to_state = 'queued' ORDER BY q.seq DESC LIMIT 1)"
)
_ADD = (
    f"INSERT INTO usage (tenant, day, kind, {', '.join(_SUMS)})"
    f" SELECT e.tenant, date({_AT.format('e.at')} / 1000000, 'unixepoch'), e.kind, sum(e.type = 'enqueue'),"
    " sum(e.to_state = 'in_progress'), sum(e.to_state = 'succeeded'), sum(e.type = 'fail'),"
    " sum(e.from_state IS 'in_progress' AND e.type IN ('lapse', 'crash')), sum(e.type = 'bury'),"
    " sum(e.type = 'cancel'), sum(e.to_state = 'failed' AND e.type IN ('expire', 'deny')),"
    f" sum(CASE WHEN e.from_state = 'in_progress' THEN max(0, coalesce({_RAN}, 0)) ELSE 0 END),"
    f" sum(CASE WHEN e.to_state = 'in_progress' THEN max(0, coalesce({_WAITED}, 0)) ELSE 0 END),"
    " sum(CASE WHEN e.from_state = 'in_progress'"
    f" AND json_type({_META.format('e.meta')}, '$.cost') IN ('integer', 'real')"
    f" THEN max(0, min({_MOST}, CAST(round(json_extract(e.meta, '$.cost') * 1000000) AS INTEGER))) ELSE 0 END)"
    " FROM event e WHERE e.seq > :after AND e.seq <= :last GROUP BY 1, 2, 3"
    " ON CONFLICT DO UPDATE SET " + ", ".join(f"{name} = {name} + excluded.{name}" for name in _SUMS)
)


def _usage_nothing(_: object, want: int = 2000, begin: bool = False) -> Steps[Any]:
    """A look that finds nothing must not take the write lock."""
    rows = yield Statement(_MORE)
    return None if rows or begin else 0


class SqliteUsage(SqlitePart, UsageReads):
    @flow(peek=_usage_nothing)
    def count(self, want: int = 2000, begin: bool = False) -> Steps[int]:
        now = yield from sign(None)
        if begin:
            yield Statement(_USAGE_BEGIN, (now,))
        place = yield Statement(_PLACE)
        count = 0
        if place:
            after = int(place[0][0])
            ((count, last),) = yield Statement(_LAST, {"after": after, "want": want})
            if count:
                yield Statement(_ADD, {"after": after, "last": last})
                yield Statement(_USAGE_GO_ON, (str(last), now))
        yield from unsign()
        return int(count)

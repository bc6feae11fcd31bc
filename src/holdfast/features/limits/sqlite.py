"""Limits, reservations, queue settings and pauses on SQLite.

There is one writer at a time: the first reservation in line stays first until the end of the transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from holdfast.engine.job import EVERY_TENANT
from holdfast.features.limits.model import (
    OTHER_TENANTS,
    SCOPES,
    Bucket,
    Limit,
    Pause,
    PauseDraft,
    QueueSetting,
    ReservationRequest,
    ReservationStatus,
    Rule,
    RunEnd,
)
from holdfast.features.limits.sqlite_runs import end_run, record_run, renew_run
from holdfast.features.limits.store import PauseReads, QueueReads, ReservationReads
from holdfast.stores.codecs import Record, in_micros, micros
from holdfast.stores.flow import Row, Statement, Steps, flow
from holdfast.stores.sqlite.admission import (
    halted,
    is_limited,
    maintenance_flow,
    next_token_at,
    release_parked,
    wake_later,
)
from holdfast.stores.sqlite.base import SqlitePart, any_tenant, begin_write, end_write, ids_json
from holdfast.stores.sqlite.codec import SqliteCodec
from holdfast.stores.sqlite.limit_rows import NEXT_PARKED, RULE, bucket_prefix, drop_limit, put_limit, sweep

_REQUEST = (
    "INSERT INTO holdfast_reservation (id, tenant, scope, name, holder, reason, asked_at, expires_at)"
    " VALUES (:id, :tenant, :scope, :name, :actor, :reason, :now, :until)"
)
_RENEW = (
    "UPDATE holdfast_reservation SET expires_at = max(expires_at, :until)"
    " WHERE id = :id AND tenant = :tenant AND state IN ('waiting', 'active') AND expires_at > :now"
)
_STATE = (
    "SELECT CASE WHEN state IN ('waiting', 'active') AND expires_at <= :now THEN 'expired' ELSE state END"
    " FROM holdfast_reservation WHERE id = :id AND tenant = :tenant"
)
# Conflicting reservations: those that are active or ahead in line. Everything conflicts with anything.
_AHEAD = (
    "SELECT count(*) FROM holdfast_reservation r JOIN holdfast_reservation o ON o.id = :id"
    " WHERE r.id <> o.id AND r.expires_at > :now AND (r.tenant = o.tenant OR '*' IN (r.tenant, o.tenant))"
    " AND ('all' IN (r.scope, o.scope) OR (r.scope = o.scope AND r.name = o.name))"
    " AND (r.state = 'active' OR (r.state = 'waiting' AND (r.asked_at, r.id) < (o.asked_at, o.id)))"
)
_BEGIN = "UPDATE holdfast_reservation SET state = 'active', reserved_at = :now, expires_at = :until WHERE id = :id"
_LIMITED_ON = Statement("UPDATE holdfast_dispatch SET limited = 1 WHERE NOT limited")
_RUNNING = (
    "SELECT count(*) FROM holdfast_job_state s WHERE s.state IN ('leased', 'in_progress')"
    " AND (:tenant = '*' OR s.tenant = :tenant) AND CASE :scope WHEN 'all' THEN 1 WHEN 'queue' THEN s.queue = :name"
    " ELSE EXISTS (SELECT 1 FROM holdfast_job j, json_each(j.uses) u WHERE j.n = s.n AND u.value = 'resource:' ||"
    " :name) END"
)
_RELEASE = (
    "UPDATE holdfast_reservation SET ended_at = :now, ended_by = :actor,"
    " state = CASE WHEN state = 'waiting' THEN 'withdrawn' WHEN expires_at <= :now THEN 'expired' ELSE 'released' END,"
    " ended_why = CASE WHEN state = 'active' AND expires_at <= :now THEN 'expired' ELSE :why END"
    " WHERE id = :id AND state IN ('waiting', 'active') AND (:any OR tenant = :tenant)"
    " RETURNING tenant, scope, name, state, job_id"
)
_EXPIRE = (
    "UPDATE holdfast_reservation SET state = CASE state WHEN 'waiting' THEN 'withdrawn' ELSE 'expired' END, ended_at"
    " = :now, ended_by = (SELECT actor FROM holdfast_present), ended_why = 'the reservation was not renewed'"
    " WHERE state IN ('waiting', 'active') AND expires_at <= :now RETURNING tenant, scope, name, job_id"
)


class SqliteReservations(SqlitePart, ReservationReads):
    @flow(notifies=True)
    def release(self, reservation_id: str, why: str, actor: str, tenant: str, end: RunEnd | None = None) -> Steps[bool]:
        now = yield from begin_write(actor)
        params = {"id": reservation_id, "why": why, "actor": actor, "now": now}
        rows = yield Statement(_RELEASE, {**params, "any": any_tenant(tenant), "tenant": tenant})
        for owner, scope, name, state, job_id in rows:
            yield from _requeue(owner, scope, name, now)
            if job_id is not None:
                yield from end_run(job_id, end, actor, now, lost=state == "expired")
        yield from end_write()
        return bool(rows) and rows[0][3] != "expired"

    @flow(notifies=True)
    def record(self, reservation_id: str, kind: str, actor: str, tenant: str) -> Steps[str | None]:
        return (yield from record_run(reservation_id, kind, actor, tenant))

    @flow(notifies=True)
    def set(self, ask: ReservationRequest, actor: str, tenant: str) -> Steps[ReservationStatus]:
        now = yield from begin_write(actor)
        params = {"id": ask.id, "tenant": tenant, "now": now, "until": now + in_micros(ask.ttl)}
        what = {"tenant": tenant, "scope": ask.scope, "name": ask.name}
        if (yield Statement(_STATE, params)):
            yield Statement(_RENEW, params)
            yield from renew_run(ask.id, tenant, now + in_micros(ask.ttl), now)
        elif (yield Statement("SELECT 1 FROM holdfast_reservation WHERE id = ?", (ask.id,))):
            yield from end_write()
            return OTHER_TENANTS
        else:
            yield Statement(_REQUEST, {**params, **what, "actor": actor, "reason": ask.reason or None})
        ((state,),) = yield Statement(_STATE, params)
        ((ahead,),) = yield Statement(_AHEAD, params)
        if state == "waiting" and ahead == 0:
            yield from expire_reservations(now)
            yield Statement(_BEGIN, params)
            yield _LIMITED_ON
            state = "active"
        ((running,),) = yield Statement(_RUNNING, what)
        yield from end_write()
        return ReservationStatus(state, running, ahead)


def expire_reservations(now: int) -> Steps[int]:
    """Record the reservations that have expired because they were not renewed."""
    rows = yield Statement(_EXPIRE, {"now": now})
    for tenant, scope, name, job_id in rows:
        yield from _requeue(tenant, scope, name, now)
        if job_id is not None:
            yield from end_run(job_id, None, None, now, lost=True)
    return len(rows)


def _requeue(tenant: str, scope: str, name: str, now: int) -> Steps[None]:
    """Requeue the jobs parked for a resource. Queues need nothing: workers are notified of every commit."""
    if scope == "resource":
        yield from release_parked(Bucket(tenant, scope, name), 1000, now)


BATCH = 1000

_COLUMNS = Record.columns(Pause)
_PAUSE = (
    f"INSERT INTO holdfast_pause ({_COLUMNS})"
    " VALUES (:tenant, :scope, :name, :reason, :refuse_enqueue, :actor, :now, :until)"
    " ON CONFLICT DO UPDATE SET reason = excluded.reason, refuse_enqueue = excluded.refuse_enqueue,"
    " set_by = excluded.set_by, until = excluded.until"
)
_GET_PAUSE = f"SELECT {_COLUMNS} FROM holdfast_pause WHERE tenant = :tenant AND scope = :scope AND name = :name"
_RESUME = "DELETE FROM holdfast_pause WHERE tenant = :tenant AND scope = :scope AND name = :name RETURNING until"
_END_PAUSES = "DELETE FROM holdfast_pause WHERE until <= ? RETURNING tenant, scope, name"


class SqlitePauses(SqlitePart, PauseReads):
    @flow(notifies=True)
    def remove(self, scope: str, name: str, actor: str, tenant: str) -> Steps[bool]:
        now = yield from begin_write(actor)
        rows = yield Statement(_RESUME, {"tenant": tenant, "scope": scope, "name": name})
        if rows:
            yield from release_parked(Bucket(tenant, scope, name), BATCH, now)
        yield from end_write()
        return bool(rows) and (rows[0][0] is None or rows[0][0] > now)

    @flow(notifies=True)
    def set(self, what: PauseDraft, actor: str) -> Steps[Pause]:
        now = yield from begin_write(actor)
        until = None if what.until is None else micros(what.until)
        params = {"tenant": what.tenant, "scope": what.scope, "name": what.name, "reason": what.reason, "now": now}
        params |= {"until": until if what.lasting is None else now + in_micros(what.lasting), "actor": actor}
        yield Statement(_PAUSE, {**params, "refuse_enqueue": int(what.refuses)})
        rows = yield Statement(_GET_PAUSE, params)
        yield from end_write()
        return Record.decoder(Pause, SqliteCodec())(rows[0])


def end_pauses(now: int) -> Steps[int]:
    """Delete pauses that have ended; they have had no effect since."""
    rows = yield Statement(_END_PAUSES, (now,))
    for tenant, scope, name in rows:
        yield from release_parked(Bucket(tenant, scope, name), BATCH, now)
    return len(rows)


_LIST = (
    f"SELECT {Record.columns(Limit, 'l.', skip=('running', 'waiting'))},"
    " (SELECT count(*) FROM holdfast_occupied_slot p"
    " WHERE p.tenant = l.tenant AND p.scope = l.scope AND l.name IN (p.name, '*'))"
    " FROM holdfast_job_limit l WHERE :any OR l.tenant IN (:tenant, '*')"
)
_PARKED = (
    "SELECT held_by, count(*) FROM holdfast_job_state INDEXED BY holdfast_parked WHERE held_by IS NOT NULL AND due_at"
    " IS NOT NULL AND state = 'queued' AND (:any OR tenant = :tenant) GROUP BY held_by"
)
_WAKING = (
    "SELECT m.tenant, m.scope, m.name FROM holdfast_rate_meter m WHERE m.wake_at <= ? AND m.wake_at IS NOT NULL"
    " ORDER BY m.wake_at LIMIT ?"
)
_CLEAR_WAKE = "UPDATE holdfast_rate_meter SET wake_at = NULL WHERE tenant = ? AND scope = ? AND name = ?"
_WAITS = (
    "SELECT 1 FROM holdfast_job_state INDEXED BY holdfast_parked WHERE held_by = ? AND held_by IS NOT NULL AND due_at"
    " IS NOT NULL AND state = 'queued' LIMIT 1"
)
_ORPHANS = (
    "DELETE FROM holdfast_occupied_slot WHERE NOT EXISTS"
    " (SELECT 1 FROM holdfast_job_state s WHERE s.id = holdfast_occupied_slot.job_id AND s.lease IS NOT NULL)"
)
_LIMITED_OFF = Statement(
    "UPDATE holdfast_dispatch SET limited = 0 WHERE limited AND NOT EXISTS (SELECT 1 FROM holdfast_job_limit)"
    " AND NOT EXISTS (SELECT 1 FROM holdfast_pause)"
    " AND NOT EXISTS (SELECT 1 FROM holdfast_reservation WHERE state IN ('waiting', 'active'))"
    " AND NOT EXISTS (SELECT 1 FROM holdfast_occupied_slot) AND NOT EXISTS (SELECT 1 FROM holdfast_job_state INDEXED"
    " BY holdfast_parked WHERE held_by IS NOT NULL AND due_at IS NOT NULL AND state = 'queued')"
)
_ANYTHING = (
    "SELECT 1 WHERE EXISTS (SELECT 1 FROM holdfast_rate_meter WHERE wake_at <= :now)"
    " OR EXISTS (SELECT 1 FROM holdfast_pause WHERE until <= :now)"
    " OR EXISTS (SELECT 1 FROM holdfast_reservation WHERE state IN ('waiting', 'active') AND expires_at <= :now)"
    " OR (NOT EXISTS (SELECT 1 FROM holdfast_job_limit) AND NOT EXISTS (SELECT 1 FROM holdfast_occupied_slot)"
    " AND NOT EXISTS (SELECT 1 FROM holdfast_pause)"
    " AND NOT EXISTS (SELECT 1 FROM holdfast_reservation WHERE state IN ('waiting', 'active')))"
)


def _nothing_due(_: object, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[int | None]:
    if not (yield from is_limited()):
        return 0
    present = yield Statement("SELECT now FROM holdfast_present")
    ended = yield Statement("SELECT 1 FROM holdfast_pause WHERE until <= ? LIMIT 1", present[0])
    if not ended and (yield from halted()):
        return 0
    rows = yield Statement(_ANYTHING, {"now": present[0][0]})
    return None if rows or (yield from _may_requeue()) else 0


def _may_requeue() -> Steps[bool]:
    """Whether a job is parked for something else than a pause, which may last for days."""
    paused = {Bucket(*row).text for row in (yield Statement("SELECT tenant, scope, name FROM holdfast_pause"))}
    last = ""
    while rows := (yield Statement(NEXT_PARKED, (last,))):
        if rows[0][0] not in paused:
            return True
        last = rows[0][0]
    return False


def _no_token(_: object, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[int | None]:
    present = yield Statement("SELECT now FROM holdfast_present")
    at = yield from next_token_at()
    return None if at is not None and at <= present[0][0] else 0


def _hand_out_tokens(now: int, want: int) -> Steps[int]:
    """Requeue jobs that waited for tokens which are now available; returns their number."""
    count = 0
    for row in (yield Statement(_WAKING, (now, want))):
        bucket = Bucket(*row)
        yield Statement(_CLEAR_WAKE, bucket)
        freed = yield from release_parked(bucket, want, now)
        count += freed
        rules = yield Statement(RULE, (bucket.name, *bucket))
        if rules and (yield Statement(_WAITS, (bucket.text,))):
            yield from wake_later(bucket, Rule(*rules[0]), now, freed)
    return count


class SqliteLimits(SqlitePart):
    @cached_property
    def _limit(self) -> Callable[[Row], Limit]:
        return Record.decoder(Limit, SqliteCodec(), skip=("running", "waiting"))

    @flow(notifies=True)
    def remove(self, scope: str, name: str, actor: str, tenant: str) -> Steps[bool]:
        now = yield from begin_write(actor)
        removed = yield from drop_limit(scope, name, tenant, now)
        yield from end_write()
        return removed

    @flow(peek=_nothing_due)
    def attend(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[int]:
        now = yield from begin_write("promoter")
        count = yield from end_pauses(now)
        if (yield from halted()):
            yield from end_write()
            return count
        count += yield from expire_reservations(now)
        yield Statement(_ORPHANS)
        count += yield from _hand_out_tokens(now, want)
        count += yield from sweep(now, want)
        yield _LIMITED_OFF
        yield from end_write()
        return count

    @maintenance_flow(0, _no_token)
    def wake(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[int]:
        now = yield from begin_write("promoter")
        count = yield from _hand_out_tokens(now, want)
        yield from end_write()
        return count

    @flow(notifies=True)
    def set(self, rule: Rule, actor: str, tenant: str) -> Steps[Limit]:
        now = yield from begin_write(actor)
        row = yield from put_limit(rule, actor, tenant, now)
        yield from end_write()
        return self._limit(row)

    @flow(writes=False)
    def list(self, tenant: str) -> Steps[list[Limit]]:
        scope = {"any": any_tenant(tenant), "tenant": tenant}
        parked = yield Statement(_PARKED, scope)
        limits = []
        for row in (yield Statement(_LIST, scope)):
            own, beginning = Bucket(*row[:3]).text, bucket_prefix(row[0], row[1])
            waiting = sum(n for held, n in parked if held == own or (row[2] == "*" and held.startswith(beginning)))
            limits.append(Record.decoder(Limit, SqliteCodec())((*row, waiting)))
        order: list[str] = list(SCOPES)
        return sorted(limits, key=lambda limit: (order.index(limit.scope), limit.name, limit.tenant))


_AGING_COLUMNS = Record.columns(QueueSetting)
_SET_AGING = (
    f"INSERT INTO holdfast_queue_setting ({_AGING_COLUMNS}) VALUES (:tenant, :queue, :every, :step, :most, :actor,"
    " :now) ON CONFLICT DO UPDATE SET aging = excluded.aging, aging_step = excluded.aging_step,"
    " aging_most = excluded.aging_most, set_by = excluded.set_by, updated_at = excluded.updated_at"
    f" RETURNING {_AGING_COLUMNS}"
)
_REMOVE_AGING = "DELETE FROM holdfast_queue_setting WHERE tenant = :tenant AND queue = :queue"
_WAITING = "queue = :queue AND state = 'queued' AND due_at IS NULL"
_LEVEL = (
    f"SELECT priority FROM holdfast_job_state INDEXED BY holdfast_claimable WHERE {_WAITING} AND priority < :level"
    " ORDER BY priority DESC LIMIT 1"
)
# The jobs that have waited longest. Jobs that an operator moved are not changed.
_OLDEST = (
    f"SELECT n FROM holdfast_job_state INDEXED BY holdfast_claimable WHERE {_WAITING} AND priority = :level"
    " AND (:tenant = '*' OR tenant = :tenant) ORDER BY position LIMIT :want"
)
_WAITED = ":now - max(j.created_at, coalesce(j.run_at, 0))"
_DUE = f"min(:most, j.priority + :step * (({_WAITED}) / :every))"
_RAISE = (
    "UPDATE holdfast_job_state SET priority = o.priority, note = json_set(coalesce(note, '{}'), '$.moved',"
    " json_object('to', 'aging', 'priority', o.priority,"
    " 'times', 1 + (SELECT count(*) FROM holdfast_event e WHERE e.job_id = holdfast_job_state.id AND e.type = 'move')))"
    f" FROM (SELECT j.n, {_DUE} AS priority FROM holdfast_job j WHERE j.n IN (SELECT value FROM json_each(:numbers))"
    " AND NOT EXISTS (SELECT 1 FROM holdfast_event e WHERE e.job_id = j.id AND e.type = 'move' AND e.actor <>"
    " 'aging')) o WHERE holdfast_job_state.n = o.n AND o.priority > holdfast_job_state.priority RETURNING 1"
)


def _no_settings(_: object, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[int | None]:
    rows = yield Statement("SELECT 1 FROM holdfast_queue_setting LIMIT 1")
    return None if rows else 0


class SqliteQueues(SqlitePart, QueueReads):
    @flow()
    def set_aging(
        self, queue: str, every: float | None, step: int, most: int, actor: str, tenant: str
    ) -> Steps[QueueSetting | None]:
        now = yield from begin_write(actor)
        target = {"tenant": tenant, "queue": queue}
        if every is None:
            rows = yield Statement(_REMOVE_AGING, target)
        else:
            rows = yield Statement(
                _SET_AGING, {**target, "every": float(every), "step": step, "most": most, "actor": actor, "now": now}
            )
        yield from end_write()
        return Record.decoder(QueueSetting, SqliteCodec())(rows[0]) if rows else None

    @maintenance_flow(0, _no_settings)
    def age(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[int]:
        now = yield from begin_write("aging")
        decode = Record.decoder(QueueSetting, SqliteCodec())
        count = 0
        for setting in map(
            decode, (yield Statement(f"SELECT {_AGING_COLUMNS} FROM holdfast_queue_setting ORDER BY tenant, queue"))
        ):
            level = setting.aging_most
            scope = {"queue": setting.queue, "tenant": setting.tenant}
            while count < want:
                rows = yield Statement(_LEVEL, {**scope, "level": level})
                if not rows:
                    break
                level = rows[0][0]
                oldest = yield Statement(_OLDEST, {**scope, "level": level, "want": want - count})
                params = {
                    "numbers": ids_json(row[0] for row in oldest),
                    "now": now,
                    "every": int(setting.aging * 1_000_000),
                    "step": setting.aging_step,
                    "most": setting.aging_most,
                }
                raised = yield Statement(_RAISE, params)
                count += len(raised)
        yield from end_write()
        return count

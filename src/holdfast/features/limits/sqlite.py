"""Limits, queue settings and pauses on SQLite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property
from typing import Any

from holdfast.engine.job import EVERY_TENANT
from holdfast.features.limits.model import COUNTS, SCOPES, Bucket, Limit, Pause, PauseDraft, QueueSetting, Rule
from holdfast.features.limits.store import PauseReads, QueueReads, expire_reservations
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
from holdfast.stores.sqlite.base import SqlitePart, any_tenant, begin_write, end_write, ids_json, upsert
from holdfast.stores.sqlite.codec import SqliteCodec
from holdfast.stores.sqlite.limit_rows import NEXT_PARKED, RULE, bucket_prefix, drop_limit, put_limit, sweep

BATCH = 1000

_COLUMNS = Record.columns(Pause)
_PAUSE = upsert("holdfast_pause", Pause, keep="tenant scope name since")
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
        until = until if what.lasting is None else now + in_micros(what.lasting)
        params = asdict(what) | {"set_by": actor, "since": now, "until": until}
        yield Statement(_PAUSE, params)
        (pause,) = yield from self._rows_as(Pause, Statement(_GET_PAUSE, params))
        yield from end_write()
        return pause


def end_pauses(now: int) -> Steps[int]:
    """Delete pauses that have ended; they have had no effect since."""
    rows = yield Statement(_END_PAUSES, (now,))
    for tenant, scope, name in rows:
        yield from release_parked(Bucket(tenant, scope, name), BATCH, now)
    return len(rows)


_LIST = (
    f"SELECT {Record.columns(Limit, 'l.', skip=COUNTS)},"
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
        return Record.decoder(Limit, SqliteCodec(), skip=COUNTS)

    @flow(notifies=True)
    def remove(self, scope: str, name: str, actor: str, tenant: str) -> Steps[bool]:
        now = yield from begin_write(actor)
        removed = yield from drop_limit(scope, name, tenant, now)
        yield from end_write()
        return removed

    @flow(peek=_nothing_due)
    def attend(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[int]:
        now = yield from begin_write("maintenance")
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
        now = yield from begin_write("maintenance")
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
_SET_AGING = f"{upsert('holdfast_queue_setting', QueueSetting, keep='tenant queue')} RETURNING {_AGING_COLUMNS}"
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
        target: dict[str, Any] = {"tenant": tenant, "queue": queue}
        if every is None:
            rows = yield Statement(_REMOVE_AGING, target)
        else:
            aging = {"aging": float(every), "aging_step": step, "aging_most": most}
            rows = yield Statement(_SET_AGING, target | aging | {"set_by": actor, "updated_at": now})
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

"""Set and remove limits (SC-16), and attend to what they hold back."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property

from holdfast.engine.job import EVERY_TENANT
from holdfast.features.limits.model import SCOPES, Bucket, Limit, Rule
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Row, Statement, Steps, flow
from holdfast.stores.sqlite.admission import go_on, is_limited, wake_later
from holdfast.stores.sqlite.base import any_tenant, sign, unsign
from holdfast.stores.sqlite.codec import SqliteCodec
from holdfast.stores.sqlite.operations.reservations import expire_reservations
from holdfast.stores.sqlite.operations.switches import end_switches, halted

LOOKED_AT = 200  # limits in one sweep

_COLUMNS = Record.columns(Limit, skip=("running", "waiting"))
_SET = (
    f"INSERT INTO job_limit ({_COLUMNS})"
    " VALUES (:tenant, :scope, :name, :concurrency, :rate, :per, :burst, :actor, :now, :now)"
    " ON CONFLICT DO UPDATE SET concurrency = excluded.concurrency, rate = excluded.rate, per = excluded.per,"
    " burst = excluded.burst, set_by = excluded.set_by, updated_at = excluded.updated_at"
    " WHERE (job_limit.concurrency, job_limit.rate, job_limit.per, job_limit.burst)"
    " IS NOT (excluded.concurrency, excluded.rate, excluded.per, excluded.burst)"
)
_ONE = f"SELECT {_COLUMNS} FROM job_limit WHERE tenant = :tenant AND scope = :scope AND name = :name"
_SWITCH_ON = Statement("UPDATE dispatch SET limited = 1 WHERE NOT limited")
# What runs already counts.
_COUNT_RUNNING = (
    "INSERT INTO place (tenant, scope, name, job_id) SELECT :tenant, :scope, w.name, w.id FROM ("
    "SELECT s.id, s.tenant, CASE :scope WHEN 'all' THEN '*' WHEN 'queue' THEN s.queue WHEN 'kind' THEN s.kind"
    " WHEN 'tenant' THEN s.tenant WHEN 'agent' THEN s.agent END AS name"
    " FROM job_state s WHERE s.state IN ('leased', 'in_progress')"
    " UNION ALL"
    " SELECT s.id, s.tenant, substr(u.value, length(:scope) + 2)"
    " FROM job_state s JOIN job j ON j.n = s.n, json_each(j.uses) u"
    " WHERE s.state IN ('leased', 'in_progress') AND j.uses IS NOT NULL AND u.value LIKE :scope || ':%') w"
    " WHERE w.name IS NOT NULL AND (:tenant = '*' OR w.tenant = :tenant) AND (:name = '*' OR w.name = :name)"
    " ON CONFLICT DO NOTHING"
)
_REMOVE = "DELETE FROM job_limit WHERE tenant = :tenant AND scope = :scope AND name = :name RETURNING 1"
_FORGET = (
    "DELETE FROM {table} WHERE tenant = :tenant AND scope = :scope AND NOT EXISTS (SELECT 1 FROM job_limit l"
    " WHERE l.tenant = {table}.tenant AND l.scope = {table}.scope AND (l.name = {table}.name OR l.name = '*')"
    " AND l.{what} IS NOT NULL)"
)
_LIST = (
    f"SELECT {Record.columns(Limit, 'l.', skip=('running', 'waiting'))},"
    " (SELECT count(*) FROM place p WHERE p.tenant = l.tenant AND p.scope = l.scope AND l.name IN (p.name, '*'))"
    " FROM job_limit l WHERE :any OR l.tenant IN (:tenant, '*')"
)
_PARKED = (
    "SELECT held_by, count(*) FROM job_state INDEXED BY parked WHERE held_by IS NOT NULL AND due_at IS NOT NULL"
    " AND state = 'queued' AND (:any OR tenant = :tenant) GROUP BY held_by"
)
_NEXT_PARKED = (
    "SELECT held_by FROM job_state INDEXED BY parked WHERE held_by > ? AND held_by IS NOT NULL AND due_at IS NOT NULL"
    " AND state = 'queued' ORDER BY held_by LIMIT 1"
)
_WAKING = (
    "SELECT m.tenant, m.scope, m.name FROM meter m WHERE m.wake_at <= ? AND m.wake_at IS NOT NULL"
    " ORDER BY m.wake_at LIMIT ?"
)
_AWAKE = "UPDATE meter SET wake_at = NULL WHERE tenant = ? AND scope = ? AND name = ?"
_RULE = (
    "SELECT scope, ?, concurrency, rate, per, burst FROM job_limit WHERE tenant = ? AND scope = ? AND name IN (?, '*')"
    " ORDER BY name = '*' LIMIT 1"
)
_WAITS = (
    "SELECT 1 FROM job_state INDEXED BY parked WHERE held_by = ? AND held_by IS NOT NULL AND due_at IS NOT NULL"
    " AND state = 'queued' LIMIT 1"
)
_ORPHANS = (
    "DELETE FROM place WHERE NOT EXISTS (SELECT 1 FROM job_state s WHERE s.id = place.job_id AND s.lease IS NOT NULL)"
)
_SWITCH_OFF = Statement(
    "UPDATE dispatch SET limited = 0 WHERE limited AND NOT EXISTS (SELECT 1 FROM job_limit)"
    " AND NOT EXISTS (SELECT 1 FROM switch)"
    " AND NOT EXISTS (SELECT 1 FROM reservation WHERE state IN ('waiting', 'active'))"
    " AND NOT EXISTS (SELECT 1 FROM place) AND NOT EXISTS (SELECT 1 FROM job_state INDEXED BY parked"
    " WHERE held_by IS NOT NULL AND due_at IS NOT NULL AND state = 'queued')"
)
_ANYTHING = (
    "SELECT 1 WHERE EXISTS (SELECT 1 FROM meter WHERE wake_at <= :now)"
    " OR EXISTS (SELECT 1 FROM switch WHERE until <= :now)"
    " OR EXISTS (SELECT 1 FROM reservation WHERE state IN ('waiting', 'active') AND expires_at <= :now)"
    " OR (NOT EXISTS (SELECT 1 FROM job_limit) AND NOT EXISTS (SELECT 1 FROM place)"
    " AND NOT EXISTS (SELECT 1 FROM switch)"
    " AND NOT EXISTS (SELECT 1 FROM reservation WHERE state IN ('waiting', 'active')))"
)


def _nothing_due(_: object, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[int | None]:
    if not (yield from is_limited()):
        return 0
    present = yield Statement("SELECT now FROM present")
    over = yield Statement("SELECT 1 FROM switch WHERE until <= ? LIMIT 1", present[0])
    if not over and (yield from halted()):
        return 0
    rows = yield Statement(_ANYTHING, {"now": present[0][0]})
    return None if rows or (yield from _might_go_on()) else 0


def _might_go_on() -> Steps[bool]:
    """Whether somebody is parked for something else than what is paused, which may be so for days."""
    paused = {Bucket(*row).text for row in (yield Statement("SELECT tenant, scope, name FROM switch"))}
    place = ""
    while rows := (yield Statement(_NEXT_PARKED, (place,))):
        if rows[0][0] not in paused:
            return True
        place = rows[0][0]
    return False


class LimitVerbs:
    @cached_property
    def _limit(self) -> Callable[[Row], Limit]:
        return Record.decoder(Limit, SqliteCodec(), skip=("running", "waiting"))

    @flow(tells=True)
    def set_limit(self, rule: Rule, actor: str, tenant: str) -> Steps[Limit]:
        now = yield from sign(actor)
        row = yield from put_limit(rule, actor, tenant, now)
        yield from unsign()
        return self._limit(row)

    @flow(tells=True)
    def remove_limit(self, scope: str, name: str, actor: str, tenant: str) -> Steps[bool]:
        now = yield from sign(actor)
        found = yield from drop_limit(scope, name, tenant, now)
        yield from unsign()
        return found

    @flow(writes=False)
    def limits(self, tenant: str) -> Steps[list[Limit]]:
        whose = {"any": any_tenant(tenant), "tenant": tenant}
        parked = yield Statement(_PARKED, whose)
        found = []
        for row in (yield Statement(_LIST, whose)):
            own, beginning = Bucket(*row[:3]).text, _beginning(row[0], row[1])
            waiting = sum(n for held, n in parked if held == own or (row[2] == "*" and held.startswith(beginning)))
            found.append(Record.decoder(Limit, SqliteCodec())((*row, waiting)))
        order: list[str] = list(SCOPES)
        return sorted(found, key=lambda limit: (order.index(limit.scope), limit.name, limit.tenant))

    @flow(peek=_nothing_due)
    def attend_limits(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[int]:
        now = yield from sign("promoter")
        count = yield from end_switches(now)
        if (yield from halted()):
            yield from unsign()
            return count
        count += yield from expire_reservations(now)
        yield Statement(_ORPHANS)
        for row in (yield Statement(_WAKING, (now, want))):
            bucket = Bucket(*row)
            yield Statement(_AWAKE, bucket)
            count += yield from go_on(bucket, want, now)
            rules = yield Statement(_RULE, (bucket.name, *bucket))
            if rules and (yield Statement(_WAITS, (bucket.text,))):
                yield from wake_later(bucket, Rule(*rules[0]), now + 1000)
        count += yield from _sweep(now, want)
        yield _SWITCH_OFF
        yield from unsign()
        return count


def put_limit(rule: Rule, actor: str, tenant: str, now: int) -> Steps[Row]:
    """As part of a write that is signed."""
    per = None if rule.rate is None else (rule.per or 1.0)
    burst = None if rule.rate is None else (rule.burst or rule.rate)
    facts = {"tenant": tenant, "scope": rule.scope, "name": rule.name}
    limits = {"concurrency": rule.concurrency, "rate": rule.rate, "per": per, "burst": burst}
    yield Statement(_SET, {**facts, **limits, "actor": actor, "now": now})
    yield _SWITCH_ON
    if rule.concurrency is not None:
        yield Statement(_COUNT_RUNNING, facts)
    yield from _sweep(now, 1000, _beginning(tenant, rule.scope))
    rows = yield Statement(_ONE, facts)
    return rows[0]


def drop_limit(scope: str, name: str, tenant: str, now: int) -> Steps[bool]:
    facts = {"tenant": tenant, "scope": scope, "name": name}
    rows = yield Statement(_REMOVE, facts)
    if rows:
        yield Statement(_FORGET.format(table="place", what="concurrency"), facts)
        yield Statement(_FORGET.format(table="meter", what="rate"), facts)
        yield from _sweep(now, 1000, _beginning(tenant, scope))
    return bool(rows)


def _beginning(tenant: str, scope: str) -> str:
    """What the texts of all buckets of a scope begin with."""
    return Bucket(tenant, scope, "").text[:-3]


def _sweep(now: int, want: int, beginning: str | None = None) -> Steps[int]:
    """Look at limits that jobs are parked for, from where the last look ended, and let go on whoever can."""
    place = beginning
    if place is None:
        ((place,),) = yield Statement("SELECT swept FROM dispatch")
    count = 0
    for _ in range(LOOKED_AT):
        rows = yield Statement(_NEXT_PARKED, (place,))
        if not rows or count >= want or (beginning is not None and not rows[0][0].startswith(beginning)):
            place = "" if not rows else place
            break
        place = rows[0][0]
        bucket = Bucket(*json.loads(place))
        rules = [] if beginning else (yield Statement(_RULE, (bucket.name, *bucket)))
        if not rules or rules[0][3] is None:  # who waits for a token is woken when there is one
            count += yield from go_on(bucket, want - count, now)
    if beginning is None:
        yield Statement("UPDATE dispatch SET swept = :place WHERE swept <> :place", {"place": place})
    return count

"""Rows of limits, within a signed write: ``put_limit``, ``drop_limit`` and the sweep that releases parked jobs."""

from __future__ import annotations

import json
from dataclasses import asdict, fields

from holdfast.features.limits.model import COUNTS, Bucket, Limit, Rule
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Row, Statement, Steps
from holdfast.stores.sqlite.admission import release_parked, wake_later
from holdfast.stores.sqlite.base import upsert

SWEPT_LIMITS = 200  # maximum of limits in one sweep

COLUMNS = Record.columns(Limit, skip=COUNTS)
_SETTINGS = " ".join(each.name for each in fields(Rule) if each.name not in ("scope", "name"))
_SET = upsert("holdfast_job_limit", Limit, "tenant scope name created_at", compare=_SETTINGS, skip=" ".join(COUNTS))
_ONE = f"SELECT {COLUMNS} FROM holdfast_job_limit WHERE tenant = :tenant AND scope = :scope AND name = :name"
_LIMITED_ON = Statement("UPDATE holdfast_dispatch SET limited = 1 WHERE NOT limited")
# Running jobs count against a new limit.
_COUNT_RUNNING = (
    "INSERT INTO holdfast_occupied_slot (tenant, scope, name, job_id) SELECT :tenant, :scope, w.name, w.id FROM ("
    "SELECT s.id, s.tenant, CASE :scope WHEN 'all' THEN '*' WHEN 'queue' THEN s.queue WHEN 'kind' THEN s.kind"
    " WHEN 'tenant' THEN s.tenant WHEN 'agent' THEN s.agent END AS name"
    " FROM holdfast_job_state s WHERE s.state IN ('leased', 'in_progress')"
    " UNION ALL"
    " SELECT s.id, s.tenant, substr(u.value, length(:scope) + 2)"
    " FROM holdfast_job_state s JOIN holdfast_job j ON j.n = s.n, json_each(j.uses) u"
    " WHERE s.state IN ('leased', 'in_progress') AND j.uses IS NOT NULL AND u.value LIKE :scope || ':%') w"
    " WHERE w.name IS NOT NULL AND (:tenant = '*' OR w.tenant = :tenant) AND (:name = '*' OR w.name = :name)"
    " ON CONFLICT DO NOTHING"
)
_REMOVE = "DELETE FROM holdfast_job_limit WHERE tenant = :tenant AND scope = :scope AND name = :name RETURNING 1"
_FORGET = (
    "DELETE FROM holdfast_{table} WHERE tenant = :tenant AND scope = :scope AND NOT EXISTS (SELECT 1 FROM"
    " holdfast_job_limit l"
    " WHERE l.tenant = holdfast_{table}.tenant AND l.scope = holdfast_{table}.scope AND (l.name ="
    " holdfast_{table}.name OR l.name = '*')"
    " AND l.{what} IS NOT NULL)"
)
NEXT_PARKED = (
    "SELECT held_by FROM holdfast_job_state INDEXED BY holdfast_parked WHERE held_by > ? AND held_by IS NOT NULL AND"
    " due_at IS NOT NULL AND state = 'queued' ORDER BY held_by LIMIT 1"
)
RULE = (
    "SELECT scope, ?, concurrency, rate, per, burst FROM holdfast_job_limit WHERE tenant = ? AND scope = ? AND name"
    " IN (?, '*') ORDER BY name = '*' LIMIT 1"
)


def put_limit(rule: Rule, actor: str, tenant: str, now: int) -> Steps[Row]:
    """Create or change a limit, within a signed write; returns its row."""
    per = None if rule.rate is None else (rule.per or 1.0)
    burst = None if rule.rate is None else (rule.burst or 1)
    key = {"tenant": tenant, "scope": rule.scope, "name": rule.name}
    row = asdict(rule) | {"tenant": tenant, "per": per, "burst": burst}
    yield Statement(_SET, row | {"set_by": actor, "created_at": now, "updated_at": now})
    yield _LIMITED_ON
    if rule.concurrency is not None:
        yield Statement(_COUNT_RUNNING, key)
    yield from sweep(now, 1000, bucket_prefix(tenant, rule.scope))
    rows = yield Statement(_ONE, key)
    return rows[0]


def drop_limit(scope: str, name: str, tenant: str, now: int) -> Steps[bool]:
    """Remove a limit, within a signed write; False if there was none."""
    key = {"tenant": tenant, "scope": scope, "name": name}
    rows = yield Statement(_REMOVE, key)
    if rows:
        yield Statement(_FORGET.format(table="occupied_slot", what="concurrency"), key)
        yield Statement(_FORGET.format(table="rate_meter", what="rate"), key)
        yield from sweep(now, 1000, bucket_prefix(tenant, scope))
    return bool(rows)


def bucket_prefix(tenant: str, scope: str) -> str:
    """The common prefix of the texts of all buckets of a scope."""
    return Bucket(tenant, scope, "").text[:-3]


def sweep(now: int, want: int, beginning: str | None = None) -> Steps[int]:
    """Release parked jobs for which their limits now have capacity. Continues after the last swept limit, or sweeps the
    limits with the prefix ``beginning``. Returns the number of released jobs."""
    position = beginning
    if position is None:
        ((position,),) = yield Statement("SELECT swept FROM holdfast_dispatch")
    count = 0
    for _ in range(SWEPT_LIMITS):
        rows = yield Statement(NEXT_PARKED, (position,))
        if not rows or count >= want or (beginning is not None and not rows[0][0].startswith(beginning)):
            position = "" if not rows else position
            break
        position = rows[0][0]
        bucket = Bucket(*json.loads(position))
        rules = [] if beginning else (yield Statement(RULE, (bucket.name, *bucket)))
        if rules and rules[0][3] is not None:
            yield from wake_later(bucket, Rule(*rules[0]), now)  # its jobs are woken when a token is available
        else:
            count += yield from release_parked(bucket, want - count, now)
    if beginning is None:
        yield Statement("UPDATE holdfast_dispatch SET swept = :place WHERE swept <> :place", {"place": position})
    return count

"""The registry of tenants (JF-12): what they are held to, and which queues they share fairly."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from holdfast.engine.ids import parse_id
from holdfast.engine.job import EVERY_TENANT
from holdfast.features.agents.model import AHEAD
from holdfast.features.limits.model import Rule
from holdfast.features.tenants.model import EVERY_QUEUE, TurnOf
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.reads import Reads
from holdfast.stores.sqlite.base import any_tenant, note_action, sign, unsign
from holdfast.stores.sqlite.operations.limits import drop_limit, put_limit

_ADD = (
    "INSERT INTO tenant (tenant, set_by, created_at, updated_at) VALUES (:name, :actor, :now, :now)"
    " ON CONFLICT (tenant) DO UPDATE SET set_by = excluded.set_by, updated_at = excluded.updated_at"
)
_SET = "UPDATE tenant SET {column} = ? WHERE tenant = ?"
_FORGET_LOAD = "DELETE FROM tenant_load WHERE tenant = ?"
_RULED = Statement("UPDATE dispatch SET ruled = 1 WHERE NOT ruled")
_LIMIT = (
    "SELECT concurrency, rate, per, burst FROM job_limit WHERE tenant = :name AND scope = 'tenant' AND name = :name"
)
_REMOVE = "DELETE FROM tenant WHERE tenant = ? RETURNING 1"
_FAIR = "SELECT fair FROM dispatch WHERE id = 1"
_SET_FAIR = "UPDATE dispatch SET fair = ? WHERE id = 1"
_REGISTERED = "SELECT registered FROM dispatch WHERE id = 1"
_SET_REGISTERED = (
    "UPDATE dispatch SET registered = :on, ruled = ruled OR :on WHERE id = 1 AND registered <> :on RETURNING 1"
)
_INDEX = Statement(
    "CREATE INDEX IF NOT EXISTS fair ON job_state (queue, tenant, priority DESC, position)"
    " WHERE state = 'queued' AND due_at IS NULL"
)
_NO_INDEX = Statement("DROP INDEX IF EXISTS fair")
_NO_PLACES = Statement("DELETE FROM fair_place")
_WAITS = (
    "SELECT tenant, queue, priority, position FROM job_state WHERE id = :job AND (:any OR tenant = :tenant)"
    " AND state = 'queued' AND due_at IS NULL"
)
_OWN = "queue = :queue AND tenant = :tenant AND state = 'queued' AND due_at IS NULL"
_TURN = (
    "SELECT (SELECT count(*) FROM (SELECT 1 FROM job_state INDEXED BY fair"
    f" WHERE {_OWN} AND (priority > :priority OR priority = :priority AND position < :position) LIMIT :most)),"
    " (WITH RECURSIVE walk(name, n) AS (SELECT (SELECT min(tenant) FROM job_state INDEXED BY fair WHERE queue = :queue"
    " AND state = 'queued' AND due_at IS NULL), 1 UNION ALL SELECT (SELECT min(tenant) FROM job_state INDEXED BY fair"
    " WHERE queue = :queue AND state = 'queued' AND due_at IS NULL AND tenant > w.name), w.n + 1 FROM walk w"
    " WHERE w.name IS NOT NULL AND w.n < :most) SELECT count(name) FROM walk),"
    " coalesce((SELECT weight FROM tenant WHERE tenant = :tenant), 1)"
)


class TenantVerbs(Reads):
    @flow(tells=True)
    def set_tenant(self, name: str, what: dict[str, Any], actor: str) -> Steps[None]:
        now = yield from sign(actor)
        yield Statement(_ADD, {"name": name, "actor": actor, "now": now})
        for column in ("title", "max_pending", "weight"):
            if column in what:
                yield Statement(_SET.format(column=column), (what[column], name))
        if what.get("max_pending") is not None:
            yield Statement(_FORGET_LOAD, (name,))  # counted anew
            yield _RULED
        if "max_running" in what or "rate" in what:
            yield from _limit(name, what, actor, now)
        if what.get("weight") is not None and not (yield from _fair()):
            yield from _share([EVERY_QUEUE])
        yield from unsign()

    @flow(tells=True)
    def remove_tenant(self, name: str, actor: str) -> Steps[bool]:
        now = yield from sign(actor)
        rows = yield Statement(_REMOVE, (name,))
        if rows:
            yield Statement(_FORGET_LOAD, (name,))
            yield from drop_limit("tenant", name, name, now)
        yield from unsign()
        return bool(rows)

    @flow(tells=True)
    def set_fair(self, queues: Sequence[str], actor: str) -> Steps[None]:
        yield from sign(actor)
        yield from _share(queues)
        yield from unsign()

    @flow(writes=False)
    def fair_queues(self) -> Steps[list[str]]:
        return (yield from _fair())

    @flow()
    def set_registered_only(self, on: bool, actor: str) -> Steps[bool]:
        yield from sign(actor)
        rows = yield Statement(_SET_REGISTERED, {"on": int(on)})
        if rows:
            changed = json.dumps({"registered": [not on, on]})
            yield from note_action(EVERY_TENANT, "change", "tenants", "registered only", changed)
        yield from unsign()
        return bool(rows)

    @flow(writes=False)
    def registered_only(self) -> Steps[bool]:
        return bool((yield Statement(_REGISTERED))[0][0])

    @flow(writes=False)
    def turn_of(self, job_id: str, tenant: str) -> Steps[TurnOf | None]:
        fair = yield from _fair()
        rows = yield Statement(_WAITS, {"job": parse_id(job_id), "any": any_tenant(tenant), "tenant": tenant})
        if not rows or not (rows[0][1] in fair or EVERY_QUEUE in fair):
            return None
        place = dict(zip(("tenant", "queue", "priority", "position"), rows[0], strict=True))
        found = yield Statement(_TURN, {**place, "most": AHEAD})
        return TurnOf(*found[0])


def _limit(name: str, what: dict[str, Any], actor: str, now: int) -> Steps[None]:
    rows = yield Statement(_LIMIT, {"name": name})
    concurrency, rate, per, burst = rows[0] if rows else (None, None, None, None)
    if "max_running" in what:
        concurrency = what["max_running"]
    if "rate" in what:
        rate, per, burst = what["rate"], what["per"], what["burst"]
    if concurrency is None and rate is None:
        yield from drop_limit("tenant", name, name, now)
    else:
        yield from put_limit(Rule("tenant", name, concurrency, rate, per, burst), actor, name, now)


def _fair() -> Steps[list[str]]:
    rows = yield Statement(_FAIR)
    return [] if rows[0][0] is None else json.loads(rows[0][0])


def _share(queues: Sequence[str]) -> Steps[None]:
    was = yield from _fair()
    if was != list(queues):
        changed = json.dumps({"fair": [was or None, list(queues) or None]})
        yield from note_action(EVERY_TENANT, "change", "tenants", "shared queues", changed)
    if queues:
        yield _INDEX
        yield Statement(_SET_FAIR, (json.dumps(list(queues)),))
    else:
        yield Statement(_SET_FAIR, (None,))
        yield _NO_PLACES
        yield _NO_INDEX

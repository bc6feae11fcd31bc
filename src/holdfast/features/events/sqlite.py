"""Subscriptions and consumers: what is written of them. The look itself is in stores/feed.py, for every store."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.errors import Conflict
from holdfast.features.events.model import Behind, Delivery, Fed, Subscribing, Subscription, of_ledger
from holdfast.features.events.store import ConsumerReads, SubscriptionReads
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Row, Statement, Steps, flow
from holdfast.stores.sqlite.admission import halted
from holdfast.stores.sqlite.base import SqlitePart, any_tenant, ids_json, note_action, sign, unsign
from holdfast.stores.sqlite.codec import SqliteCodec

if TYPE_CHECKING:
    from holdfast.features.payloads.store import PayloadRuleStore
    from holdfast.features.schedules.store import TemplateStore
    from holdfast.stores.port import JobStore, LedgerStore

_ADD = (
    "INSERT INTO subscription (id, tenant, name, pattern, kind, match, job_kind, job_options, max_depth, cursor,"
    " declared, created_by, created_at, updated_at)"
    " VALUES (:id, :tenant, :name, :pattern, :kind, :match, :job_kind, :job_options, :max_depth, :cursor, :declared,"
    " :actor, :now, :now) ON CONFLICT (tenant, name) DO NOTHING RETURNING 1"
)
_PARTS = ("pattern", "kind", "match", "job_kind", "job_options", "max_depth", "declared")
# A program declares it anew: what it wants and makes may have changed, its place has not; unless it now reads the other
# kind of events, in which that place means nothing.
_AGAIN = (
    f"UPDATE subscription SET {', '.join(f'{part} = :{part}' for part in _PARTS)}, updated_at = :now,"
    " cursor = CASE WHEN (pattern LIKE 'job.%') = (:pattern LIKE 'job.%') THEN cursor ELSE :cursor END"
    f" WHERE tenant = :tenant AND name = :name AND ({', '.join(_PARTS)}) IS NOT (:{', :'.join(_PARTS)})"
)
_PAUSE = (
    "UPDATE subscription SET paused_reason = CASE WHEN paused_at IS NULL THEN :reason ELSE paused_reason END,"
    " paused_by = coalesce(paused_by, :actor), paused_at = coalesce(paused_at, :now), updated_at = :now"
    " WHERE tenant = :tenant AND name = :name RETURNING 1"
)
_RESUME = (
    "UPDATE subscription SET paused_at = NULL, paused_by = NULL, paused_reason = NULL, updated_at = :now,"
    " cursor = CASE WHEN NOT :skip THEN cursor WHEN pattern LIKE 'job.%' THEN :ledger ELSE :told END"
    " WHERE tenant = :tenant AND name = :name RETURNING 1"
)
_HELD = f"SELECT {Record.columns(Subscription)} FROM subscription WHERE tenant = ? AND name = ? AND paused_at IS NULL"
_ADVANCE = (
    "UPDATE subscription SET cursor = :cursor, made = made + :made, refused = refused + :refused, failure = NULL,"
    " failed_at = NULL WHERE id = :id AND cursor IS :was AND paused_at IS NULL RETURNING 1"
)
_DELIVER = (
    "INSERT INTO delivery (subscription_id, event, tenant, job_id, refusal, depth, at) VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_PLACES = "SELECT coalesce((SELECT max(seq) FROM event), 0), coalesce((SELECT max(seq) FROM app_event), 0)"


def _look(self: SqliteSubscriptions, name: str, want: int, tenant: str) -> Steps[Fed | None]:
    """Whether there is anything to read: a look that finds nothing must not take the write lock."""
    rows = yield Statement(_HELD, (tenant, name))
    if not rows:
        return Fed()
    events = yield from self._events(self._subscription(rows[0]), 1)
    return None if events else Fed()


class SqliteSubscriptions(SqlitePart, SubscriptionReads):
    _decode: Callable[[Row], Subscription] = staticmethod(Record.decoder(Subscription, SqliteCodec()))

    def __init__(
        self, jobs: JobStore, ledger: LedgerStore, templates: TemplateStore, payload_rules: PayloadRuleStore
    ) -> None:
        self._jobs, self._ledger, self._templates, self._payload_rules = jobs, ledger, templates, payload_rules

    @flow(writes=False)
    def active(self, tenant: str) -> Steps[list[tuple[str, str, str]]]:
        """Tenant, name and id of those that are not paused: what the duty asks first, and mostly there are none."""
        text = "SELECT tenant, name, id FROM subscription WHERE paused_at IS NULL AND (? OR tenant = ?) ORDER BY 1, 2"
        rows = yield Statement(text, (any_tenant(tenant), tenant))
        off = bool(rows) and (yield from halted())
        return [] if off else [(row[0], row[1], row[2]) for row in rows]

    @flow()
    def pause(self, name: str, reason: str | None, actor: str, tenant: str) -> Steps[bool]:
        now = yield from sign(actor)
        params = {"reason": reason, "actor": actor, "now": now, "tenant": tenant, "name": name}
        rows = yield Statement(_PAUSE, params)
        yield from unsign()
        return bool(rows)

    @flow()
    def resume(self, name: str, skip: bool, tenant: str, actor: str | None = None) -> Steps[bool]:
        now = yield from sign(actor)
        ledger, told = yield from _places()
        params = {"skip": int(skip), "ledger": ledger, "told": told, "now": now, "tenant": tenant, "name": name}
        rows = yield Statement(_RESUME, params)
        yield from unsign()
        return bool(rows)

    @flow()
    def remove(self, name: str, tenant: str, actor: str | None = None) -> Steps[bool]:
        yield from sign(actor)
        rows = yield Statement("DELETE FROM subscription WHERE tenant = ? AND name = ? RETURNING 1", (tenant, name))
        yield from unsign()
        return bool(rows)

    @flow(peek=_look, tells=True)
    def feed(self, name: str, want: int, tenant: str) -> Steps[Fed]:
        return (yield from self._feed(name, want, tenant))

    @flow()
    def failed(self, id: str, failure: str, tenant: str) -> Steps[None]:
        now = yield from sign(None)
        text = "UPDATE subscription SET failure = ?, failed_at = ? WHERE id = ? AND tenant = ?"
        yield Statement(text, (failure, now, id, tenant))
        yield from unsign()

    # --- what the look asks for ---

    def _subscription(self, row: Row) -> Subscription:
        return self._decode(row)

    def _hold(self, name: str, tenant: str) -> Steps[Subscription | None]:
        """Whoever writes is alone."""
        rows = yield Statement(_HELD, (tenant, name))
        return self._subscription(rows[0]) if rows else None

    def _behind(self, ids: Sequence[str]) -> Steps[dict[str, Behind]]:
        rows = yield Statement(
            "SELECT id, correlation_id, depth, queue, tags FROM job WHERE id IN (SELECT value FROM json_each(?))",
            (ids_json(ids),),
        )
        return {
            job_id: Behind(correlation or job_id, depth or 0, queue, self.dialect.codec.tags(tags))
            for job_id, correlation, depth, queue, tags in rows
        }

    def _delivered(self, whose: Subscription, events: Sequence[str]) -> Steps[set[str]]:
        rows = yield Statement(
            "SELECT event FROM delivery WHERE subscription_id = ? AND event IN (SELECT value FROM json_each(?))",
            (whose.id, ids_json(events)),
        )
        return {row[0] for row in rows}

    def _advance(self, whose: Subscription, cursor: str, deliveries: Sequence[Delivery]) -> Steps[None]:
        now = yield from sign(None)
        if deliveries:
            rows: list[Any] = [
                (whose.id, each.event, each.tenant, each.job_id, each.refusal, each.depth, now) for each in deliveries
            ]
            yield Statement(_DELIVER, rows, many=True)
        made = sum(each.job_id is not None for each in deliveries)
        params = {
            "id": whose.id,
            "was": whose.cursor,
            "cursor": cursor,
            "made": made,
            "refused": len(deliveries) - made,
        }
        if not (yield Statement(_ADVANCE, params)):
            raise Conflict("the subscription was changed at the same time", code="subscription_changed")
        yield from unsign()

    @flow()
    def set(self, new: Subscribing, id: str, actor: str, tenant: str) -> Steps[bool]:
        now = yield from sign(actor)
        ledger, told = yield from _places()
        params = {part: getattr(new, part) for part in _PARTS} | {
            "id": id,
            "tenant": tenant,
            "name": new.name,
            "match": None if new.match is None else json.dumps(new.match, sort_keys=True),
            "job_options": json.dumps(new.job_options, sort_keys=True),
            "declared": int(new.declared),
            "cursor": None if new.start == "beginning" else ledger if of_ledger(new.pattern) else told,
            "actor": actor,
            "now": now,
        }
        added = yield Statement(_ADD, params)
        if not added and not new.declared:
            raise Conflict(f"subscription {new.name} already exists", code="subscription_exists")
        if not added:
            yield Statement(_AGAIN, params)
        yield from unsign()
        return bool(added)


class SqliteConsumers(SqlitePart, ConsumerReads):
    @flow()
    def reset(self, consumer: str, beginning: bool, tenant: str, actor: str | None = None) -> Steps[bool]:
        now = yield from sign(actor)
        ledger, told = ("0", "a0") if beginning else (yield from _places())
        rows = yield Statement(
            "UPDATE consumer SET updated_at = ?, cursor = CASE WHEN cursor LIKE 'a%' THEN ? ELSE ? END"
            " WHERE tenant = ? AND name = ? RETURNING 1",
            (now, told, ledger, tenant, consumer),
        )
        if rows:
            changed = json.dumps({"beginning": beginning})
            yield from note_action(tenant, "reset", "consumer", consumer, changed)
        yield from unsign()
        return bool(rows)

    @flow()
    def remove(self, consumer: str, tenant: str, actor: str | None = None) -> Steps[bool]:
        yield from sign(actor)
        rows = yield Statement("DELETE FROM consumer WHERE tenant = ? AND name = ? RETURNING 1", (tenant, consumer))
        yield from unsign()
        return bool(rows)


def _places() -> Steps[tuple[str, str]]:
    ((ledger, told),) = yield Statement(_PLACES)
    return str(ledger), f"a{told}"

"""Subscriptions and consumers on SQLite."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.errors import Conflict
from holdfast.features.events.model import Cause, Delivery, FeedResult, NewSubscription, Subscription, is_ledger_pattern
from holdfast.features.events.store import ConsumerStore, SubscriptionStore
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.sqlite.admission import halted
from holdfast.stores.sqlite.base import (
    SqlitePart,
    any_tenant,
    begin_write,
    end_write,
    ids_json,
    note_action,
    write,
)

if TYPE_CHECKING:
    from holdfast.features.payloads.store import SqlitePayloadRules
    from holdfast.features.schedules.store import TemplateStore
    from holdfast.stores.sqlite.jobs import SqliteJobs
    from holdfast.stores.sqlite.ledger import SqliteLedger

_ADD = (
    "INSERT INTO holdfast_subscription (id, tenant, name, pattern, kind, match, job_kind, job_options, max_depth,"
    " cursor, declared, created_by, created_at, updated_at)"
    " VALUES (:id, :tenant, :name, :pattern, :kind, :match, :job_kind, :job_options, :max_depth, :cursor, :declared,"
    " :actor, :now, :now) ON CONFLICT (tenant, name) DO NOTHING RETURNING 1"
)
_DEFINITION = ("pattern", "kind", "match", "job_kind", "job_options", "max_depth", "declared")
# Its filter and its jobs may have changed, its cursor has not. Only if it now reads the other kind of events is its
# cursor reset, because the old one means nothing there.
_REDEFINE = (
    f"UPDATE holdfast_subscription SET {', '.join(f'{column} = :{column}' for column in _DEFINITION)}, updated_at ="
    " :now, cursor = CASE WHEN (pattern LIKE 'job.%') = (:pattern LIKE 'job.%') THEN cursor ELSE :cursor END"
    f" WHERE tenant = :tenant AND name = :name AND ({', '.join(_DEFINITION)}) IS NOT (:{', :'.join(_DEFINITION)})"
)
_PAUSE = (
    "UPDATE holdfast_subscription SET paused_reason = CASE WHEN paused_at IS NULL THEN :reason ELSE paused_reason END,"
    " paused_by = coalesce(paused_by, :actor), paused_at = coalesce(paused_at, :now), updated_at = :now"
    " WHERE tenant = :tenant AND name = :name RETURNING 1"
)
_RESUME = (
    "UPDATE holdfast_subscription SET paused_at = NULL, paused_by = NULL, paused_reason = NULL, updated_at = :now,"
    " cursor = CASE WHEN NOT :skip THEN cursor WHEN pattern LIKE 'job.%' THEN :ledger ELSE :sent END"
    " WHERE tenant = :tenant AND name = :name RETURNING 1"
)
_HELD = (
    f"SELECT {Record.columns(Subscription)} FROM holdfast_subscription WHERE tenant = ? AND name = ? AND"
    " paused_at IS NULL"
)
_ADVANCE = (
    "UPDATE holdfast_subscription SET cursor = :cursor, made = made + :made, refused = refused + :refused, failure ="
    " NULL, failed_at = NULL WHERE id = :id AND cursor IS :was AND paused_at IS NULL RETURNING 1"
)
_DELIVER = (
    "INSERT INTO holdfast_delivery (subscription_id, event, tenant, job_id, refusal, depth, at) VALUES (?, ?, ?, ?,"
    " ?, ?, ?)"
)
_ENDS = (
    "SELECT coalesce((SELECT max(seq) FROM holdfast_event), 0), coalesce((SELECT max(seq) FROM holdfast_app_event), 0)"
)


def _peek(self: SqliteSubscriptions, name: str, want: int, tenant: str) -> Steps[FeedResult | None]:
    """Check for new events first: a run without any must not take the write lock."""
    rows = yield Statement(_HELD, (tenant, name))
    if not rows:
        return FeedResult()
    events = yield from self._events(self._subscription(rows[0]), 1)
    return None if events else FeedResult()


class SqliteSubscriptions(SqlitePart, SubscriptionStore):
    def __init__(
        self, jobs: SqliteJobs, ledger: SqliteLedger, templates: TemplateStore, payload_rules: SqlitePayloadRules
    ) -> None:
        self._jobs, self._ledger, self._templates, self._payload_rules = jobs, ledger, templates, payload_rules

    @flow(writes=False)
    def active(self, tenant: str) -> Steps[list[tuple[str, str, str]]]:
        """Tenant, name and id of the subscriptions that are not paused. Every worker polls this; usually there are
        none."""
        text = (
            "SELECT tenant, name, id FROM holdfast_subscription WHERE paused_at IS NULL AND (? OR tenant = ?)"
            " ORDER BY 1, 2"
        )
        rows = yield Statement(text, (any_tenant(tenant), tenant))
        is_halted = bool(rows) and (yield from halted())
        return [] if is_halted else [(row[0], row[1], row[2]) for row in rows]

    @flow()
    def pause(self, name: str, reason: str | None, actor: str, tenant: str) -> Steps[bool]:
        return bool((yield from write(actor, _PAUSE, reason=reason, tenant=tenant, name=name)))

    @flow()
    def resume(self, name: str, skip: bool, tenant: str, actor: str | None = None) -> Steps[bool]:
        now = yield from begin_write(actor)
        ledger, sent = yield from _end_cursors()
        params = {"skip": int(skip), "ledger": ledger, "sent": sent, "now": now, "tenant": tenant, "name": name}
        rows = yield Statement(_RESUME, params)
        yield from end_write()
        return bool(rows)

    @flow()
    def remove(self, name: str, tenant: str, actor: str | None = None) -> Steps[bool]:
        text = "DELETE FROM holdfast_subscription WHERE tenant = :tenant AND name = :name RETURNING 1"
        return bool((yield from write(actor, text, tenant=tenant, name=name)))

    @flow(peek=_peek, notifies=True)
    def feed(self, name: str, want: int, tenant: str) -> Steps[FeedResult]:
        return (yield from self._feed(name, want, tenant))

    @flow()
    def failed(self, id: str, failure: str, tenant: str) -> Steps[None]:
        text = (
            "UPDATE holdfast_subscription SET failure = :failure, failed_at = :now WHERE id = :id AND tenant = :tenant"
        )
        yield from write(None, text, failure=failure, id=id, tenant=tenant)

    def _hold(self, name: str, tenant: str) -> Steps[Subscription | None]:
        """There is one writer at a time: the write lock holds the subscription."""
        rows = yield Statement(_HELD, (tenant, name))
        return self._subscription(rows[0]) if rows else None

    def _causes(self, ids: Sequence[str]) -> Steps[dict[str, Cause]]:
        rows = yield Statement(
            "SELECT id, correlation_id, depth, queue, tags FROM holdfast_job WHERE id IN (SELECT value FROM"
            " json_each(?))",
            (ids_json(ids),),
        )
        return {
            job_id: Cause(correlation or job_id, depth or 0, queue, self.dialect.codec.tags(tags))
            for job_id, correlation, depth, queue, tags in rows
        }

    def _delivered(self, subscription: Subscription, events: Sequence[str]) -> Steps[set[str]]:
        rows = yield Statement(
            "SELECT event FROM holdfast_delivery WHERE subscription_id = ? AND event IN (SELECT value FROM"
            " json_each(?))",
            (subscription.id, ids_json(events)),
        )
        return {row[0] for row in rows}

    def _advance(self, subscription: Subscription, cursor: str, deliveries: Sequence[Delivery]) -> Steps[None]:
        now = yield from begin_write(None)
        if deliveries:
            rows: list[Any] = [
                (subscription.id, d.event, d.tenant, d.job_id, d.refusal, d.depth, now) for d in deliveries
            ]
            yield Statement(_DELIVER, rows, many=True)
        made = sum(delivery.job_id is not None for delivery in deliveries)
        params = {
            "id": subscription.id,
            "was": subscription.cursor,
            "cursor": cursor,
            "made": made,
            "refused": len(deliveries) - made,
        }
        if not (yield Statement(_ADVANCE, params)):
            raise Conflict("the subscription was changed at the same time", code="subscription_changed")
        yield from end_write()

    @flow()
    def set(self, new: NewSubscription, id: str, actor: str, tenant: str) -> Steps[bool]:
        now = yield from begin_write(actor)
        ledger, sent = yield from _end_cursors()
        params = {column: getattr(new, column) for column in _DEFINITION} | {
            "id": id,
            "tenant": tenant,
            "name": new.name,
            "match": None if new.match is None else json.dumps(new.match, sort_keys=True),
            "job_options": json.dumps(new.job_options, sort_keys=True),
            "declared": int(new.declared),
            "cursor": None if new.start == "beginning" else ledger if is_ledger_pattern(new.pattern) else sent,
            "actor": actor,
            "now": now,
        }
        added = yield Statement(_ADD, params)
        if not added:
            yield Statement(_REDEFINE, params)
        yield from end_write()
        return bool(added)


class SqliteConsumers(SqlitePart, ConsumerStore):
    @flow()
    def reset(self, consumer: str, beginning: bool, tenant: str, actor: str | None = None) -> Steps[bool]:
        now = yield from begin_write(actor)
        ledger, sent = ("0", "a0") if beginning else (yield from _end_cursors())
        rows = yield Statement(
            "UPDATE holdfast_consumer SET updated_at = ?, cursor = CASE WHEN cursor LIKE 'a%' THEN ? ELSE ? END"
            " WHERE tenant = ? AND name = ? RETURNING 1",
            (now, sent, ledger, tenant, consumer),
        )
        if rows:
            changed = json.dumps({"beginning": beginning})
            yield from note_action(tenant, "reset", "consumer", consumer, changed)
        yield from end_write()
        return bool(rows)

    @flow()
    def remove(self, consumer: str, tenant: str, actor: str | None = None) -> Steps[bool]:
        text = "DELETE FROM holdfast_consumer WHERE tenant = :tenant AND name = :name RETURNING 1"
        return bool((yield from write(actor, text, tenant=tenant, name=consumer)))


def _end_cursors() -> Steps[tuple[str, str]]:
    """The cursors after the newest event of the ledger and after the newest application event."""
    ((ledger, sent),) = yield Statement(_ENDS)
    return str(ledger), f"a{sent}"

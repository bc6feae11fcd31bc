"""Webhooks in the database: port, shared reads, PostgreSQL and SQLite."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from holdfast.engine.ids import parse_id
from holdfast.features.webhooks.model import (
    KEPT,
    KEPT_DAYS,
    Webhook,
    WebhookDelivery,
    WebhookDraft,
    subscription_names,
)
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.postgres.base import Calls
from holdfast.stores.reader import within
from holdfast.stores.sqlite.base import SqlitePart, begin_write, end_write, write

if TYPE_CHECKING:
    from holdfast.features.events.store import SubscriptionStore


MAX_ROWS = 1_000
_REST = Record.columns(WebhookDelivery, "d.", skip=("id", "tenant", "webhook_id"))


class WebhookReads(Reader):
    @flow(writes=False)
    def get(self, name: str, tenant: str) -> Steps[Webhook | None]:
        text = (
            f"select {Record.columns(Webhook, 'e.')} from {{webhook}} e"
            f" where e.name = :name and {within(tenant, 'e.tenant')} order by e.tenant limit 1"
        )
        return (yield from self._record(Webhook, tenant, text, name=name))

    @flow(writes=False)
    def deliveries(
        self,
        webhook_id: str,
        tenant: str,
        limit: int,
        before: str | None = None,
        message: str | None = None,
        failed: bool = False,
    ) -> Steps[list[WebhookDelivery]]:
        """Attempts, newest first: those before an id, of one message, or only failed ones."""
        conditions = [within(tenant, "d.tenant"), "d.webhook_id = :webhook"]
        params: dict[str, object] = {"webhook": parse_id(webhook_id)}
        if before is not None:
            conditions.append("d.id < :before")
            params["before"] = parse_id(before)
        if message is not None:
            conditions.append("d.message = :message")
            params["message"] = message
        if failed:
            conditions.append("d.error_code is not null")
        text = (
            f"select d.id, d.tenant, d.webhook_id, {_REST} from {{webhook_delivery}} d"
            f" where {' and '.join(conditions)} order by d.id desc limit {max(1, min(limit, MAX_ROWS)):d}"
        )
        return (yield from self._records(WebhookDelivery, tenant, text, **params))

    @flow(writes=False)
    def list(self, tenant: str) -> Steps[list[Webhook]]:
        text = (
            f"select {Record.columns(Webhook, 'e.')} from {{webhook}} e where {within(tenant, 'e.tenant')}"
            f" order by e.name, e.tenant limit {MAX_ROWS:d}"
        )
        return (yield from self._records(Webhook, tenant, text))


class PostgresWebhooks(Calls, WebhookReads):
    @flow(single=True)
    def add(self, draft: WebhookDraft, id: str, actor: str, tenant: str) -> Steps[bool]:
        """False if the name is taken. The caller saves its subscriptions in the same transaction."""
        arguments = "%s, %s, %s, %s::text[], %s::text[], %s, %s::json, %s, %s"
        return (yield from self._flag("add_webhook", arguments, id, *_values(draft), actor, tenant))

    @flow(single=True)
    def change(self, draft: WebhookDraft, actor: str, tenant: str) -> Steps[bool]:
        """False if it does not exist."""
        arguments = "%s, %s, %s::text[], %s::text[], %s, %s::json, %s, %s"
        return (yield from self._flag("change_webhook", arguments, *_values(draft), actor, tenant))

    @flow(single=True)
    def disable(self, name: str, reason: str, actor: str, tenant: str) -> Steps[bool]:
        """Create no more deliveries, and send the event ``webhook.disabled``. The first reason and actor are kept."""
        return (yield from self._flag("disable_webhook", "%s, %s, %s, %s", name, reason, actor, tenant))

    @flow(single=True)
    def enable(self, name: str, skip: bool, actor: str, tenant: str) -> Steps[bool]:
        """Resume with the events that it missed, or (``skip``) without them."""
        return (yield from self._flag("enable_webhook", "%s, %s, %s, %s", name, skip, actor, tenant))

    @flow(single=True)
    def remove(self, name: str, actor: str, tenant: str) -> Steps[bool]:
        """Remove it with its subscriptions and the log of its deliveries."""
        return (yield from self._flag("remove_webhook", "%s, %s, %s", name, actor, tenant))

    @flow(single=True)
    def note_delivery(self, entry: WebhookDelivery, tenant: str) -> Steps[bool]:
        """Record the result of an attempt and delete the oldest ones; False if the webhook no longer exists."""
        attempt = (entry.id, entry.webhook_id, entry.message, entry.type, entry.job_id, entry.attempt)
        result = (entry.status, entry.error_code, entry.duration_ms, entry.excerpt)
        arguments = "%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, make_interval(days => %s), %s"
        params = (*attempt, *result, KEPT, KEPT_DAYS, tenant)
        return (yield from self._flag("note_webhook_delivery", arguments, *params))


def _values(draft: WebhookDraft) -> tuple[Any, ...]:
    options = json.dumps(draft.job_options, sort_keys=True)
    return draft.name, draft.url, list(draft.secrets), list(draft.wants), draft.kind, options


_ADD = (
    "INSERT INTO holdfast_webhook (id, tenant, name, url, secrets, wants, kind, job_options, created_by, created_at,"
    " updated_at)"
    " VALUES (:id, :tenant, :name, :url, :secrets, :wants, :kind, :job_options, :actor, :now, :now)"
    " ON CONFLICT (tenant, name) DO NOTHING RETURNING 1"
)
_CHANGE = (
    "UPDATE holdfast_webhook SET url = :url, secrets = :secrets, wants = :wants, kind = :kind, job_options ="
    " :job_options, updated_at = :now WHERE tenant = :tenant AND name = :name RETURNING 1"
)
_DISABLE = (
    "UPDATE holdfast_webhook SET disabled_reason = CASE WHEN disabled_at IS NULL THEN :reason ELSE disabled_reason END,"
    " disabled_by = coalesce(disabled_by, :actor), disabled_at = coalesce(disabled_at, :now), updated_at = :now"
    " WHERE tenant = :tenant AND name = :name RETURNING 1"
)
_ENABLE = (
    "UPDATE holdfast_webhook SET disabled_reason = NULL, disabled_by = NULL, disabled_at = NULL, updated_at = :now"
    " WHERE tenant = :tenant AND name = :name RETURNING 1"
)
_NOTE = (
    "INSERT INTO holdfast_webhook_delivery (id, tenant, webhook_id, message, type, job_id, attempt, status, error_code,"
    " duration_ms, excerpt, at)"
    " SELECT :id, e.tenant, e.id, :message, :type, :job_id, :attempt, :status, :error_code, :duration_ms, :excerpt,"
    " :now"
    " FROM holdfast_webhook e WHERE e.id = :webhook_id AND e.tenant = :tenant RETURNING 1"
)
# Delete entries beyond the newest thousand, and those older than a month among the oldest hundred.
_TRIM = (
    "DELETE FROM holdfast_webhook_delivery WHERE webhook_id = :webhook_id AND id <= (SELECT d.id FROM"
    " holdfast_webhook_delivery d WHERE d.webhook_id = :webhook_id ORDER BY d.id DESC LIMIT 1 OFFSET :kept)"
)
_AGED = (
    "DELETE FROM holdfast_webhook_delivery WHERE at < :old AND id IN (SELECT d.id FROM holdfast_webhook_delivery d"
    " WHERE d.webhook_id = :webhook_id ORDER BY d.id LIMIT 100)"
)
_DAY = 86_400_000_000


class SqliteWebhooks(SqlitePart, WebhookReads):
    def __init__(self, subscriptions: SubscriptionStore) -> None:
        self._subscriptions = subscriptions

    @flow()
    def add(self, draft: WebhookDraft, id: str, actor: str, tenant: str) -> Steps[bool]:
        return bool((yield from write(actor, _ADD, id=id, tenant=tenant, **_row(draft))))

    @flow()
    def change(self, draft: WebhookDraft, actor: str, tenant: str) -> Steps[bool]:
        return bool((yield from write(actor, _CHANGE, tenant=tenant, **_row(draft))))

    @flow()
    def disable(self, name: str, reason: str, actor: str, tenant: str) -> Steps[bool]:
        for each in subscription_names(name):
            yield from self._subscriptions.pause(each, reason, actor, tenant).start()
        return bool((yield from write(actor, _DISABLE, name=name, reason=reason, tenant=tenant)))

    @flow()
    def enable(self, name: str, skip: bool, actor: str, tenant: str) -> Steps[bool]:
        for each in subscription_names(name):
            yield from self._subscriptions.resume(each, skip, tenant, actor).start()
        return bool((yield from write(actor, _ENABLE, name=name, tenant=tenant)))

    @flow()
    def remove(self, name: str, actor: str, tenant: str) -> Steps[bool]:
        for each in subscription_names(name):
            yield from self._subscriptions.remove(each, tenant, actor).start()
        text = "DELETE FROM holdfast_webhook WHERE tenant = :tenant AND name = :name RETURNING 1"
        return bool((yield from write(actor, text, tenant=tenant, name=name)))

    @flow()
    def note_delivery(self, entry: WebhookDelivery, tenant: str) -> Steps[bool]:
        now = yield from begin_write(None)
        names = ("id", "webhook_id", "message", "type", "job_id", "attempt", "status", "error_code", "duration_ms")
        params: dict[str, Any] = {name: getattr(entry, name) for name in (*names, "excerpt")}
        rows = yield Statement(_NOTE, params | {"now": now, "tenant": tenant})
        if rows:
            yield Statement(_TRIM, {"webhook_id": entry.webhook_id, "kept": KEPT})
            yield Statement(_AGED, {"webhook_id": entry.webhook_id, "old": now - KEPT_DAYS * _DAY})
        yield from end_write()
        return bool(rows)


def _row(draft: WebhookDraft) -> dict[str, Any]:
    return {
        "name": draft.name,
        "url": draft.url,
        "secrets": json.dumps(draft.secrets),
        "wants": json.dumps(draft.wants),
        "kind": draft.kind,
        "job_options": json.dumps(draft.job_options, sort_keys=True),
    }

"""Endpoints: what is written of them. Whether one is disabled, and that its subscriptions rest, is one transaction."""

from __future__ import annotations

import json
from typing import Any

from holdfast.features.webhooks.model import KEPT, KEPT_DAYS, EndpointDelivery, EndpointDraft, subscription_names
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.sqlite.base import sign, unsign
from holdfast.stores.sqlite.operations.subscriptions import SubscriptionVerbs

_ADD = (
    "INSERT INTO endpoint (id, tenant, name, url, secrets, wants, kind, job_options, created_by, created_at,"
    " updated_at)"
    " VALUES (:id, :tenant, :name, :url, :secrets, :wants, :kind, :job_options, :actor, :now, :now)"
    " ON CONFLICT (tenant, name) DO NOTHING RETURNING 1"
)
_CHANGE = (
    "UPDATE endpoint SET url = :url, secrets = :secrets, wants = :wants, kind = :kind, job_options = :job_options,"
    " updated_at = :now WHERE tenant = :tenant AND name = :name RETURNING 1"
)
_DISABLE = (
    "UPDATE endpoint SET disabled_reason = CASE WHEN disabled_at IS NULL THEN :reason ELSE disabled_reason END,"
    " disabled_by = coalesce(disabled_by, :actor), disabled_at = coalesce(disabled_at, :now), updated_at = :now"
    " WHERE tenant = :tenant AND name = :name RETURNING 1"
)
_ENABLE = (
    "UPDATE endpoint SET disabled_reason = NULL, disabled_by = NULL, disabled_at = NULL, updated_at = :now"
    " WHERE tenant = :tenant AND name = :name RETURNING 1"
)
_NOTE = (
    "INSERT INTO endpoint_delivery (id, tenant, endpoint_id, message, type, job_id, attempt, status, error_code,"
    " duration_ms, excerpt, at)"
    " SELECT :id, e.tenant, e.id, :message, :type, :job_id, :attempt, :status, :error_code, :duration_ms, :excerpt,"
    " :now"
    " FROM endpoint e WHERE e.id = :endpoint_id AND e.tenant = :tenant RETURNING 1"
)
# The oldest go: those behind the newest thousand, and of the oldest few those that are a month old.
_TRIM = (
    "DELETE FROM endpoint_delivery WHERE endpoint_id = :endpoint_id AND id <= (SELECT d.id FROM endpoint_delivery d"
    " WHERE d.endpoint_id = :endpoint_id ORDER BY d.id DESC LIMIT 1 OFFSET :kept)"
)
_AGED = (
    "DELETE FROM endpoint_delivery WHERE at < :old AND id IN (SELECT d.id FROM endpoint_delivery d"
    " WHERE d.endpoint_id = :endpoint_id ORDER BY d.id LIMIT 100)"
)
_DAY = 86_400_000_000


class EndpointVerbs(SubscriptionVerbs):
    @flow()
    def add_endpoint(self, draft: EndpointDraft, id: str, actor: str, tenant: str) -> Steps[bool]:
        now = yield from sign(actor)
        rows = yield Statement(_ADD, {"id": id, **_facts(draft), "actor": actor, "now": now, "tenant": tenant})
        yield from unsign()
        return bool(rows)

    @flow()
    def change_endpoint(self, draft: EndpointDraft, actor: str, tenant: str) -> Steps[bool]:
        now = yield from sign(actor)
        rows = yield Statement(_CHANGE, {**_facts(draft), "now": now, "tenant": tenant})
        yield from unsign()
        return bool(rows)

    @flow()
    def disable_endpoint(self, name: str, reason: str, actor: str, tenant: str) -> Steps[bool]:
        for each in subscription_names(name):
            yield from self.pause_subscription(each, reason, actor, tenant).start()
        now = yield from sign(actor)
        params = {"name": name, "reason": reason, "actor": actor, "now": now, "tenant": tenant}
        rows = yield Statement(_DISABLE, params)
        yield from unsign()
        return bool(rows)

    @flow()
    def enable_endpoint(self, name: str, skip: bool, actor: str, tenant: str) -> Steps[bool]:
        for each in subscription_names(name):
            yield from self.resume_subscription(each, skip, tenant, actor).start()
        now = yield from sign(actor)
        rows = yield Statement(_ENABLE, {"name": name, "now": now, "tenant": tenant})
        yield from unsign()
        return bool(rows)

    @flow()
    def remove_endpoint(self, name: str, actor: str, tenant: str) -> Steps[bool]:
        for each in subscription_names(name):
            yield from self.delete_subscription(each, tenant, actor).start()
        yield from sign(actor)
        rows = yield Statement("DELETE FROM endpoint WHERE tenant = ? AND name = ? RETURNING 1", (tenant, name))
        yield from unsign()
        return bool(rows)

    @flow()
    def note_endpoint_delivery(self, entry: EndpointDelivery, tenant: str) -> Steps[bool]:
        now = yield from sign(None)
        names = ("id", "endpoint_id", "message", "type", "job_id", "attempt", "status", "error_code", "duration_ms")
        params: dict[str, Any] = {name: getattr(entry, name) for name in (*names, "excerpt")}
        rows = yield Statement(_NOTE, params | {"now": now, "tenant": tenant})
        if rows:
            yield Statement(_TRIM, {"endpoint_id": entry.endpoint_id, "kept": KEPT})
            yield Statement(_AGED, {"endpoint_id": entry.endpoint_id, "old": now - KEPT_DAYS * _DAY})
        yield from unsign()
        return bool(rows)


def _facts(draft: EndpointDraft) -> dict[str, Any]:
    return {
        "name": draft.name,
        "url": draft.url,
        "secrets": json.dumps(draft.secrets),
        "wants": json.dumps(draft.wants),
        "kind": draft.kind,
        "job_options": json.dumps(draft.job_options, sort_keys=True),
    }

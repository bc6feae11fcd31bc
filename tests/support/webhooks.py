"""Small builders for tests of webhooks: make one, and note what was sent to it."""

from __future__ import annotations

from typing import Any

from holdfast.features.assembly import Store
from holdfast.features.webhooks.model import Webhook, WebhookDelivery, WebhookDraft
from tests.support.stores import TENANT, new_id

URL = "https://ops.example.com/hooks?key=7"


def draft(name: str = "ops", url: str = URL, secrets: Any = "OPS_HOOK", **fields: Any) -> WebhookDraft:
    return WebhookDraft.of(name, url, secrets, **fields)


def webhook(store: Store, name: str = "ops", *, tenant: str = TENANT, actor: str = "ada", **fields: Any) -> Webhook:
    """With its subscriptions, as `app.webhooks.add` makes one."""
    wanted = draft(name, **fields)
    assert store.run(store.webhooks.add(wanted, new_id(), actor, tenant))
    for each in wanted.subscriptions().values():
        if each is not None:
            store.run(store.subscriptions.set(each, new_id(), actor, tenant))
    return found(store, name, tenant)


def found(store: Store, name: str = "ops", tenant: str = TENANT) -> Webhook:
    one = store.run(store.webhooks.get(name, tenant))
    assert one is not None, f"there is no webhook {name}"
    return one


def sent(webhook_id: str, job_id: str, **fields: Any) -> WebhookDelivery:
    facts: dict[str, Any] = {"message": "msg_1", "type": "ping", "attempt": 1, "status": 200, "error_code": None}
    facts |= {"duration_ms": 5, "excerpt": "ok"}
    return WebhookDelivery(new_id(), TENANT, webhook_id, job_id=job_id, **(facts | fields))

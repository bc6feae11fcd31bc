"""Attacks on webhooks (JF-9, JF-11): secrets in the database, another tenant's log, changed deliveries.

`:webhook` belongs to the tenant `default` and has a delivery.
"""

from __future__ import annotations

from tests.attacks.attack import NOW, Table, immutable

_LOG = "insert into webhook_delivery (id, tenant, webhook_id, message, type, job_id, attempt, status, duration_ms, at)"
_NEVER = immutable("webhook_delivery: rows are never changed")
_RENAME = immutable("webhook: id, tenant, name, created_by, created_at cannot change")
_NOT_THERE = ("the webhook of this delivery does not exist", "does not exist")

WEBHOOKS: Table = {
    **{
        name: (
            (f"update webhook set secrets = '[{names}]'", f"update webhook set secrets = '{{{array}}}'"),
            "secrets_named",
        )
        for name, names, array in (
            ("store a secret instead of its name in a webhook", '"whsec_c2VjcmV0"', "whsec_c2VjcmV0"),
            ("store an invalid name of a secret in a webhook", '"a b+c="', '"a b+c="'),
            ("name a secret of another tenant", '"ACME__HOOK"', "ACME__HOOK"),
            ("remove all secrets of a webhook", "", ""),
        )
    },
    "store a password in a webhook URL": ("update webhook set url = 'https://u:p@example.com/'", "url_plain"),
    "set a webhook URL that is not HTTP": ("update webhook set url = 'file:///etc/passwd'", "url_plain"),
    "move a webhook to another tenant": ("update webhook set tenant = 'acme' where id = :webhook", _RENAME),
    "create a webhook for every tenant": (
        "insert into webhook (id, tenant, name, url, secrets, wants, created_by,"
        " created_at, updated_at) select :unknown, '*', name, url, secrets, wants, created_by, created_at, updated_at"
        " from webhook where id = :webhook",
        "tenant_named",
    ),
    "disable a webhook without a reason": (f"update webhook set disabled_at = {NOW}", "disabled_whole"),
    "truncate the webhooks": ("truncate webhook", (None, "rows are never changed")),
    "change the response of a webhook delivery": (
        "update webhook_delivery set status = 200, error_code = null",
        _NEVER,
    ),
    "truncate the webhook deliveries": ("truncate webhook_delivery", (None, "rows are never changed")),
    "record a delivery to another tenant's webhook": (
        f"{_LOG} values (:unknown, 'acme', :webhook, 'm', 't', :running, 1, 200, 1, {NOW})",
        _NOT_THERE,
    ),
    "record a refused delivery as delivered": (
        f"{_LOG} values (:unknown, 'default', :webhook, 'm', 't', :running, 1, 500, 1, {NOW})",
        "answered",
    ),
    "replace a webhook": (
        "insert or replace into webhook select * from webhook where id = :webhook",
        ("already exists", None),
    ),
}

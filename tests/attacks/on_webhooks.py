"""Attacks on webhooks (JF-9, JF-11): secrets in the database, another tenant's log, changed deliveries.

`:webhook` belongs to the tenant `default` and has a delivery.
"""

from __future__ import annotations

from tests.attacks.attack import NOW, both, each, immutable, only_postgres, only_sqlite

_LOG = "insert into webhook_delivery (id, tenant, webhook_id, message, type, job_id, attempt, status, duration_ms, at)"
_NEVER = immutable("webhook_delivery: rows are never changed")
_RENAME = ("immutable: name and tenant of a webhook cannot change", "name and tenant cannot change")
_NOT_THERE = ("the webhook of this delivery does not exist", "does not exist")

WEBHOOKS = [
    each("store a secret instead of its name in a webhook", """update webhook set secrets = '["whsec_c2VjcmV0"]'""",
         "update webhook set secrets = '{whsec_c2VjcmV0}'", says="secrets_named"),
    each("store an invalid name of a secret in a webhook", """update webhook set secrets = '["a b+c="]'""",
         """update webhook set secrets = '{"a b+c="}'""", says="secrets_named"),
    each("name a secret of another tenant", """update webhook set secrets = '["ACME__HOOK"]'""",
         "update webhook set secrets = '{ACME__HOOK}'", says="secrets_named"),
    each("remove all secrets of a webhook", "update webhook set secrets = '[]'", "update webhook set secrets = '{}'",
         says="secrets_named"),
    both("store a password in a webhook URL", "update webhook set url = 'https://u:p@example.com/'", says="url_plain"),
    both("set a webhook URL that is not HTTP", "update webhook set url = 'file:///etc/passwd'", says="url_plain"),
    both("move a webhook to another tenant", "update webhook set tenant = 'acme' where id = :webhook",
         says=_RENAME),
    both("create a webhook for every tenant", "insert into webhook (id, tenant, name, url, secrets, wants, created_by,"
         " created_at, updated_at) select :unknown, '*', name, url, secrets, wants, created_by, created_at, updated_at"
         " from webhook where id = :webhook", says="tenant_named"),
    both("disable a webhook without a reason", f"update webhook set disabled_at = {NOW}", says="disabled_whole"),
    only_postgres("truncate the webhooks", "truncate webhook", says="rows are never changed"),
    both("change the response of a webhook delivery", "update webhook_delivery set status = 200, error_code = null",
         says=_NEVER),
    only_postgres("truncate the webhook deliveries", "truncate webhook_delivery", says="rows are never changed"),
    both("record a delivery to another tenant's webhook",
         f"{_LOG} values (:unknown, 'acme', :webhook, 'm', 't', :running, 1, 200, 1, {NOW})", says=_NOT_THERE),
    both("record a refused delivery as delivered",
         f"{_LOG} values (:unknown, 'default', :webhook, 'm', 't', :running, 1, 500, 1, {NOW})", says="answered"),
    only_sqlite("replace a webhook", "insert or replace into webhook select * from webhook where id = :webhook",
                says="already exists"),
]  # fmt: skip

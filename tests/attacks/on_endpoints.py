"""Attacks on endpoints (JF-9, JF-11): a secret in the database, another's log, another story of what was sent.

`:endpoint` is one of the tenant `default`, to which something was sent.
"""

from __future__ import annotations

from tests.attacks.attack import NOW, both, each, only_postgres, only_sqlite

_LOG = (
    "insert into endpoint_delivery (id, tenant, endpoint_id, message, type, job_id, attempt, status, duration_ms, at)"
)
_NEVER = ("immutable: endpoint_delivery: rows are never changed", "endpoint_delivery: rows are never changed")
_RENAME = ("immutable: what an endpoint is called and whose it is never changes", "whose it is never changes")
_NOT_THERE = ("delivered to an endpoint that is not there", "which is not there")

ENDPOINTS = [
    each("keep a secret instead of its name", """update endpoint set secrets = '["whsec_c2VjcmV0"]'""",
         "update endpoint set secrets = '{whsec_c2VjcmV0}'", says="secrets_named"),
    each("keep something that is no name of a secret", """update endpoint set secrets = '["a b+c="]'""",
         """update endpoint set secrets = '{"a b+c="}'""", says="secrets_named"),
    each("name a secret of another tenant", """update endpoint set secrets = '["ACME__HOOK"]'""",
         "update endpoint set secrets = '{ACME__HOOK}'", says="secrets_named"),
    each("sign with nothing", "update endpoint set secrets = '[]'", "update endpoint set secrets = '{}'",
         says="secrets_named"),
    both("keep a password in a URL", "update endpoint set url = 'https://u:p@example.com/'", says="url_plain"),
    both("have an endpoint that is no URL", "update endpoint set url = 'file:///etc/passwd'", says="url_plain"),
    both("give an endpoint to another tenant", "update endpoint set tenant = 'acme' where id = :endpoint",
         says=_RENAME),
    both("give an endpoint to every tenant", "insert into endpoint (id, tenant, name, url, secrets, wants, created_by,"
         " created_at, updated_at) select :unknown, '*', name, url, secrets, wants, created_by, created_at, updated_at"
         " from endpoint where id = :endpoint", says="tenant_named"),
    both("disable an endpoint for no reason", f"update endpoint set disabled_at = {NOW}", says="disabled_whole"),
    only_postgres("forget all endpoints", "truncate endpoint", says="rows are never changed"),
    both("change what was answered", "update endpoint_delivery set status = 200, error_code = null", says=_NEVER),
    only_postgres("forget all that was sent", "truncate endpoint_delivery", says="rows are never changed"),
    both("say that something was sent to another's endpoint",
         f"{_LOG} values (:unknown, 'acme', :endpoint, 'm', 't', :running, 1, 200, 1, {NOW})", says=_NOT_THERE),
    both("say that what was refused was delivered",
         f"{_LOG} values (:unknown, 'default', :endpoint, 'm', 't', :running, 1, 500, 1, {NOW})", says="answered"),
    only_sqlite("replace an endpoint", "insert or replace into endpoint select * from endpoint where id = :endpoint",
                says="already exists"),
]  # fmt: skip

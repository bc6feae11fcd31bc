"""Attacks on connector settings (JF-11): secrets in the database, settings for every tenant or for another one."""

from __future__ import annotations

from tests.attacks.attack import both, each, only_postgres

_SECRET = "secret in settings"
_RENAME = ("immutable: tenant and name of a connector cannot change", "tenant and name cannot change")

CONNECTORS = [
    *(
        both(f"keep {what} in a header", f"update connector set headers = '{headers}'", says=_SECRET)
        for what, headers in (
            ("a password", '{"Authorization": "hunter2"}'),
            ("a key", '{"X-Api-Key": "12345"}'),
            ("a cookie", '{"cookie": "session=1"}'),
            ("a bearer token", '{"X-Other": "Bearer abcdefgh"}'),
            ("an invalid name of a secret", '{"X-Other": {"secret": "hunter-2"}}'),
            ("a secret under an unknown key", '{"X-Other": {"value": "x"}}'),
            ("a secret as its prefix", '{"X-Other": {"secret": "NAME", "prefix": "012345678901234567890"}}'),
            ("a list", '{"X-Other": ["a"]}'),
        )
    ),
    each(
        "store a secret instead of its name",
        """update connector set secrets = '["hunter2"]'""",
        "update connector set secrets = '{hunter2}'",
        says=_SECRET,
    ),
    each(
        "allow every host to receive secrets",
        "update connector set hosts = '[]'",
        "update connector set hosts = '{}'",
        says=_SECRET,
    ),
    both("move connector settings to another tenant", "update connector set tenant = 'acme'", says=_RENAME),
    both("move settings to another connector", "update connector set name = 'webhook.deliver'", says=_RENAME),
    both(
        "create connector settings for every tenant",
        "insert into connector (tenant, name, set_by, created_at, updated_at)"
        " select '*', name, set_by, created_at, updated_at from connector",
        says="tenant_named",
    ),
    both("set an unbounded timeout", "update connector set timeout = 1e9", says="timeout_bounded"),
    both("set an unbounded response size", "update connector set max_bytes = 2000000000", says="max_bytes_bounded"),
    only_postgres("truncate the connector settings", "truncate connector", says="rows are never changed"),
]

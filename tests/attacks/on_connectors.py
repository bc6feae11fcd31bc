"""Attacks on the settings of connectors (JF-11): a secret in the database, settings for everybody, another's."""

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
            ("a bearer's token", '{"X-Other": "Bearer abcdefgh"}'),
            ("something that is no name of a secret", '{"X-Other": {"secret": "hunter-2"}}'),
            ("a secret under another word", '{"X-Other": {"value": "x"}}'),
            ("a secret as its prefix", '{"X-Other": {"secret": "NAME", "prefix": "012345678901234567890"}}'),
            ("a list", '{"X-Other": ["a"]}'),
        )
    ),
    each(
        "keep a secret among the names",
        """update connector set secrets = '["hunter2"]'""",
        "update connector set secrets = '{hunter2}'",
        says=_SECRET,
    ),
    each(
        "let secrets go anywhere",
        "update connector set hosts = '[]'",
        "update connector set hosts = '{}'",
        says=_SECRET,
    ),
    both("give settings to another tenant", "update connector set tenant = 'acme'", says=_RENAME),
    both("give settings to another connector", "update connector set name = 'webhook.deliver'", says=_RENAME),
    both(
        "make settings for everybody",
        "insert into connector (tenant, name, set_by, created_at, updated_at)"
        " select '*', name, set_by, created_at, updated_at from connector",
        says="tenant_named",
    ),
    both("wait for ever", "update connector set timeout = 1e9", says="timeout_bounded"),
    both("take everything", "update connector set max_bytes = 2000000000", says="max_bytes_bounded"),
    only_postgres("forget all settings of connectors", "truncate connector", says="rows are never changed"),
]

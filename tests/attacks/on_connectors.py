"""Attacks on connector settings (JF-11): secrets in the database, settings for every tenant or for another one."""

from __future__ import annotations

from tests.attacks.attack import Table

_SECRET = "secret in settings"
_RENAME = "connector: tenant, name, created_at cannot change"

CONNECTORS: Table = {
    **{
        f"keep {what} in a header": (f"update connector set headers = '{headers}'", _SECRET)
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
    },
    "store a secret instead of its name": (
        ("""update connector set secrets = '["hunter2"]'""", "update connector set secrets = '{hunter2}'"),
        _SECRET,
    ),
    "allow every host to receive secrets": (
        ("update connector set hosts = '[]'", "update connector set hosts = '{}'"),
        _SECRET,
    ),
    "move connector settings to another tenant": ("update connector set tenant = 'acme'", _RENAME),
    "move settings to another connector": ("update connector set name = 'webhook.deliver'", _RENAME),
    "create connector settings for every tenant": (
        "insert into connector (tenant, name, set_by, created_at, updated_at)"
        " select '*', name, set_by, created_at, updated_at from connector",
        "tenant_named",
    ),
    "set an unbounded timeout": ("update connector set timeout = 1e9", "timeout_bounded"),
    "set an unbounded response size": ("update connector set max_bytes = 2000000000", "max_bytes_bounded"),
    "truncate the connector settings": ("truncate connector", (None, "rows are never changed")),
}

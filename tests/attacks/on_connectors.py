"""Attacks on connector and endpoint settings (JF-11, HF-20): secrets in the database, settings for another tenant."""

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
    "store a secret instead of its name in an endpoint": (
        ("""update endpoint set secrets = '["hunter2"]'""", "update endpoint set secrets = '{hunter2}'"),
        "secrets_named",
    ),
    "remove all secrets of an endpoint": (
        ("update endpoint set secrets = '[]'", "update endpoint set secrets = '{}'"),
        "secrets_named",
    ),
    "accept an unsigned provider": ("update endpoint set provider = 'none'", "provider_known"),
    "accept signatures of any age": ("update endpoint set tolerance = 1e9", "tolerance_bounded"),
    "move an endpoint to another tenant": (
        "update endpoint set tenant = 'acme'",
        "endpoint: tenant, name, created_at cannot change",
    ),
    "create an endpoint for every tenant": (
        "insert into endpoint (tenant, name, provider, secrets, set_by, created_at, updated_at)"
        " select '*', name, provider, secrets, set_by, created_at, updated_at from endpoint",
        "tenant_named",
    ),
    "store a secret instead of its name in a notifier": (
        (
            """update notifier set secrets = '["https://hooks.slack.com/x"]'""",
            "update notifier set secrets = '{hunter2}'",
        ),
        "secrets_named",
    ),
    "store a password in the URL of a dashboard": (
        "update notifier set dashboard = 'https://u:p@example.com'",
        "dashboard_plain",
    ),
    "tell something unknown": (
        ("""update notifier set wants = '["secrets"]'""", "update notifier set wants = '{secrets}'"),
        "wants_known",
    ),
    "move a notifier to another tenant": (
        "update notifier set tenant = 'acme'",
        "notifier: tenant, name, created_at cannot change",
    ),
    "escalate a notifier to itself": (
        "update notifier set escalate_after = 60, escalation = name",
        "escalation_whole",
    ),
    "truncate the notifiers": ("truncate notifier", (None, "rows are never changed")),
    "truncate the endpoints": ("truncate endpoint", (None, "rows are never changed")),
}

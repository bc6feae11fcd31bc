"""Features built on the engine, one folder per noun. A feature does not import another feature."""

FEATURES = (
    "jobs",
    "attempts",
    "agents",
    "approvals",
    "connectors",
    "webhooks",
    "limits",
    "schedules",
    "events",
    "tenants",
    "registry",
    "tokens",
    "workflows",
    "audit",
    "dead_letters",
    "payloads",
    "retention",
    "archives",
    "health",
    "workers",
    "versions",
    "restores",
)
"""Every feature, in the order in which its SQL is installed. In a database that fires the triggers of a table in the
order of their creation, this order also decides which trigger fires first."""

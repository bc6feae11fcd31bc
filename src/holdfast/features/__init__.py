"""What is built on the engine. Features do not import one another."""

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
    "health",
    "workers",
)
"""Every feature, in the order in which its SQL is installed. The order also decides which of two triggers on the same
table runs first, where the database goes by the order in which they were created."""

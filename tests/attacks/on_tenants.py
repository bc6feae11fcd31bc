"""Attacks on the caps of tenants (JF-12): a cap without effect, another tenant's cap, invalid numbers."""

from __future__ import annotations

from tests.attacks.attack import NOW, Table

_TENANT = "insert into tenant (tenant, set_by, created_at, updated_at"
# The database has a tenant with a cap, and one that is full.
CAPPED = (
    f"{_TENANT}, max_pending) values ('default', 'ada', {NOW}, {NOW}, 100000)",
    f"{_TENANT}, max_pending) values ('full', 'ada', {NOW}, {NOW}, 0)",
    "update dispatch set ruled = (1 = 1)",
)

TENANTS: Table = {
    "turn off the checks at enqueue for tenant caps": (
        "update dispatch set ruled = (1 = 0)",
        "ruled cannot be turned off once it is set",
    ),
    "mark dispatch as uncapped": (
        "update dispatch set capped = true; update dispatch set capped = false",
        (None, "capped must stay true while a tenant has a cap"),
    ),
    "enqueue for a tenant that is full": (
        "insert into job (id, kind, tenant) values (:unknown, 'k', 'full')",
        ("tenant full", "tenant full has 0 waiting jobs and may have 0: 1 of kind k refused"),
    ),
    "rename the tenant of a cap": ("update tenant set tenant = 'eve' where tenant = 'default'", "cannot change"),
    "set a cap for every tenant": (f"{_TENANT}) values ('*', 'eve', {NOW}, {NOW})", "tenant_named"),
    **{
        f"set {what} for a tenant": (f"{_TENANT}, {column}) values ('x', 'ada', {NOW}, {NOW}, {value})", says)
        for what, column, value, says in (
            ("a negative cap", "max_pending", "-1", "pending_bounded"),
            ("a weight of zero", "weight", "0", "weight_bounded"),
            ("a weight over the maximum", "weight", "1001", "weight_bounded"),
            ("an empty title", "title", "''", "title_bounded"),
        )
    },
}

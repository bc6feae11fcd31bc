"""Fault 33: every operation gets ids of another tenant, in every parameter that takes an id.

All store operations are called for one tenant with the ids of another: jobs, leases, approvals, schedules and so on
(`tests/contract/test_roles_at_work.py` has the list, which must be complete). Nothing of the other tenant may be
changed, copied or revealed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from holdfast.errors import HoldfastError
from holdfast.features.assembly import Store, open_store
from tests.contract.test_role_operations import calls, furnish
from tests.support.direct_sql import ByHand, open_by_hand
from tests.support.features import register_tenant as register
from tests.support.schedules import placed, template
from tests.support.stores import put_one, spec

pytestmark = pytest.mark.req("JF-1")

OWNER, STRANGER = "default", "umbrella"
# Operations of the whole database: pauses, logins, payload indexes, usage, and the seals over the whole ledger.
GLOBAL = {
    *("audit.block", "audit.get_seal", "audit.seal", "audit.unsealed", "clock.now", "clock.set", "executors.set"),
    *(
        "restores.report",
        "restores.adopt",
        "executors.list",
        "executors.remove",
        "jobs.fill_payload_index",
        "jobs.payload_indexes",
    ),
    *("jobs.remove_payload_index", "tenants.fair_queues", "tenants.pin", "tenants.pinned", "tenants.pins"),
    *("tenants.registered_only", "tenants.set_fair", "tenants.set_registered_only", "tenants.unpin", "usage.count"),
}


def rows_of(by_hand: ByHand, tenant: str) -> dict[str, list[Any]]:
    """Read the rows of a tenant in every table of the catalogue."""
    result: dict[str, list[Any]] = {}
    for table in by_hand.tables():
        columns = by_hand.execute(f"SELECT * FROM {table} LIMIT 1")
        if columns and by_hand.refusal(f"SELECT tenant FROM {table} LIMIT 1") is None:
            rows = by_hand.execute(f"SELECT * FROM {table} WHERE tenant = :t", {"t": tenant})
            result[table] = sorted(map(repr, rows))
    return result


def test_ids_of_another_tenant_do_not_exist(url: str) -> None:
    with closing(open_store(url)) as store, closing(open_by_hand(url)) as by_hand:
        store.migrate()
        ids = furnish(store, by_hand)
        register(store, OWNER, max_pending=1000, max_running=1000)
        fill_other_tenant(store)
        before = rows_of(by_hand, OWNER)
        assert before["job"]
        names = {str(row[0]) for row in by_hand.execute("SELECT id FROM job WHERE tenant = :t", {"t": OWNER})}
        names |= set(ids.values()) - {ids["bulk"]}  # not used yet
        leaks: dict[str, str] = {}
        for operation, call in calls(store, ids, tenant=STRANGER, scope=STRANGER).items():
            if operation in GLOBAL:
                continue
            text = response_text(call)
            if any(name in text for name in names) and "not_found" not in text:
                leaks[operation] = text
        assert leaks == {}, "a response contains an id of another tenant"
        after = rows_of(by_hand, OWNER)
        changed = {table: (before.get(table), rows) for table, rows in after.items() if before.get(table, []) != rows}
        assert changed == {}
        copied = {
            table: row for table, rows in rows_of(by_hand, STRANGER).items() for row in rows for n in names if n in row
        }
        assert copied == {}


def response_text(call: Callable[[], object]) -> str:
    """Return the response as text, empty for a refusal. An error of the store is raised."""
    try:
        return repr(call())
    except HoldfastError as error:
        if error.code in ("store_unavailable", "store_error", "not_migrated"):
            raise
        return ""


def fill_other_tenant(store: Store) -> None:
    """Create objects with the same names for the other tenant."""
    put_one(store, tenant=STRANGER)
    assert store.run(store.schedules.add(placed("hourly", "@hourly"), "eve", STRANGER))
    store.run(store.templates.set(template(), "eve", STRANGER))
    store.run(store.jobs.enqueue([spec(agent="planner")], STRANGER))

"""Fault 33, nested_ids: ids of another tenant, in every place where an operation takes one.

All operations of the port are tried (`tests/contract/test_role_operations.py` has a list that must be complete),
each called for one tenant with the ids of another: jobs, leases, approvals, schedules, workflows and so on.
Nothing of the other's may be changed, copied, or told.
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
# Not of one tenant: pauses of the whole database.
EVERYBODYS = {
    "clock.set",
    "tenants.set_fair",
    "executors.add",
    "executors.remove",
    "executors.list",
    "tenants.fair_queues",
    "clock.now",
}
EVERYBODYS |= {
    "audit.seal",
    "audit.get_seal",
    "audit.block",
    "audit.unsealed",
}  # the chain over the whole ledger; it is the owner's
EVERYBODYS |= {"tenants.set_registered_only", "tenants.registered_only"}
EVERYBODYS |= {"tenants.pin", "tenants.unpin", "tenants.pins", "tenants.pinned"}  # of logins
EVERYBODYS |= {"jobs.payload_indexes", "jobs.fill_payload_index", "jobs.remove_payload_index"}
EVERYBODYS |= {"usage.count"}  # what the whole ledger has, for whom it was


def rows_of(by_hand: ByHand, tenant: str) -> dict[str, list[Any]]:
    """What a tenant has in each table, by the catalogue."""
    found: dict[str, list[Any]] = {}
    for table in by_hand.tables():
        columns = by_hand.execute(f"SELECT * FROM {table} LIMIT 1")
        if columns and by_hand.refusal(f"SELECT tenant FROM {table} LIMIT 1") is None:
            found[table] = sorted(map(repr, by_hand.execute(f"SELECT * FROM {table} WHERE tenant = :t", {"t": tenant})))
    return found


def test_ids_of_another_tenant_are_not_there(url: str) -> None:
    with closing(open_store(url)) as store, closing(open_by_hand(url)) as by_hand:
        store.migrate()
        ids = furnish(store, by_hand)
        register(store, OWNER, max_pending=1000, max_running=1000)
        strange(store)
        before = rows_of(by_hand, OWNER)
        assert before["job"]
        names = {str(row[0]) for row in by_hand.execute("SELECT id FROM job WHERE tenant = :t", {"t": OWNER})}
        names |= set(ids.values()) - {ids["bulk"]}  # which is nobody's yet
        told: dict[str, str] = {}
        for operation, call in calls(store, ids, tenant=STRANGER, scope=STRANGER).items():
            if operation in EVERYBODYS:
                continue
            answer = answered(call)
            if any(name in answer for name in names) and "not_found" not in answer:
                told[operation] = answer
        assert told == {}, "an id was answered that is another's"
        after = rows_of(by_hand, OWNER)
        changed = {table: (before.get(table), rows) for table, rows in after.items() if before.get(table, []) != rows}
        assert changed == {}
        copied = {
            table: row for table, rows in rows_of(by_hand, STRANGER).items() for row in rows for n in names if n in row
        }
        assert copied == {}


def answered(call: Callable[[], object]) -> str:
    """In words; a refusal says nothing, and a failure of the store is none."""
    try:
        return repr(call())
    except HoldfastError as error:
        if error.code in ("store_unavailable", "store_error", "not_migrated"):
            raise
        return ""


def strange(store: Store) -> None:
    """What the stranger has of its own, under the same names."""
    put_one(store, tenant=STRANGER)
    assert store.run(store.schedules.add(placed("hourly", "@hourly"), "eve", STRANGER))
    store.run(store.templates.set(template(), "eve", STRANGER))
    store.run(store.jobs.enqueue([spec(agent="planner")], STRANGER))

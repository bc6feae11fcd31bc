"""Many schedules: an index finds the due ones without reading the others (SC-9)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from holdfast.engine.job import worker_holder
from holdfast.engine.names import PagePosition
from holdfast.features.assembly import Store
from holdfast.stores.flow import Rows, Statement, drive_steps
from tests.support.direct_sql import ByHand, PostgresByHand
from tests.support.schedules import MONDAY
from tests.support.stores import forward, new_id

pytestmark = pytest.mark.req("SC-9")

MANY, DUE = 5_000, 30
COLUMNS = (
    "(id, tenant, name, timing, zone, kind, anchor_at, next_fire_at, attend_at, created_by, created_at, updated_by,"
    " updated_at)"
)


def fill(store: Store, by_hand: ByHand) -> None:
    """Far more schedules than can be due; of those that are due, one has another kind."""
    now = forward(store)
    early, late = now.timestamp() - 5, now.timestamp() + 86_400
    if isinstance(by_hand, PostgresByHand):
        numbers = f"generate_series(1, {MANY}) n"
        ident, when = "uuid7()", f"to_timestamp(case when n <= {DUE} then {early} else {late} end)"
        made = f"to_timestamp({MONDAY.timestamp()})"
    else:
        numbers = f"(with recursive s(n) as (select 1 union all select n + 1 from s where n < {MANY}) select n from s)"
        ident, when = "printf('%036d', n)", f"case when n <= {DUE} then {int(early * 1e6)} else {int(late * 1e6)} end"
        made = str(int(MONDAY.timestamp() * 1e6))
    by_hand.execute(
        f"insert into schedule {COLUMNS} select {ident}, 'default', 's' || n, '@daily', 'UTC',"
        f" case when n = 1 then 'other' else 'report' end, {made}, {when}, {when}, 'ada', {made}, 'ada', {made}"
        f" from {numbers}"
    )
    by_hand.execute("analyze schedule")


@pytest.mark.slow
def test_due_schedules_are_found_by_an_index(store: Store, by_hand: ByHand) -> None:
    fill(store, by_hand)
    store.run(store.leases.open(worker_holder(new_id(), "theirs", 1), 3600, "*", kinds=["other"]))
    start = time.perf_counter()
    _, due, run = store.run(store.schedules.due(["report"], 200, "*"))
    print(f"{len(due)} of {MANY:,} in {(time.perf_counter() - start) * 1000:.1f} ms")
    assert (len(due), run) == (DUE - 1, frozenset())

    plans: list[str] = []

    def execute(statement: Statement) -> Rows:
        params: Any = statement.params
        if "attend_at" in statement.sql:
            plans.append(_plan(by_hand, statement.sql, params))
        return by_hand_rows(by_hand, statement)

    by_hand.begin()
    drive_steps(store.schedules.due(["report"], 200, "*").start(), execute)
    by_hand.rollback()
    assert len(plans) == 2
    for plan in plans:
        assert "schedule_attend" in plan, plan
        assert "SCAN s\n" not in plan, plan
        assert "Seq Scan on schedule" not in plan, plan


@pytest.mark.slow
@pytest.mark.req("JF-14")
@pytest.mark.parametrize("tenant", ["default", "*"])
def test_page_of_schedules_reads_an_index_and_one_page(store: Store, by_hand: ByHand, tenant: str) -> None:
    fill(store, by_hand)
    page = store.schedules.list(tenant, after=PagePosition("default", "s3"), limit=50)
    assert [each.name for each in store.run(page)][:2] == ["s30", "s300"]
    plans: list[str] = []

    def execute(statement: Statement) -> Rows:
        params: Any = statement.params
        if "schedule s" in statement.sql:
            plans.append(_plan(by_hand, statement.sql, params))
        return by_hand_rows(by_hand, statement)

    by_hand.begin()
    drive_steps(page.start(), execute)
    by_hand.rollback()
    (plan,) = plans
    assert "schedule_name" in plan, plan
    # The page itself may be sorted once more, for the bound on its bytes.
    assert "sort" not in plan.lower().partition("limit")[2], plan


def by_hand_rows(by_hand: ByHand, statement: Statement) -> Rows:
    if isinstance(by_hand, PostgresByHand):
        cursor = by_hand.connection.execute(statement.sql, statement.params)
        return list(cursor.fetchall())
    return list(by_hand.execute(statement.sql, statement.params))  # type: ignore[arg-type]


def _plan(by_hand: ByHand, query: str, params: Any) -> str:
    if isinstance(by_hand, PostgresByHand):
        rows = by_hand.connection.execute(f"explain {query}", params).fetchall()
        return "\n".join(str(row[0]) for row in rows)
    return "\n".join(str(row[-1]) for row in by_hand.execute(f"explain query plan {query}", params)) + "\n"

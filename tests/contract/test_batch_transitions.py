"""One statement that takes or settles many jobs: a single row that breaks a rule refuses the whole statement.

PostgreSQL checks the common case with one pass over the rows (`plain`): that pass must notice any deviation.
"""

from __future__ import annotations

import pytest

from holdfast.features.assembly import Store
from tests.support.direct_sql import ByHand
from tests.support.stores import history, new_id, open_lease, put_one

pytestmark = pytest.mark.req("CX-1", "CX-4", "CX-13")

NOW = "(select now from present)"
TAKE = {
    "state": "'in_progress'",
    "lease": "(select id from lease where id = :lease)",
    "attempt": "attempt + 1",
    "settled_by": "null",
    "finished_at": "null",
    "note": "null",
}
SUCCEED = {
    "state": "'succeeded'",
    "lease": "null",
    "attempt": "attempt",
    "settled_by": "lease",
    "finished_at": NOW,
    "note": "null",
}
# Changes of a single row that are never allowed.
NEVER = {
    "tenant": "'other'",
    "kind": "'other'",
    "max_crashes": "max_crashes + 1",
    "agent": "'other'",
    "workflow_id": "id",
    "retries": "max_attempts",
    "crashes": "-1",
    "max_attempts": "102",
}
BREAKS = {
    "take": NEVER | {
        "state": "'succeeded'",
        "lease": "(select id from lease where id = :ended)",
        "attempt": "attempt + 2",
        "settled_by": "(select id from lease where id = :lease)",
        "finished_at": NOW,
    },
    "succeed": NEVER | {
        "state": "'queued'",
        "lease": "lease",
        "attempt": "attempt + 1",
        "settled_by": "(select id from lease where id = :ended)",
        "finished_at": "null",
    },
}  # fmt: skip


def statement(step: dict[str, str], odd: dict[str, str]) -> str:
    """A statement that applies the transition to all three jobs, with the `odd` columns of the last changed."""
    both = {column: (step.get(column, column), odd.get(column)) for column in {**step, **odd}}
    sets = (
        f"{column} = {usual}" if other is None else f"{column} = case when id = :last then {other} else {usual} end"
        for column, (usual, other) in both.items()
    )
    return f"update job_state set {', '.join(sets)} where id in (:first, :second, :last)"


def _used(sql: str, names: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in names.items() if f":{name}" in sql}


def test_one_invalid_row_refuses_the_whole_statement(store: Store, by_hand: ByHand) -> None:
    jobs = dict(zip(("first", "second", "last"), (put_one(store, id=new_id()) for _ in range(3)), strict=True))
    names = jobs | {name: open_lease(store, ttl=1000) for name in ("lease", "ended")} | {"unknown": new_id()}
    names["planning"] = store.run(store.leases.open("planner", 1000, "*", "generator")).id
    store.run(store.leases.end(names["ended"], "closed", "*"))

    for unusable in ("ended", "planning", "unknown"):
        all_jobs = statement(TAKE | {"lease": f"coalesce((select id from lease where id = :{unusable}), id)"}, {})
        assert by_hand.refusal(all_jobs, _used(all_jobs, names)) is not None, unusable

    for event_type, step in (("take", TAKE), ("succeed", SUCCEED)):
        for column, odd in BREAKS[event_type].items():
            sql = statement(step, {column: odd})
            refusal = by_hand.refusal(sql, _used(sql, names))
            assert refusal is not None, (event_type, column)
        assert all(len(history(store, job)) == (1 if event_type == "take" else 2) for job in jobs.values())
        # A note is legal, and must be recorded.
        sql = statement(step, {"note": 'coalesce(note, \'{"by": "hand"}\')'})
        by_hand.execute(sql, _used(sql, names))
        last = [history(store, job)[-1] for job in jobs.values()]
        assert [(event.type, event.attempt, event.meta) for event in last] == [
            (event_type, 1, {}), (event_type, 1, {}), (event_type, 1, {"by": "hand"})
        ]  # fmt: skip


def test_one_statement_can_take_and_settle(store: Store, by_hand: ByHand) -> None:
    lease, taken, waiting = open_lease(store, ttl=1000), put_one(store, id=new_id()), put_one(store, id=new_id())
    by_hand.execute(
        f"update job_state set {', '.join(f'{column} = {value}' for column, value in TAKE.items())} where id = :id",
        {"lease": lease, "id": taken},
    )
    sets = (
        f"{column} = case when state = 'queued' then {value} else {SUCCEED[column]} end"
        for column, value in TAKE.items()
        if column != "note"
    )
    by_hand.execute(f"update job_state set {', '.join(sets)}", {"lease": lease})

    assert [event.type for event in history(store, taken)] == ["enqueue", "take", "succeed"]
    assert [event.type for event in history(store, waiting)] == ["enqueue", "take"]

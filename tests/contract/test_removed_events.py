"""Retention records the events it removes in the audit trail; events removed without a record are detected."""

from __future__ import annotations

import pytest

from holdfast.engine.states import State
from holdfast.features.assembly import Store
from holdfast.stores.flow import Flow, Statement, Steps
from holdfast.stores.sqlite.base import begin_write, end_write, ids_json
from holdfast.stores.sqlite.ledger import record_removed
from tests.support.direct_sql import ByHand, unguarded
from tests.support.features import flaws, seal, verify
from tests.support.job_states import bring
from tests.support.stores import put_one

pytestmark = pytest.mark.req("HF-4", "CX-4")


def purge(store: Store, jobs: list[str]) -> None:
    """Purge as retention does: the record first, then states, facts and events."""

    def on_sqlite() -> Steps[None]:
        yield from begin_write("retention")
        yield from record_removed(jobs)
        for table, column in (("job_state", "id"), ("job", "id"), ("event", "job_id")):
            yield Statement(
                f"DELETE FROM holdfast_{table} WHERE {column} IN (SELECT value FROM json_each(?))", (ids_json(jobs),)
            )
        yield from end_write()

    def on_postgres() -> Steps[None]:
        yield Statement("select holdfast.enter('default', 'retention')")
        yield Statement("select holdfast.record_removed(%s::uuid[])", (jobs,))
        for table, column in (("job_state", "id"), ("job", "id"), ("event", "job_id")):
            yield Statement(f"delete from holdfast.{table} where {column} = any(%s::uuid[])", (jobs,))

    store.run(Flow(on_sqlite if store.embedded else on_postgres))


def test_seals_hold_after_a_purge_and_detect_unrecorded_deletes(store: Store, by_hand: ByHand) -> None:
    old = [bring(store, by_hand, State.CLEANED).id for _ in range(3)]
    seal(store, want=4)
    kept = put_one(store)
    seal(store)
    numbers = [row[0] for row in by_hand.execute("select seq from event where job_id = :id", {"id": old[0]})]
    purge(store, old[:2])
    report = verify(store)
    assert (report.ok, report.purged, report.unsealed) == (True, 2 * len(numbers), 1)
    seal(store)
    assert verify(store).ok
    (action,) = by_hand.execute("select actor, name, first_seq, last_seq from action where type = 'purge'")
    assert (action[0], action[1], action[2]) == ("retention", "2 jobs", numbers[0])

    stolen = [row[0] for row in by_hand.execute("select seq from event where job_id = :id", {"id": kept})]
    put_one(store)
    with unguarded(by_hand, "event", "job", "job_state"):
        for table, column in (("job_state", "id"), ("job", "id"), ("event", "job_id")):
            by_hand.execute(f"delete from {table} where {column} = :id", {"id": kept})
    assert flaws(store) == [("deleted", "event", number) for number in stolen]

"""Fault 38 for dead letters and bulk operations: without its safeguard each check here goes red."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from holdfast.engine.states import State
from holdfast.features.assembly import Store, open_store
from holdfast.features.dead_letters.model import GroupFilter, NewOperation
from holdfast.stores.requests import JobFilter
from tests.faults.test_38_ablation import POSTGRES, drop_trigger, replaced
from tests.support.direct_sql import ByHand, open_by_hand
from tests.support.stores import FINAL, TENANT, new_id, put_one, state_of, work

pytestmark = pytest.mark.req("ARCH", "DP-15")


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with closing(open_store(url)) as opened:
        opened.migrate()
        yield opened


@pytest.fixture
def by_hand(store: Store) -> Iterator[ByHand]:
    with closing(open_by_hand(store.url)) as connection:
        yield connection


def dead(store: Store, kind: str = "pay") -> str:
    job_id = put_one(store, kind)
    work(store, FINAL)
    assert state_of(store, job_id) is State.DEAD_LETTER
    return job_id


def counted(store: Store) -> int:
    return sum(group.open for group in store.run(store.dead_letters.groups(GroupFilter(tenant=TENANT))))


def test_without_the_trigger_nobody_counts(store: Store, by_hand: ByHand) -> None:
    dead(store)
    assert counted(store) == 1
    if by_hand.name == "sqlite":
        drop_trigger(by_hand, "keep_dead_letters", "job_state")
    else:
        replaced(by_hand, "dead_letters_on_transition", r"\nbegin\n", "\nbegin\n    return;\n")
    dead(store)
    assert counted(store) == 1, "one of two"


@POSTGRES
def test_without_the_look_at_the_filter_anything_can_be_resolved(store: Store, by_hand: ByHand) -> None:
    """Who calls `do_operation` names the jobs; the operation says which they may be, and each has one turn."""
    first, other = dead(store), dead(store, "other")
    new = NewOperation(new_id(), "redrive")
    store.run(store.operations.start(new, JobFilter(tenant=TENANT, kind="pay"), "ada", TENANT))
    call = "select do_operation(:op, :jobs, :last, false, 'default')"
    assert by_hand.execute(call, {"op": new.id, "jobs": [first, other], "last": first}) == [(1,)]
    work(store, FINAL)
    assert by_hand.execute(call, {"op": new.id, "jobs": [first], "last": first}) == [(0,)], "it has had its turn"
    replaced(by_hand, "do_operation", r"\(v_op\.place is null or j\.id < v_op\.place\) and", "")
    assert by_hand.execute(call, {"op": new.id, "jobs": [first], "last": first}) == [(1,)], "a second time"
    replaced(by_hand, "is_wanted", r"return exists \(.*\);\nend", "return true;\nend")
    assert by_hand.execute(call, {"op": new.id, "jobs": [other], "last": first}) == [(1,)]
    assert state_of(store, other) is State.QUEUED

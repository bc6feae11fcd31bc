"""Fault 38 for dead letters and bulk operations: without its safeguard each check fails."""

from __future__ import annotations

import pytest

from holdfast.engine.states import State
from holdfast.features.assembly import Store
from holdfast.features.dead_letters.model import GroupFilter, NewOperation
from holdfast.stores.requests import JobFilter
from tests.faults.test_38_ablation import POSTGRES, drop_trigger, edit_function
from tests.support.direct_sql import ByHand
from tests.support.stores import FINAL, TENANT, new_id, put_one, state_of, work

pytestmark = pytest.mark.req("ARCH", "DP-15")


def dead(store: Store, kind: str = "pay") -> str:
    job_id = put_one(store, kind)
    work(store, FINAL)
    assert state_of(store, job_id) is State.DEAD_LETTER
    return job_id


def open_count(store: Store) -> int:
    return sum(group.open for group in store.run(store.dead_letters.groups(GroupFilter(tenant=TENANT))))


def test_dead_letters_are_not_counted_without_trigger(store: Store, by_hand: ByHand) -> None:
    dead(store)
    assert open_count(store) == 1
    if by_hand.name == "sqlite":
        drop_trigger(by_hand, "keep_dead_letters", "job_state")
    else:
        edit_function(by_hand, "dead_letters_on_transition", r"\nbegin\n", "\nbegin\n    return;\n")
    dead(store)
    assert open_count(store) == 1, "one of the two is counted"


@POSTGRES
def test_bulk_operation_can_change_any_job_without_filter_check(store: Store, by_hand: ByHand) -> None:
    """The caller of `do_operation` names the jobs; the operation's filter limits them, and each is changed once."""
    first, other = dead(store), dead(store, "other")
    new = NewOperation(new_id(), "redrive")
    store.run(store.operations.start(new, JobFilter(tenant=TENANT, kind="pay"), "ada", TENANT))
    call = "select do_operation(:op, :jobs, :last, false, 'default')"
    assert by_hand.execute(call, {"op": new.id, "jobs": [first, other], "last": first}) == [(1,)]
    work(store, FINAL)
    assert by_hand.execute(call, {"op": new.id, "jobs": [first], "last": first}) == [(0,)], "it was changed before"
    edit_function(by_hand, "do_operation", r"\(v_op\.place is null or j\.id < v_op\.place\) and", "")
    assert by_hand.execute(call, {"op": new.id, "jobs": [first], "last": first}) == [(1,)], "a second time"
    edit_function(by_hand, "is_wanted", r"return exists \(.*\);\nend", "return true;\nend")
    assert by_hand.execute(call, {"op": new.id, "jobs": [other], "last": first}) == [(1,)]
    assert state_of(store, other) is State.QUEUED

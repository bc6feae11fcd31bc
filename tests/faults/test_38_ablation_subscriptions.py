"""Fault 38 for subscriptions, retries as new jobs, and executors: each safeguard is removed, and the check that covers
it fails."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from holdfast.errors import Conflict, HoldfastError, Refused
from holdfast.features.assembly import Store, open_store
from holdfast.stores.flow import Steps
from holdfast.stores.requests import ClaimRequest
from tests.faults.test_38_ablation import drop_trigger, edit_function
from tests.support.direct_sql import ByHand
from tests.support.features import feed, feed_all, made_of, refusals, subscribe
from tests.support.ledger import check_ledger
from tests.support.stores import BROKEN, put_one, settle, state_of, take

pytestmark = pytest.mark.req("ARCH")

POSTGRES = pytest.mark.parametrize("url", ["postgres"], indirect=True)


@POSTGRES
def test_subscription_with_row_lock_misses_its_own_jobs(store: Store, by_hand: ByHand) -> None:
    one = subscribe(store, "self", "job.enqueue", job_kind="again", max_depth=2)
    edit_function(by_hand, "hold_subscription", r"and not halted\(\);", "and not halted() for update;")
    put_one(store)
    with closing(open_store(store.url)) as other:
        # Another transaction ends between the lock and the read, so that the snapshot includes our own transaction.
        original = type(store.subscriptions)._events

        def late(self: Any, subscription: Any, want: int) -> Steps[Any]:
            put_one(other, "other")
            return (yield from original(self, subscription, want))

        type(store.subscriptions)._events = late  # type: ignore[method-assign]
        try:
            feed(store, "self")
        finally:
            type(store.subscriptions)._events = original  # type: ignore[method-assign]
    feed_all(store, "self")
    assert refusals(store, one) == [], "it never reads its own jobs, so the chain does not reach its limit"


def test_event_has_two_jobs_without_delivery_key(
    store: Store, by_hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_delivered(self: object, subscription: object, events: object) -> Steps[set[str]]:
        yield from ()
        return set()

    monkeypatch.setattr(type(store.subscriptions), "_delivered", none_delivered)
    subscribe(store, "after", "job.enqueue", kind="import", start="beginning")
    put_one(store, "import")
    assert feed_all(store, "after") == 1
    by_hand.execute("update subscription set cursor = null")
    with pytest.raises(Conflict):
        feed(store, "after")
    if by_hand.name == "sqlite":
        for name in ("guard_delivery_insert", "guard_delivery_delete"):
            drop_trigger(by_hand, name, "delivery")
        by_hand.execute("delete from delivery")
    else:
        by_hand.execute("alter table delivery drop constraint delivery_pkey")
    feed_all(store, "after")
    assert len(made_of(store)) == 2


def test_concurrent_readers_move_cursor_twice_without_cursor_check(store: Store, by_hand: ByHand) -> None:
    """The lock is the first safeguard, the check of the old cursor the second."""
    one = subscribe(store, "after", "job.enqueue", kind="import", start="beginning")
    put_one(store, "import")
    assert feed_all(store, "after") == 1
    advance: Any = store.subscriptions._advance
    from holdfast.stores.flow import Flow

    with pytest.raises(HoldfastError) as refused:
        store.run(Flow(lambda: advance(one, "1", [])))
    assert refused.value.code == "subscription_changed"
    if by_hand.name == "postgres":
        edit_function(
            by_hand, "advance_subscription", r"\s+and s\.cursor is not distinct from advance_subscription\.was", ""
        )
        store.run(Flow(lambda: advance(one, "1", [])))
        assert feed(store, "after").made == 0, "only the key remains"


def test_retried_job_can_run_again_without_guard(store: Store, by_hand: ByHand) -> None:
    old = put_one(store, retry_as="new_job")
    settle(store, take(store), BROKEN)
    again = (
        "update job_state set state = 'retry_waiting', finished_at = null, due_at = (select now from present)"
        " where id = :id"
    )
    assert "cannot run again" in (by_hand.refusal(again, {"id": old}) or "")
    if by_hand.name == "sqlite":
        drop_trigger(by_hand, "keep_dead_letters", "job_state")
    else:
        edit_function(by_hand, "refuse_rerun", r"\nbegin\n", "\nbegin\n    return;\n")
    assert by_hand.refusal(again, {"id": old}) is None
    assert state_of(store, old) == "retry_waiting"
    with pytest.raises(AssertionError, match="retried as another job"):
        check_ledger(store)


@POSTGRES
def test_without_carrying_over_the_limit_is_never_reached(store: Store, by_hand: ByHand) -> None:
    edit_function(by_hand, "take_over", r"update job_state n set.*?n\.id = p_new;", "")
    put_one(store, retry_as="new_job")
    settle(store, take(store), BROKEN)
    with pytest.raises(AssertionError, match="retries were granted"):
        check_ledger(store)


def test_any_executor_can_claim_without_executor_checks(store: Store, by_hand: ByHand) -> None:
    put_one(store)
    store.run(store.executors.set("gpu", "executor", "ada"))
    opening = store.leases.open("w", 60, "*", "odd")
    with pytest.raises(Refused):
        store.run(opening)
    drop_trigger(by_hand, "guard_lease_insert" if by_hand.name == "sqlite" else "guard_insert", "lease")
    lease = store.run(opening).id
    request = ClaimRequest(lease=lease, queues=("default",), want=1)
    with pytest.raises(Refused) as refused:
        store.run(store.leases.claim(request))
    assert refused.value.code == "executor_refused", "the claim checks again"
    if by_hand.name == "postgres":
        edit_function(by_hand, "exchange", r"if not v_may then.*?end if;\s+v_left := 0;\s+end if;", "")
        assert store.run(store.leases.claim(request)) == [], "and again after it has selected jobs"
        edit_function(by_hand, "exchange", r"not live or not v_may", "not live", times=2)
        assert len(store.run(store.leases.claim(request))) == 1

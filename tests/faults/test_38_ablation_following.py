"""Fault 38 for events that make jobs, retries that are jobs, and who may execute: each safeguard is taken away, and the
check that stands for it goes red."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from holdfast.errors import Conflict, HoldfastError, Refused
from holdfast.features.assembly import Store, open_store
from holdfast.stores.flow import Steps
from holdfast.stores.requests import ClaimRequest
from tests.faults.test_38_ablation import drop_trigger, replaced
from tests.support.direct_sql import ByHand, open_by_hand
from tests.support.features import feed, feed_all, made_of, refusals, subscribe
from tests.support.ledger import check_ledger
from tests.support.stores import BROKEN, put_one, settle, state_of, take

pytestmark = pytest.mark.req("ARCH")

POSTGRES = pytest.mark.parametrize("url", ["postgres"], indirect=True)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with closing(open_store(url)) as opened:
        opened.migrate()
        yield opened


@pytest.fixture
def by_hand(store: Store) -> Iterator[ByHand]:
    with closing(open_by_hand(store.url)) as connection:
        yield connection


@POSTGRES
def test_with_a_lock_on_its_row_a_subscription_misses_what_it_makes_itself(store: Store, by_hand: ByHand) -> None:
    one = subscribe(store, "self", "job.enqueue", job_kind="again", max_depth=2)
    replaced(by_hand, "hold_subscription", r"and not halted\(\);", "and not halted() for update;")
    put_one(store)
    with closing(open_store(store.url)) as other:
        # Somebody else's transaction ends between the lock and the reading, so that the snapshot reaches past our own.
        whole = type(store.subscriptions)._events  # type: ignore[attr-defined]

        def late(self: Any, whose: Any, want: int) -> Steps[Any]:
            put_one(other, "other")
            return (yield from whole(self, whose, want))

        type(store.subscriptions)._events = late  # type: ignore[attr-defined]
        try:
            feed(store, "self")
        finally:
            type(store.subscriptions)._events = whole  # type: ignore[attr-defined]
    feed_all(store, "self")
    assert refusals(store, one) == [], "what it made was never seen: no chain, and no end of one"


def test_without_the_key_an_event_has_two_jobs(store: Store, by_hand: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(self: object, whose: object, events: object) -> Steps[set[str]]:
        yield from ()
        return set()

    monkeypatch.setattr(type(store.subscriptions), "_delivered", blind)
    subscribe(store, "after", "job.enqueue", kind="import", start="beginning")
    put_one(store, "import")
    assert feed_all(store, "after") == 1
    by_hand.execute("update subscription set cursor = null")
    with pytest.raises(Conflict):
        feed(store, "after")
    if by_hand.name == "sqlite":
        for name in ("judge_delivery_insert", "judge_delivery_delete"):
            drop_trigger(by_hand, name, "delivery")
        by_hand.execute("delete from delivery")
    else:
        by_hand.execute("alter table delivery drop constraint delivery_pkey")
    feed_all(store, "after")
    assert len(made_of(store)) == 2


def test_without_the_place_one_came_from_two_who_look_at_once_move_it_twice(store: Store, by_hand: ByHand) -> None:
    """The lock is the first safeguard; whoever has come by it is stopped by the place."""
    one = subscribe(store, "after", "job.enqueue", kind="import", start="beginning")
    put_one(store, "import")
    assert feed_all(store, "after") == 1
    advance: Any = store.subscriptions._advance  # type: ignore[attr-defined]
    from holdfast.stores.flow import Flow

    with pytest.raises(HoldfastError) as refused:
        store.run(Flow(lambda: advance(one, "1", [])))
    assert refused.value.code == "subscription_changed"
    if by_hand.name == "postgres":
        replaced(
            by_hand, "advance_subscription", r"\s+and s\.cursor is not distinct from advance_subscription\.was", ""
        )
        store.run(Flow(lambda: advance(one, "1", [])))
        assert feed(store, "after").made == 0, "and the key is what is left"


def test_without_the_guard_a_retried_job_is_run_again(store: Store, by_hand: ByHand) -> None:
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
        replaced(by_hand, "refuse_rerun", r"\nbegin\n", "\nbegin\n    return;\n")
    assert by_hand.refusal(again, {"id": old}) is None
    assert state_of(store, old) == "retry_waiting"
    with pytest.raises(AssertionError, match="retried as another job"):
        check_ledger(store)


@POSTGRES
def test_without_carrying_over_the_limit_is_never_reached(store: Store, by_hand: ByHand) -> None:
    replaced(by_hand, "take_over", r"update job_state n set.*?n\.id = p_new;", "")
    put_one(store, retry_as="new_job")
    settle(store, take(store), BROKEN)
    with pytest.raises(AssertionError, match="retries were granted"):
        check_ledger(store)


def test_without_the_judge_anybody_executes(store: Store, by_hand: ByHand) -> None:
    put_one(store)
    store.run(store.executors.add("gpu", "executor", "ada"))
    opening = store.leases.open("w", 60, "*", "odd")
    with pytest.raises(Refused):
        store.run(opening)
    drop_trigger(by_hand, "judge_lease_insert" if by_hand.name == "sqlite" else "judge_insert", "lease")
    lease = store.run(opening).id
    request = ClaimRequest(lease=lease, queues=("default",), want=1)
    with pytest.raises(Refused) as refused:
        store.run(store.leases.claim(request))
    assert refused.value.code == "executor_refused", "the claim asks once more"
    if by_hand.name == "postgres":
        replaced(by_hand, "exchange", r"if not v_may then.*?end if;\s+v_left := 0;\s+end if;", "")
        assert store.run(store.leases.claim(request)) == [], "and once more when it has found jobs"
        replaced(by_hand, "exchange", r"not live or not v_may", "not live", times=2)
        assert len(store.run(store.leases.claim(request))) == 1

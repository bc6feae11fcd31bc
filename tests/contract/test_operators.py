"""Operator actions: cancel, redrive, discard. A refusal is a result, one per id, in order (DP-3)."""

from __future__ import annotations

import pytest

from holdfast.engine.job import Verdict
from holdfast.engine.states import State
from holdfast.features.assembly import Store
from holdfast.stores.requests import OperatorAction
from tests.support.direct_sql import ByHand
from tests.support.job_states import bring
from tests.support.stores import (
    FINAL,
    claim,
    forward,
    history,
    job,
    new_id,
    open_lease,
    put,
    put_one,
    settle,
    spec,
    state_of,
    take,
    types_of,
    work,
)

S = State


def operate(
    store: Store, operation: OperatorAction, *ids: str, reason: str | None = None, tenant: str = "default"
) -> list[Verdict]:
    return store.run(store.jobs.operate(operation, ids, reason, "ada", tenant))


@pytest.mark.req("CX-11", "DP-3")
@pytest.mark.parametrize("state", list(State))
def test_cancel_in_every_state(store: Store, by_hand: ByHand, state: State) -> None:
    now = forward(store)
    job_id = bring(store, by_hand, state).id
    before = by_hand.contents()
    (verdict,) = operate(store, "cancel", job_id, reason="changed my mind")
    if state.active:
        assert verdict == Verdict(job_id, S.CANCELLED, False, None)
        stored = job(store, job_id)
        assert (stored.state, stored.finished_at, stored.due_at) == (S.CANCELLED, now, None)
        last = history(store, job_id)[-1]
        assert (last.type, last.actor, last.meta) == ("cancel", "ada", {"reason": "changed my mind"})
    else:
        assert verdict == Verdict(job_id, state, True, "already_finished")
        assert by_hand.contents() == before


@pytest.mark.req("DP-15", "DP-3")
@pytest.mark.parametrize("state", list(State))
def test_redrive_in_every_state(store: Store, by_hand: ByHand, state: State) -> None:
    job_id = bring(store, by_hand, state).id
    before = by_hand.contents()
    (verdict,) = operate(store, "redrive", job_id, reason="the bug is fixed")
    if state == S.DEAD_LETTER:
        assert verdict == Verdict(job_id, S.QUEUED, False, None)
        stored = job(store, job_id)
        assert (stored.state, stored.retries, stored.crashes, stored.finished_at) == (S.QUEUED, 0, 0, None)
        assert (stored.error_code, stored.error_message, stored.due_at) == (None, None, None)
        last = history(store, job_id)[-1]
        assert (last.type, last.actor, last.meta) == ("redrive", "ada", {"reason": "the bug is fixed"})
    else:
        assert verdict == Verdict(job_id, state, True, "not_dead")
        assert by_hand.contents() == before


@pytest.mark.req("DP-15", "DP-3")
@pytest.mark.parametrize("state", list(State))
def test_discard_in_every_state(store: Store, by_hand: ByHand, state: State) -> None:
    job_id = bring(store, by_hand, state).id
    before = by_hand.contents()
    (verdict,) = operate(store, "discard", job_id, reason="a test order")
    if state == S.DEAD_LETTER:
        assert verdict == Verdict(job_id, S.CANCELLED, False, None)
        stored = job(store, job_id)
        assert (stored.state, stored.error_code) == (S.CANCELLED, "broken")
        last = history(store, job_id)[-1]
        assert (last.type, last.actor, last.meta) == ("discard", "ada", {"reason": "a test order"})
    else:
        assert verdict == Verdict(job_id, state, True, "not_dead")
        assert by_hand.contents() == before


@pytest.mark.req("DP-15")
@pytest.mark.parametrize("reason", [None, "", "  ", "\n\t"])
def test_discard_requires_a_reason(store: Store, by_hand: ByHand, reason: str | None) -> None:
    job_id = bring(store, by_hand, S.DEAD_LETTER).id
    assert operate(store, "discard", job_id, reason=reason) == [Verdict(job_id, None, True, "reason_required")]
    assert state_of(store, job_id) == S.DEAD_LETTER


@pytest.mark.req("DP-15", "CX-9")
def test_redriven_job_has_all_its_attempts_again(store: Store) -> None:
    job_id = put_one(store)
    work(store, FINAL)
    operate(store, "redrive", job_id)
    (claimed,) = work(store)
    assert (claimed.id, claimed.attempt, claimed.retries) == (job_id, 2, 0)
    assert types_of(store, job_id) == ["enqueue", "take", "fail", "dead_letter", "redrive", "take", "succeed"]


@pytest.mark.req("DP-3")
def test_results_are_per_id_in_the_given_order(store: Store) -> None:
    first, second = put(store, spec(), spec())
    work(store)
    unknown = new_id()
    assert operate(store, "cancel", unknown, second, first, second) == [
        Verdict(unknown, None, True, "not_found"),
        Verdict(second, S.CANCELLED, False, None),
        Verdict(first, S.SUCCEEDED, True, "already_finished"),
        Verdict(second, S.CANCELLED, False, None),
    ]
    assert types_of(store, second) == ["enqueue", "cancel"]
    assert operate(store, "cancel") == []


@pytest.mark.req("JF-1", "DP-3")
@pytest.mark.parametrize("operation", ["cancel", "redrive", "discard"])
def test_job_of_another_tenant_is_not_found(store: Store, by_hand: ByHand, operation: OperatorAction) -> None:
    job_id = bring(store, by_hand, S.QUEUED if operation == "cancel" else S.DEAD_LETTER).id
    before = by_hand.contents()
    verdicts = operate(store, operation, job_id, reason="mine now", tenant="acme")
    assert verdicts == [Verdict(job_id, None, True, "not_found")]
    assert by_hand.contents() == before
    (verdict,) = operate(store, operation, job_id, reason="for every tenant", tenant="*")
    assert not verdict.refused


@pytest.mark.req("CX-11")
def test_cancel_after_a_settlement_is_refused(store: Store) -> None:
    put_one(store)
    claimed = take(store)
    settle(store, claimed)
    (verdict,) = operate(store, "cancel", claimed.id)
    assert (verdict.refused, state_of(store, claimed.id)) == (True, S.SUCCEEDED)


@pytest.mark.req("CX-11")
def test_cancelled_job_is_not_claimed(store: Store) -> None:
    first, second = put(store, spec(), spec(delay=5))
    operate(store, "cancel", first, second)
    forward(store, 60)
    assert store.run(store.leases.promote()) == 0
    assert claim(store, open_lease(store), 5) == []

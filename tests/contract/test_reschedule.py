"""Rescheduling waiting jobs and changing their limit: one result per id, recorded in the ledger (JF-5)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.engine.job import Verdict
from holdfast.engine.states import State
from holdfast.errors import InvalidInput
from holdfast.features.assembly import Store
from holdfast.stores.requests import Reschedule
from tests.support.direct_sql import ByHand
from tests.support.job_states import bring
from tests.support.ledger import check_ledger
from tests.support.stores import (
    BROKEN,
    claim,
    forward,
    history,
    job,
    new_id,
    open_lease,
    put_one,
    settle,
    take,
    tries,
    types_of,
    work,
)

pytestmark = pytest.mark.req("JF-5", "DP-3")

S = State
AT_ONCE = Reschedule()


def reschedule(
    store: Store, *ids: str, when: Reschedule = AT_ONCE, reason: str | None = None, tenant: str = "default"
) -> list[Verdict]:
    return store.run(store.jobs.reschedule(ids, when, reason, "ada", tenant))


@pytest.mark.parametrize("state", list(State))
def test_reschedule_in_every_state(store: Store, by_hand: ByHand, state: State) -> None:
    now = forward(store)
    job_id = bring(store, by_hand, state).id
    before = by_hand.contents()
    (verdict,) = reschedule(store, job_id, when=Reschedule(delay=90.0), reason="after lunch")
    if state in (S.QUEUED, S.RETRY_WAITING):
        assert verdict == Verdict(job_id, S.QUEUED, False, None)
        stored = job(store, job_id)
        assert (stored.state, stored.due_at) == (S.QUEUED, now + timedelta(seconds=90))
        last = history(store, job_id)[-1]
        assert (last.type, last.from_state, last.to_state, last.actor) == ("reschedule", state, S.QUEUED, "ada")
        due = (now + timedelta(seconds=90)).strftime("%Y-%m-%dT%H:%M:%S.")
        assert last.meta.pop("rescheduled").startswith(due)
        assert last.meta == {"by": "ada", "reason": "after lunch"}
    else:
        assert verdict == Verdict(job_id, state, True, "not_waiting")
        assert by_hand.contents() == before


@pytest.mark.parametrize("state", [S.QUEUED, S.RETRY_WAITING])
def test_reschedule_to_now_makes_a_job_claimable(store: Store, by_hand: ByHand, state: State) -> None:
    forward(store)
    if state is S.QUEUED:
        job_id = put_one(store, delay=3600.0)
    else:
        job_id = put_one(store)
        work(store, BROKEN)
    assert claim(store, open_lease(store)) == []
    reschedule(store, job_id)
    assert take(store).id == job_id
    assert history(store, job_id)[-2].meta == {"rescheduled": "now", "by": "ada"}


def test_reschedule_to_a_future_and_a_past_time(store: Store) -> None:
    now = forward(store)
    job_id = put_one(store)
    reschedule(store, job_id, when=Reschedule(at=now + timedelta(hours=1)))
    assert job(store, job_id).due_at == now + timedelta(hours=1)
    assert claim(store, open_lease(store)) == []
    forward(store, 3600.0)
    assert store.run(store.leases.promote()) == 1
    assert job(store, job_id).due_at is None
    reschedule(store, job_id, when=Reschedule(at=now))
    assert job(store, job_id).due_at is None
    check_ledger(store)


def test_reschedule_can_raise_the_attempt_limit(store: Store) -> None:
    job_id = put_one(store, retry=tries(2))
    work(store, BROKEN)
    assert reschedule(store, job_id, when=Reschedule(max_attempts=1)) == [
        Verdict(job_id, S.RETRY_WAITING, True, "limit_too_low")
    ]
    (verdict,) = reschedule(store, job_id, when=Reschedule(max_attempts=5))
    assert not verdict.refused
    assert history(store, job_id)[-1].meta["max_attempts"] == 5
    claimed = take(store)
    assert (claimed.retries, claimed.max_attempts) == (1, 5)
    settle(store, claimed, BROKEN)
    assert job(store, job_id).state is S.RETRY_WAITING
    check_ledger(store)


@pytest.mark.req("DP-15")
def test_redrive_can_raise_the_attempt_limit(store: Store) -> None:
    job_id = put_one(store, retry=tries(1))
    work(store, BROKEN)
    (verdict,) = store.run(store.jobs.operate("redrive", [job_id], "more tries", "ada", "default", 2))
    assert verdict == Verdict(job_id, S.QUEUED, False, None)
    assert history(store, job_id)[-1].meta == {"reason": "more tries", "max_attempts": 2}
    stored = job(store, job_id)
    assert (stored.retries, stored.max_attempts) == (0, 2)


@pytest.mark.parametrize("limit", [0, 102])
def test_attempt_limit_out_of_bounds_is_refused(store: Store, by_hand: ByHand, limit: int) -> None:
    job_id = put_one(store)
    before = by_hand.contents()
    with pytest.raises(InvalidInput):
        reschedule(store, job_id, when=Reschedule(max_attempts=limit))
    with pytest.raises(InvalidInput):
        store.run(store.jobs.operate("redrive", [job_id], None, "ada", "default", limit))
    assert by_hand.contents() == before


def test_results_are_per_id_and_other_tenants_are_not_found(store: Store, by_hand: ByHand) -> None:
    waiting, foreign, unknown = put_one(store), put_one(store, tenant="acme"), new_id()
    ended = bring(store, by_hand, S.SUCCEEDED).id
    verdicts = reschedule(store, ended, unknown, waiting, foreign, waiting)
    assert [(each.id, each.refused, each.reason) for each in verdicts] == [
        (ended, True, "not_waiting"),
        (unknown, True, "not_found"),
        (waiting, False, None),
        (foreign, True, "not_found"),
        (waiting, False, None),
    ]
    assert types_of(store, foreign) == ["enqueue"]
    assert types_of(store, waiting) == ["enqueue", "reschedule"]


def test_identical_reschedules_are_recorded_once(store: Store) -> None:
    forward(store)
    job_id = put_one(store)
    for when in (AT_ONCE, AT_ONCE, Reschedule(delay=5.0), AT_ONCE):
        reschedule(store, job_id, when=when)
    store.run(store.jobs.reschedule([job_id], AT_ONCE, None, "bob", "default"))
    assert [event.actor for event in history(store, job_id)] == ["tester", "ada", "ada", "ada", "bob"]


@pytest.mark.req("CX-4")
def test_reschedule_by_hand_is_recorded(store: Store, by_hand: ByHand) -> None:
    job_id = put_one(store)
    by_hand.execute('update job_state set note = \'{"rescheduled": "now"}\' where id = :id', {"id": job_id})
    assert types_of(store, job_id) == ["enqueue", "reschedule"]
    assert "without a recorded transition" in (
        by_hand.refusal("update job_state set priority = 3 where id = :id", {"id": job_id}) or ""
    )
    assert types_of(store, job_id) == ["enqueue", "reschedule"]
    check_ledger(store)

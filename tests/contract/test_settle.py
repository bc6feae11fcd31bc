"""Every way an attempt can end, and everything that must not end one."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.engine.job import Result
from holdfast.engine.outcome import Failed, Outcome, Snoozed, Succeeded
from holdfast.engine.payload import decode
from holdfast.engine.retry import Backoff, Retry
from holdfast.engine.settlement import Settlement, decide
from holdfast.engine.states import State
from holdfast.features.assembly import Store
from tests.support.direct_sql import ByHand
from tests.support.stores import (
    BROKEN,
    DONE,
    FINAL,
    LATER,
    apply,
    claim,
    forward,
    history,
    job,
    open_lease,
    put,
    put_one,
    settle,
    spec,
    state_of,
    take,
    tries,
    types_of,
    work,
)


def result(store: Store, job_id: str) -> Result | None:
    return store.run(store.jobs.result(job_id, "default"))


@pytest.mark.req("DP-21", "CX-13")
@pytest.mark.parametrize("value", ['{"a":[1,null,"ü"]}', "0", '""', "null", "[]"])
def test_success_with_a_result(store: Store, value: str) -> None:
    job_id = put_one(store)
    claimed = take(store)
    now = forward(store, 3)
    assert settle(store, claimed, Succeeded(value)) == []
    found = job(store, job_id)
    assert (found.state, found.finished_at, found.error_code) == (State.SUCCEEDED, now, None)
    kept = result(store, job_id)
    assert kept is not None
    assert (kept.value, kept.ref) == (decode(value), None)


@pytest.mark.req("DP-21")
def test_success_without_a_result(store: Store) -> None:
    job_id = put_one(store)
    settle(store, take(store))
    assert state_of(store, job_id) == State.SUCCEEDED
    assert result(store, job_id) is None


@pytest.mark.req("CX-9", "CX-13", "DP-22")
def test_a_failure_with_tries_left_waits_for_its_retry(store: Store) -> None:
    now = forward(store)
    job_id = put_one(store, retry=Retry(max_attempts=3, backoff=Backoff(base=8, jitter=True)))
    settle(store, take(store), Failed("smtp_down", "no answer", traceback="Traceback…"), jitter=0.25)
    found = job(store, job_id)
    assert (found.state, found.retries, found.attempt) == (State.RETRY_WAITING, 1, 1)
    assert (found.due_at, found.finished_at) == (now + timedelta(seconds=2), None)
    assert (found.error_code, found.error_message) == ("smtp_down", "no answer")
    failed, retry = history(store, job_id)[-2:]
    assert (failed.type, retry.type) == ("fail", "retry")
    assert failed.meta == {"error_code": "smtp_down", "error_message": "no answer", "traceback": "Traceback…"}
    assert set(retry.meta) == {"due_at"}
    assert retry.meta["due_at"].startswith(f"{now + timedelta(seconds=2):%Y-%m-%dT%H:%M:%S}.")


@pytest.mark.req("CX-9")
def test_retries_never_pass_their_limit(store: Store) -> None:
    forward(store)
    job_id = put_one(store, retry=tries(3))
    for number in range(1, 4):
        (claimed,) = work(store, BROKEN)
        assert (claimed.attempt, claimed.retries) == (number, number - 1)
        forward(store, 3600)
        store.run(store.leases.promote())
    found = job(store, job_id)
    assert (found.state, found.attempt, found.retries) == (State.DEAD_LETTER, 3, 2)
    assert found.finished_at is not None
    assert types_of(store, job_id).count("retry") == 2
    assert types_of(store, job_id)[-2:] == ["fail", "bury"]
    assert claim(store, open_lease(store)) == []


@pytest.mark.req("CX-9", "CX-13")
def test_a_settlement_that_would_pass_the_limit_is_refused_whole(store: Store, by_hand: ByHand) -> None:
    """The database holds the limit, whatever a settlement says."""
    put(store, spec(retry=tries(1)), spec())
    first, second = claim(store, open_lease(store), 2)
    before = by_hand.contents()
    overdrawn = Settlement(first.id, 1, "retry", code="x", message="y")
    with pytest.raises(Exception, match="retries_within_limit"):
        apply(store, first.lease, decide(second, DONE, 1.0), overdrawn)
    assert by_hand.contents() == before


@pytest.mark.req("CX-9", "DP-15")
def test_a_final_failure_is_buried_at_once(store: Store) -> None:
    now = forward(store)
    job_id = put_one(store)
    settle(store, take(store), FINAL)
    found = job(store, job_id)
    assert (found.state, found.retries, found.finished_at) == (State.DEAD_LETTER, 0, now)
    assert (found.error_code, found.error_message) == ("broken", "it broke for good")
    assert types_of(store, job_id) == ["enqueue", "take", "fail", "bury"]


@pytest.mark.req("CX-13")
def test_an_end_that_is_decided_rests_as_failed(store: Store) -> None:
    job_id = put_one(store)
    claimed = take(store)
    assert apply(store, claimed.lease, Settlement(job_id, 1, "fail", code="denied", message="no")) == []
    found = job(store, job_id)
    assert (found.state, found.error_code) == (State.FAILED, "denied")
    assert found.finished_at is not None
    assert types_of(store, job_id) == ["enqueue", "take", "fail"]


@pytest.mark.req("CX-9", "CX-4")
def test_a_snooze_costs_no_retry(store: Store) -> None:
    now = forward(store)
    job_id = put_one(store, retry=tries(1))
    settle(store, take(store), Snoozed(90.5, "not yet"))
    found = job(store, job_id)
    assert (found.state, found.retries, found.due_at) == (
        State.RETRY_WAITING,
        0,
        now + timedelta(seconds=90.5),
    )
    assert (found.error_code, found.finished_at) == (None, None)
    last = history(store, job_id)[-1]
    assert (last.type, last.meta["reason"]) == ("snooze", "not yet")


@pytest.mark.req("CX-9")
@pytest.mark.parametrize("delay", [-1.0, 0.0, 1e300, float("inf"), float("nan"), 1e-9])
def test_no_delay_keeps_an_attempt_from_ending(store: Store, delay: float) -> None:
    now = forward(store)
    first, second = put(store, spec(), spec())
    held = claim(store, open_lease(store), 2)
    offered = decide(held[0], Snoozed(delay), 1.0), decide(held[1], Failed("x", "y", after=delay), 1.0)
    assert apply(store, held[0].lease, *offered) == []
    for job_id in (first, second):
        found = job(store, job_id)
        assert found.state == State.RETRY_WAITING
        assert found.due_at is not None
        assert now <= found.due_at < now + timedelta(days=36_501)


@pytest.mark.req("CX-9")
def test_an_error_of_an_earlier_attempt_does_not_outlive_success(store: Store) -> None:
    job_id = put_one(store)
    work(store, BROKEN)
    forward(store, 3600)
    store.run(store.leases.promote())
    work(store, Succeeded('"done"'))
    found = job(store, job_id)
    assert (found.state, found.error_code, found.error_message) == (State.SUCCEEDED, None, None)
    assert (found.attempt, found.retries) == (2, 1)


@pytest.mark.req("CX-9", "SC-4")
def test_a_batch_settles_each_its_own_way(store: Store) -> None:
    ids = put(store, *(spec() for _ in range(6)))
    claims = claim(store, open_lease(store), 6)
    outcomes: list[Outcome] = [Succeeded("1"), BROKEN, FINAL, LATER, DONE, Succeeded("2")]
    settlements = [decide(each, outcome, 1.0) for each, outcome in zip(claims, outcomes, strict=True)]
    assert apply(store, claims[0].lease, *settlements) == []
    assert [state_of(store, job_id) for job_id in ids] == [
        State.SUCCEEDED,
        State.RETRY_WAITING,
        State.DEAD_LETTER,
        State.RETRY_WAITING,
        State.SUCCEEDED,
        State.SUCCEEDED,
    ]
    assert (result(store, ids[0]), result(store, ids[4]), result(store, ids[5])) == (
        Result(1, None),
        None,
        Result(2, None),
    )


@pytest.mark.req("DP-7")
def test_nothing_to_settle_is_no_error(store: Store) -> None:
    assert apply(store, open_lease(store)) == []

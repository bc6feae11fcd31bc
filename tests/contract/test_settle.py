"""Every outcome of an attempt, and everything that must not end one."""

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
    stored = job(store, job_id)
    assert (stored.state, stored.finished_at, stored.error_code) == (State.SUCCEEDED, now, None)
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
def test_failure_with_attempts_left_waits_for_its_retry(store: Store) -> None:
    now = forward(store)
    job_id = put_one(store, retry=Retry(max_attempts=3, backoff=Backoff(base=8, jitter=True)))
    settle(store, take(store), Failed("smtp_down", "no answer", traceback="Traceback…"), jitter=0.25)
    stored = job(store, job_id)
    assert (stored.state, stored.retries, stored.attempt) == (State.RETRY_WAITING, 1, 1)
    assert (stored.due_at, stored.finished_at) == (now + timedelta(seconds=2), None)
    assert (stored.error_code, stored.error_message) == ("smtp_down", "no answer")
    failed, retry = history(store, job_id)[-2:]
    assert (failed.type, retry.type) == ("fail", "retry")
    assert failed.meta == {"error_code": "smtp_down", "error_message": "no answer", "traceback": "Traceback…"}
    assert set(retry.meta) == {"due_at"}
    assert retry.meta["due_at"].startswith(f"{now + timedelta(seconds=2):%Y-%m-%dT%H:%M:%S}.")


@pytest.mark.req("CX-9")
def test_retries_never_exceed_their_limit(store: Store) -> None:
    forward(store)
    job_id = put_one(store, retry=tries(3))
    for number in range(1, 4):
        (claimed,) = work(store, BROKEN)
        assert (claimed.attempt, claimed.retries) == (number, number - 1)
        forward(store, 3600)
        store.run(store.leases.promote())
    stored = job(store, job_id)
    assert (stored.state, stored.attempt, stored.retries) == (State.DEAD_LETTER, 3, 2)
    assert stored.finished_at is not None
    assert types_of(store, job_id).count("retry") == 2
    assert types_of(store, job_id)[-2:] == ["fail", "dead_letter"]
    assert claim(store, open_lease(store)) == []


@pytest.mark.req("CX-9", "CX-13")
def test_settlement_over_the_limit_refuses_the_batch(store: Store, by_hand: ByHand) -> None:
    """The database enforces the limit, whatever the settlement contains."""
    put(store, spec(retry=tries(1)), spec())
    first, second = claim(store, open_lease(store), 2)
    before = by_hand.contents()
    over_limit = Settlement(first.id, 1, "retry", code="x", message="y")
    with pytest.raises(Exception, match="retries_within_limit"):
        apply(store, first.lease, decide(second, DONE, 1.0), over_limit)
    assert by_hand.contents() == before


@pytest.mark.req("CX-9", "DP-15")
def test_final_failure_becomes_a_dead_letter_at_once(store: Store) -> None:
    now = forward(store)
    job_id = put_one(store)
    settle(store, take(store), FINAL)
    stored = job(store, job_id)
    assert (stored.state, stored.retries, stored.finished_at) == (State.DEAD_LETTER, 0, now)
    assert (stored.error_code, stored.error_message) == ("broken", "it broke for good")
    assert types_of(store, job_id) == ["enqueue", "take", "fail", "dead_letter"]


@pytest.mark.req("CX-13")
def test_fail_settlement_ends_as_failed(store: Store) -> None:
    job_id = put_one(store)
    claimed = take(store)
    assert apply(store, claimed.lease, Settlement(job_id, 1, "fail", code="denied", message="no")) == []
    stored = job(store, job_id)
    assert (stored.state, stored.error_code) == (State.FAILED, "denied")
    assert stored.finished_at is not None
    assert types_of(store, job_id) == ["enqueue", "take", "fail"]


@pytest.mark.req("CX-9", "CX-4")
def test_snooze_counts_no_retry(store: Store) -> None:
    now = forward(store)
    job_id = put_one(store, retry=tries(1))
    settle(store, take(store), Snoozed(90.5, "not yet"))
    stored = job(store, job_id)
    assert (stored.state, stored.retries, stored.due_at) == (
        State.RETRY_WAITING,
        0,
        now + timedelta(seconds=90.5),
    )
    assert (stored.error_code, stored.finished_at) == (None, None)
    last = history(store, job_id)[-1]
    assert (last.type, last.meta["reason"]) == ("snooze", "not yet")


@pytest.mark.req("CX-9")
@pytest.mark.parametrize("delay", [-1.0, 0.0, 1e300, float("inf"), float("nan"), 1e-9])
def test_extreme_delays_do_not_prevent_a_settlement(store: Store, delay: float) -> None:
    now = forward(store)
    first, second = put(store, spec(), spec())
    held = claim(store, open_lease(store), 2)
    settlements = decide(held[0], Snoozed(delay), 1.0), decide(held[1], Failed("x", "y", after=delay), 1.0)
    assert apply(store, held[0].lease, *settlements) == []
    for job_id in (first, second):
        stored = job(store, job_id)
        assert stored.state == State.RETRY_WAITING
        assert stored.due_at is not None
        assert now <= stored.due_at < now + timedelta(days=36_501)


@pytest.mark.req("CX-9")
def test_success_clears_the_error_of_an_earlier_attempt(store: Store) -> None:
    job_id = put_one(store)
    work(store, BROKEN)
    forward(store, 3600)
    store.run(store.leases.promote())
    work(store, Succeeded('"done"'))
    stored = job(store, job_id)
    assert (stored.state, stored.error_code, stored.error_message) == (State.SUCCEEDED, None, None)
    assert (stored.attempt, stored.retries) == (2, 1)


@pytest.mark.req("CX-9", "SC-4")
def test_batch_settles_each_job_by_its_outcome(store: Store) -> None:
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
def test_empty_batch_of_settlements_is_accepted(store: Store) -> None:
    assert apply(store, open_lease(store)) == []

"""Attempts whose process died while their worker lives are counted and reported as crashes (CX-10)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.engine.job import Artifact, Attempt
from holdfast.engine.outcome import Crashed, Failed, Outcome, Succeeded
from holdfast.engine.retry import Retry, fixed
from holdfast.engine.settlement import decide
from holdfast.engine.states import State
from holdfast.features.assembly import Store
from tests.support.stores import (
    BROKEN,
    DONE,
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
)

DIED = Crashed("process_died", "killed by signal 11 (SIGSEGV)", {"signal": 11})


def attempts(store: Store, job_id: str) -> list[Attempt]:
    return store.run(store.jobs.attempts(job_id, "default"))


@pytest.mark.req("CX-10", "CX-4", "SC-5")
def test_crash_is_counted_apart_from_retries_and_retried(store: Store) -> None:
    now = forward(store)
    job_id = put_one(store, retry=Retry(max_attempts=1, backoff=fixed(7.0)))
    assert settle(store, take(store), DIED) == []
    stored = job(store, job_id)
    assert (stored.state, stored.crashes, stored.retries) == (State.RETRY_WAITING, 1, 0)
    assert stored.due_at == now + timedelta(seconds=7)
    assert types_of(store, job_id) == ["enqueue", "take", "crash", "retry"]
    died = history(store, job_id)[2]
    assert (died.actor, died.meta["error_code"], died.meta["signal"]) == ("worker-1", "process_died", 11)
    (attempt,) = attempts(store, job_id)
    assert (attempt.outcome, attempt.error_code) == ("crashed", "process_died")


@pytest.mark.req("CX-10")
def test_crash_limit_makes_a_dead_letter(store: Store) -> None:
    job_id = put_one(store, retry=tries(5, crashes=1))
    for _ in range(2):
        forward(store, 3600)
        store.run(store.leases.promote())
        settle(store, take(store), DIED)
    stored = job(store, job_id)
    assert (stored.state, stored.crashes, stored.retries) == (State.DEAD_LETTER, 2, 0)
    assert stored.finished_at is not None
    assert stored.error_code == "process_died"
    assert types_of(store, job_id)[-2:] == ["crash", "dead_letter"]


@pytest.mark.req("CX-10")
def test_crash_limit_of_zero_allows_no_crash(store: Store) -> None:
    job_id = put_one(store, retry=tries(5, crashes=0))
    settle(store, take(store), DIED)
    assert state_of(store, job_id) == State.DEAD_LETTER


@pytest.mark.req("CX-10", "CX-4")
def test_handler_error_named_process_died_is_a_failure(store: Store) -> None:
    job_id = put_one(store)
    settle(store, take(store), Failed("process_died", "not true"))
    stored = job(store, job_id)
    assert (stored.crashes, stored.retries) == (0, 1)
    assert types_of(store, job_id) == ["enqueue", "take", "fail", "retry"]


@pytest.mark.req("CX-10", "DP-7")
def test_stale_crash_changes_nothing(store: Store) -> None:
    job_id = put_one(store)
    claimed = take(store)
    assert settle(store, claimed, DONE) == []
    assert settle(store, claimed, DIED) == [job_id]
    stored = job(store, job_id)
    assert (stored.state, stored.crashes) == (State.SUCCEEDED, 0)


@pytest.mark.req("CX-10", "SC-4")
def test_crashes_and_other_outcomes_in_one_batch(store: Store) -> None:
    ids = put(store, *(spec(retry=tries(5, crashes=limit)) for limit in (0, 3, 3, 3, 3)))
    claims = claim(store, open_lease(store), 5)
    outcomes: list[Outcome] = [DIED, DIED, BROKEN, Succeeded("1"), Succeeded("2", {"exit_code": 0})]
    settlements = [decide(each, outcome, 1.0) for each, outcome in zip(claims, outcomes, strict=True)]
    assert apply(store, claims[0].lease, *settlements) == []
    assert [state_of(store, job_id) for job_id in ids] == [
        State.DEAD_LETTER,
        State.RETRY_WAITING,
        State.RETRY_WAITING,
        State.SUCCEEDED,
        State.SUCCEEDED,
    ]
    results = [store.run(store.jobs.result(job_id, "default")) for job_id in ids[3:]]
    assert [kept and kept.value for kept in results] == [1, 2]


@pytest.mark.req("SC-5", "SC-14")
@pytest.mark.parametrize(
    "outcome", [Succeeded("1"), Succeeded(), Failed("exit_code", "no"), Crashed("process_died", "x")]
)
def test_attempt_has_the_exit_code_and_log_of_its_outcome(store: Store, outcome: Outcome) -> None:
    job_id = put_one(store)
    noted = type(outcome)(
        **{field: getattr(outcome, field) for field in outcome.__slots__}
        | {"note": {"exit_code": 3, "log": "file:///x"}}
    )
    settle(store, take(store), noted)
    (attempt,) = attempts(store, job_id)
    assert (attempt.exit_code, attempt.log) == (3, "file:///x")


@pytest.mark.req("SC-5", "SC-14")
def test_artifact_keeps_its_metadata(store: Store) -> None:
    now = forward(store)
    job_id = put_one(store)
    held = take(store)
    about = {"size": 3, "sha256": "ab"}
    flow = store.steps.add_artifact(job_id, held.lease, 1, "a/b.txt", "file:///x", "*", about)
    assert store.run(flow)
    assert store.run(store.jobs.artifacts(job_id, "default")) == [
        Artifact(job_id, 1, "a/b.txt", "file:///x", about, now)
    ]

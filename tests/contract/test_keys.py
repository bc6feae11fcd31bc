"""Deduplication: by the caller's idempotency key (permanent) and by content (while an equal job is active)."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from holdfast.engine.job import Dedupe, Enqueued
from holdfast.engine.names import content_hash
from holdfast.engine.outcome import Outcome
from holdfast.engine.states import State
from holdfast.features.assembly import Store
from tests.support.concurrency import together
from tests.support.stores import (
    BROKEN,
    DONE,
    FINAL,
    claim,
    enqueue,
    forward,
    job,
    new_id,
    open_lease,
    put,
    put_one,
    spec,
    state_of,
    take,
    work,
)

CONTENT = content_hash("mail.send", "default", {"to": "a"})
ENDINGS: dict[State, Outcome] = {
    State.SUCCEEDED: DONE,
    State.RETRY_WAITING: BROKEN,
    State.DEAD_LETTER: FINAL,
}


def enqueue_equal(store: Store, dedupe: Dedupe = "skip", **fields: Any) -> Enqueued:
    """Enqueue one more job of the same content."""
    (answer,) = enqueue(store, spec(content_key=CONTENT, dedupe=dedupe, **fields))
    return answer


def first_in(store: Store, state: State) -> str:
    """A job with that content, in that state."""
    job_id = put_one(store, content_key=CONTENT, dedupe="skip")
    if state == State.LEASED:
        claim(store, open_lease(store), begin=False)
    elif state == State.IN_PROGRESS:
        take(store)
    elif state == State.CANCELLED:
        store.run(store.jobs.operate("cancel", [job_id], None, "ada", "default"))
    elif state in ENDINGS:
        work(store, ENDINGS[state])
    assert state_of(store, job_id) == state
    return job_id


def count(store: Store) -> int:
    return sum(store.run(store.jobs.counts("default")).values())


@pytest.mark.req("DP-5")
def test_same_key_returns_the_first_job(store: Store) -> None:
    first = put_one(store, key="r-7", payload={"a": 1, "b": [2]})
    again = spec(key="r-7", payload={"b": [2], "a": 1})
    assert enqueue(store, again) == [Enqueued(first, False, "duplicate_key", State.QUEUED)]
    work(store)
    assert enqueue(store, again) == [Enqueued(first, False, "duplicate_key", State.SUCCEEDED)]
    assert count(store) == 1


@pytest.mark.req("DP-5", "CX-15")
def test_same_job_can_be_sent_again_after_a_lost_response(store: Store) -> None:
    """A client that lost the response to its COMMIT sends the same job again, with the same id."""
    job_spec = spec(key="r-7")
    put(store, job_spec)
    assert enqueue(store, job_spec, job_spec) == [Enqueued(job_spec.id, False, "duplicate_key", State.QUEUED)] * 2
    fresh = spec(key="r-8")
    assert [answer.created for answer in enqueue(store, fresh, fresh)] == [True, False]
    assert count(store) == 2


@pytest.mark.req("DP-5")
def test_same_key_with_another_payload_is_a_conflict(store: Store) -> None:
    first = put_one(store, key="r-7", payload={"a": 1})
    for other in ({"a": 2}, {"a": 1.0}, {"a": 1, "b": None}, {}):
        (answer,) = enqueue(store, spec(key="r-7", payload=other))
        assert answer == Enqueued(first, False, "idempotency_conflict", State.QUEUED)
    assert job(store, first).payload == {"a": 1}
    assert count(store) == 1


@pytest.mark.req("DP-5", "JF-1")
def test_keys_are_per_kind_and_tenant(store: Store) -> None:
    put(store, spec(key="r-7"), spec("mail.other", key="r-7"))
    put(store, spec(key="r-7"), tenant="acme")
    assert count(store) == 2


@pytest.mark.req("DP-5")
def test_same_key_twice_in_one_batch(store: Store) -> None:
    one, two, three = spec(key="k", payload=[1]), spec(key="k", payload=[1]), spec(key="k", payload=[2])
    answers = enqueue(store, one, spec(), two, three)
    assert [answer.created for answer in answers] == [True, True, False, False]
    assert [answer.id for answer in answers if not answer.created] == [one.id, one.id]
    assert [answer.reason for answer in answers][2:] == ["duplicate_key", "idempotency_conflict"]
    assert count(store) == 2


@pytest.mark.slow
@pytest.mark.req("DP-5")
def test_many_threads_with_the_same_key_make_one_job(store: Store) -> None:
    calls = [partial(enqueue, store, spec(key="r-7", payload={"a": 1}), spec(payload={"n": n})) for n in range(12)]
    answers = [batch[0] for batch in together(*calls)]
    assert sum(answer.created for answer in answers) == 1
    assert len({answer.id for answer in answers}) == 1
    assert {answer.reason for answer in answers if not answer.created} == {"duplicate_key"}
    assert count(store) == 13


@pytest.mark.req("DP-5")
def test_batches_that_share_keys_in_opposite_orders_do_not_lose_a_job(store: Store) -> None:
    keys = [f"k-{n}" for n in range(30)]
    calls = [partial(enqueue, store, *(spec(key=key) for key in (keys if n % 2 else reversed(keys)))) for n in range(6)]
    answers = [answer for batch in together(*calls) for answer in batch]
    assert sum(answer.created for answer in answers) == len(keys) == count(store)


@pytest.mark.req("HK-2")
@pytest.mark.parametrize("state", [*ENDINGS, State.QUEUED, State.LEASED, State.IN_PROGRESS, State.CANCELLED])
def test_dedupe_skips_while_an_equal_job_is_active(store: Store, state: State) -> None:
    first = first_in(store, state)
    answer = enqueue_equal(store)
    if state.active:
        assert answer == Enqueued(first, False, "duplicate_content", state)
    else:
        assert answer.created
        assert answer.id != first
        assert enqueue_equal(store).id == answer.id  # the new job is the duplicate's target from now on
    assert count(store) == 1 + answer.created


@pytest.mark.req("HK-2")
@pytest.mark.parametrize("state", [*ENDINGS, State.QUEUED, State.LEASED, State.IN_PROGRESS, State.CANCELLED])
def test_coalesce_joins_only_a_job_that_has_not_started(store: Store, state: State) -> None:
    first = first_in(store, state)
    answer = enqueue_equal(store, "coalesce")
    assert answer.created is (state != State.QUEUED)
    if not answer.created:
        assert answer == Enqueued(first, False, "duplicate_content", State.QUEUED)
    assert not enqueue_equal(store, "coalesce").created


@pytest.mark.req("HK-2")
def test_coalesce_does_not_join_a_retry(store: Store) -> None:
    """A job that has started once may have read its input already."""
    first = first_in(store, State.RETRY_WAITING)
    forward(store, 3600)
    assert store.run(store.leases.promote()) == 1
    assert state_of(store, first) == State.QUEUED
    assert enqueue_equal(store, "coalesce").created


@pytest.mark.req("HK-2")
@pytest.mark.parametrize("dedupe", ["skip", "coalesce"])
def test_equal_content_in_one_batch_is_one_job(store: Store, dedupe: Dedupe) -> None:
    specs = [spec(content_key=CONTENT, dedupe=dedupe) for _ in range(4)]
    answers = enqueue(store, spec(), *specs, spec())
    assert [answer.created for answer in answers] == [True, True, False, False, False, True]
    assert {answer.id for answer in answers[1:5]} == {specs[0].id}
    assert count(store) == 3


@pytest.mark.req("HK-2")
@pytest.mark.parametrize("dedupe", ["skip", "coalesce"])
def test_many_threads_with_equal_content_make_one_job(store: Store, dedupe: Dedupe) -> None:
    finished = first_in(store, State.SUCCEEDED)
    answers = together(*(partial(enqueue_equal, store, dedupe) for _ in range(12)))
    assert sum(answer.created for answer in answers) == 1
    assert len({answer.id for answer in answers}) == 1
    assert finished not in {answer.id for answer in answers}
    assert count(store) == 2


@pytest.mark.req("HK-2", "JF-1")
def test_equal_content_of_another_tenant_is_no_duplicate(store: Store) -> None:
    first_in(store, State.QUEUED)
    put(store, spec(content_key=CONTENT, dedupe="skip"), tenant="acme")


@pytest.mark.req("HK-2", "DP-5")
def test_key_of_a_skipped_job_refers_to_the_existing_one(store: Store) -> None:
    first = first_in(store, State.QUEUED)
    assert enqueue_equal(store, key="r-7") == Enqueued(first, False, "duplicate_content", State.QUEUED)
    work(store)
    assert enqueue_equal(store, key="r-7") == Enqueued(first, False, "duplicate_key", State.SUCCEEDED)
    assert count(store) == 1


@pytest.mark.req("DP-5", "DP-10", "HK-2")
@pytest.mark.parametrize("fields", [{"key": "k"}, {"content_key": CONTENT, "dedupe": "skip"}])
def test_refused_job_leaves_its_key_free(store: Store, fields: dict[str, Any]) -> None:
    """The parent does not exist: nothing is stored, so the key must stay free."""
    orphan, first = spec(parent_id=new_id(), **fields), spec(**fields)
    answers = enqueue(store, orphan, first)
    assert [answer.reason for answer in answers] == ["parent_not_found", None]
    assert [answer.created for answer in answers] == [False, True]
    other = {name: f"{value}-2" if name != "dedupe" else value for name, value in fields.items()}
    assert enqueue(store, spec(parent_id=new_id(), **other))[0].reason == "parent_not_found"
    second = spec(**other)
    assert enqueue(store, second) == [Enqueued(second.id, True)]
    assert count(store) == 2

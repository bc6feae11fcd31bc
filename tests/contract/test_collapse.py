"""Calls with one key that become one job: supersede, debounce, throttle."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from holdfast.engine.collapse import Collapse, collapse_key
from holdfast.engine.job import Enqueued
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
    history,
    job,
    open_lease,
    put_one,
    spec,
    state_of,
    take,
    work,
)

REPLACE = Collapse("replace")
KEY = collapse_key("mail.send", "default", "k")
ENDINGS: dict[State, Outcome] = {State.SUCCEEDED: DONE, State.RETRY_WAITING: BROKEN, State.DEAD_LETTER: FINAL}


def call(how: Collapse = REPLACE, key: str = "k", **fields: Any) -> Any:
    return spec(key=key, content_key=collapse_key("mail.send", "default", key), collapse=how, **fields)


def enqueue_one(store: Store, how: Collapse = REPLACE, **fields: Any) -> Enqueued:
    (result,) = enqueue(store, call(how, **fields))
    return result


def first_in(store: Store, state: State) -> str:
    job_id = put_one(store, key="k", content_key=KEY, collapse=REPLACE)
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


def waiting(store: Store) -> int:
    counts = store.run(store.jobs.counts("default"))
    return counts.get(State.QUEUED, 0)


@pytest.mark.req("HF-12")
@pytest.mark.parametrize("state", [State.QUEUED, State.IN_PROGRESS, State.LEASED, State.CANCELLED, *ENDINGS])
def test_newer_job_supersedes_a_waiting_one(store: Store, state: State) -> None:
    first = first_in(store, state)
    second = enqueue_one(store, payload={"n": 2})
    assert second.created
    assert second.id is not None
    superseded = state in (State.QUEUED, State.RETRY_WAITING)
    assert state_of(store, first) == (State.CANCELLED if superseded else state)
    last = history(store, first)[-1]
    if superseded:
        assert (last.type, last.meta) == ("cancel", {"reason": "superseded", "superseded_by": second.id})
        assert last.actor == "tester"
    assert job(store, second.id).idempotency_key == "k"
    assert enqueue(store, spec(key="k", payload={"n": 2})) == [
        Enqueued(second.id, False, "duplicate_key", State.QUEUED)
    ]


@pytest.mark.req("HF-12")
def test_calls_of_one_batch_become_one_job(store: Store) -> None:
    first = enqueue_one(store).id
    calls = [call(payload={"n": n}) for n in range(4)]
    other = call(key="other")
    results = enqueue(store, calls[0], calls[1], other, calls[2], spec(), calls[3])
    last = calls[3].id
    assert [result.created for result in results] == [False, False, True, False, True, True]
    assert {(r.id, r.reason) for n, r in enumerate(results) if n in (0, 1, 3)} == {(last, "superseded")}
    assert history(store, first or "")[-1].meta["superseded_by"] == last
    assert waiting(store) == 3


@pytest.mark.req("HF-12")
def test_many_threads_leave_one_waiting_job(store: Store) -> None:
    calls = [
        partial(enqueue, store, *(call(key=key) for key in (("a", "b") if n % 2 else ("b", "a")))) for n in range(8)
    ]
    assert all(result.created for batch in together(*calls) for result in batch)
    assert waiting(store) == 2


@pytest.mark.req("HF-12")
def test_debounce_starts_after_a_pause_with_the_last_arguments(store: Store) -> None:
    how = Collapse("debounce", 5.0, longest=12.0)
    ids = []
    for n in range(3):
        result = enqueue_one(store, how, payload={"n": n})
        assert result.created
        ids.append(result.id or "")
        forward(store, 4)
        store.run(store.leases.promote())
    assert [state_of(store, each) for each in ids] == [State.CANCELLED, State.CANCELLED, State.QUEUED]
    lease = open_lease(store)  # the longest wait is over, 4 seconds after the last call
    assert [(claimed.id, claimed.payload) for claimed in claim(store, lease)] == [(ids[2], '{"n":2}')]
    again = enqueue_one(store, how)  # a new burst
    assert again.created
    assert claim(store, lease) == []


@pytest.mark.req("HF-12")
def test_debounce_can_keep_the_first_arguments(store: Store) -> None:
    how = Collapse("debounce", 5.0, first=True)
    first = enqueue_one(store, how, payload={"n": 1})
    forward(store, 4)
    assert enqueue_one(store, how, payload={"n": 2}) == Enqueued(first.id, False, "debounced", State.QUEUED)
    forward(store, 2)
    store.run(store.leases.promote())
    lease = open_lease(store)
    assert claim(store, lease) == []
    assert history(store, first.id or "")[-1].type == "reschedule"
    forward(store, 4)
    store.run(store.leases.promote())
    assert [(claimed.id, claimed.payload) for claimed in claim(store, lease)] == [(first.id, '{"n":1}')]


@pytest.mark.req("HF-12")
def test_throttle_accepts_one_job_per_period(store: Store) -> None:
    how = Collapse("throttle", 60.0)
    first = enqueue_one(store, how)
    work(store)
    assert enqueue_one(store, how) == Enqueued(first.id, False, "throttled", State.SUCCEEDED)
    assert enqueue_one(store, how, key="other").created
    forward(store, 61)
    results = enqueue(store, call(how), call(how))
    assert [result.created for result in results] == [True, False]
    assert results[1].id == results[0].id != first.id

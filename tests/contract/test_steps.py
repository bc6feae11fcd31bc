"""Finished steps: written once under the fence, stored verbatim, and deleted only by a rewind."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from datetime import timedelta

import pytest

from holdfast.engine.job import Claim
from holdfast.engine.states import State
from holdfast.engine.steps import Saved, StepEntry
from holdfast.errors import HoldfastError, StaleLease
from holdfast.features.assembly import Store
from tests.support.direct_sql import ByHand
from tests.support.steps import approval, approve, asks, entry, running, save, send, sleeps, steps, waits
from tests.support.stores import (
    FINAL,
    apply,
    claim,
    forward,
    history,
    new_id,
    open_lease,
    put,
    put_one,
    settle,
    spec,
    state_of,
    take,
    types_of,
)

pytestmark = pytest.mark.req("HF-6", "CX-8")


def test_finished_step_is_stored(store: Store) -> None:
    now = forward(store)
    job_id, held = running(store)
    assert steps(store, job_id) == []
    assert save(store, held, entry(1, '{"paid":12}', tries=3, took=1.5), entry(2, None, name="mail")) == []
    first, second = steps(store, job_id)
    assert (first.n, first.name, first.kind, first.value, first.error) == (1, "charge", "step", {"paid": 12}, None)
    assert (first.tries, first.attempt, first.wake_at) == (3, 1, None)
    assert (first.started_at, first.ended_at, first.now) == (now - timedelta(seconds=1.5), now, now)
    assert first.over
    assert not first.is_late
    assert (second.n, second.name, second.value, second.started_at) == (2, "mail", None, now)


def test_caught_failure_of_a_step_keeps_its_error(store: Store) -> None:
    job_id, held = running(store)
    error = {"type": "builtins.ValueError", "message": "no → 'good'"}
    assert save(store, held, entry(1, None, error=error)) == []
    (step,) = steps(store, job_id)
    assert (step.over, step.value, step.error) == (True, None, error)


def test_steps_are_listed_in_handler_order(store: Store) -> None:
    """Concurrent steps may finish in any order."""
    job_id, held = running(store)
    for n in (3, 1, 12, 2):
        save(store, held, entry(n))
    assert [step.n for step in steps(store, job_id)] == [1, 2, 3, 12]


LETTERS = ["1e23", "0.10", "-0.0", '{"b": 1, "a": [1.50, 1E+2, "\\u00e9 é"]}', "[ ]", "12345678901234567890123"]
MEANINGS = [*LETTERS, '"\\u00e9 → \\" \\\\"', "null", "true"]


def test_step_value_is_stored_verbatim(store: Store, by_hand: ByHand) -> None:
    """The database must not parse it: 1e23 as a number would come back changed."""
    job_id, held = running(store)
    save(store, held, *(entry(n, text) for n, text in enumerate(MEANINGS)))
    assert [step.value for step in steps(store, job_id)] == [json.loads(text) for text in MEANINGS]
    cast = "value" if by_hand.name == "sqlite" else "value::text"
    rows = by_hand.execute(f"select {cast} from step where job_id = :id order by n", {"id": job_id})
    assert [row[0] for row in rows[: len(LETTERS)]] == LETTERS


def test_second_write_returns_the_stored_value(store: Store) -> None:
    """The response to the first write may have been lost."""
    job_id, held = running(store)
    assert save(store, held, entry(1, '{"a":1}')) == []
    assert save(store, held, entry(1, '{"a":2}'), entry(2)) == [Saved(job_id, 1, "kept", {"a": 1})]
    assert [step.value for step in steps(store, job_id)] == [{"a": 1}, 1]


def test_same_step_twice_in_one_batch_is_stored_once(store: Store) -> None:
    job_id, held = running(store)
    answers = save(store, held, entry(1, '"x"'), entry(1, '"x"'))
    assert answers in ([], [Saved(job_id, 1, "kept", "x")])
    assert [step.value for step in steps(store, job_id)] == ["x"]


def test_stored_step_may_have_no_value(store: Store) -> None:
    job_id, held = running(store)
    save(store, held, entry(1, None))
    assert save(store, held, entry(1, '"late"')) == [Saved(job_id, 1, "kept", None)]


@pytest.mark.req("CX-4")
def test_saving_steps_does_not_touch_the_state_row_or_the_ledger(store: Store, by_hand: ByHand) -> None:
    job_id, held = running(store)
    version = "0" if by_hand.name == "sqlite" else "xmin || ' ' || ctid"

    def seen() -> list[object]:
        rows = by_hand.execute(f"select {version} from job_state where id = :id", {"id": job_id})
        return [rows, {table: by_hand.contents()[table] for table in ("job", "job_state", "event", "lease")}]

    before = seen()
    save(store, held, entry(1), entry(2))
    assert seen() == before
    assert types_of(store, job_id) == ["enqueue", "take"]


# -- the fence (DP-7) -----------------------------------------------------------------------------------------------


def _cancelled(store: Store, held: Claim) -> None:
    store.run(store.jobs.operate("cancel", [held.id], None, "ada", "default"))


def _taken_over(store: Store, held: Claim) -> None:
    forward(store, 60)
    store.run(store.leases.recover())
    store.run(store.leases.promote())
    assert take(store, queues=[held.queue]).id == held.id


def _swept(store: Store, held: Claim) -> None:
    store.run(store.leases.end(held.lease, "closed", "*"))
    assert store.run(store.leases.recover()).crashed == 1


CHANGES: dict[str, Callable[[Store, Claim], object]] = {
    "cancelled": _cancelled,
    "settled": settle,
    "suspended to wait": lambda store, held: apply(store, held.lease, sleeps(held, 60.0, n=9)),
    "its lease ended and swept": _swept,
    "taken over": _taken_over,
}
WRONG: dict[str, Callable[[Store, Claim], Claim]] = {
    "an older attempt": lambda store, held: dataclasses.replace(held, attempt=0),
    "a newer attempt": lambda store, held: dataclasses.replace(held, attempt=2),
    "another's lease": lambda store, held: dataclasses.replace(held, lease=open_lease(store)),
    "no such job": lambda store, held: dataclasses.replace(held, id=new_id()),
    "leased, not started": lambda store, held: _only_held(store),
}


def _only_held(store: Store) -> Claim:
    put_one(store)
    (held,) = claim(store, open_lease(store), begin=False)
    return held


@pytest.mark.slow
@pytest.mark.req("DP-7", "DP-3")
def test_stale_holder_cannot_save_steps(store: Store, by_hand: ByHand) -> None:
    def refused(held: Claim, how: str) -> None:
        before = by_hand.contents()
        answers = sorted(save(store, held, entry(1), entry(2)), key=lambda answer: answer.n)
        assert answers == [Saved(held.id, n, "stale") for n in (1, 2)], how
        assert by_hand.contents() == before, how

    for how, wrong in WRONG.items():
        refused(wrong(store, running(store)[1]), how)
    for how, happens in CHANGES.items():
        _, held = running(store)
        happens(store, held)
        refused(held, how)


@pytest.mark.req("DP-7")
def test_ended_lease_can_save_steps_until_it_is_reaped(store: Store) -> None:
    """As for settlements: the row counts, and no other worker has the job yet."""
    job_id, held = running(store)
    store.run(store.leases.end(held.lease, "closed", "*"))
    assert save(store, held, entry(1)) == []
    assert len(steps(store, job_id)) == 1


@pytest.mark.req("DP-7", "JF-1")
def test_lease_of_another_tenant_cannot_save_steps(store: Store) -> None:
    put_one(store, tenant="acme")
    held = take(store, tenant="acme")
    for wrong, tenant in ((new_id(), "acme"), (held.lease, "umbrella"), (held.lease, "*")):
        with pytest.raises(StaleLease):
            save(store, dataclasses.replace(held, lease=wrong), entry(1), tenant=tenant)
    assert steps(store, held.id) == []
    assert save(store, held, entry(1), tenant="acme") == []
    assert [step.n for step in steps(store, held.id, tenant="acme")] == [1]
    assert steps(store, held.id, tenant="umbrella") == []


@pytest.mark.req("DP-7")
def test_batch_of_many_jobs_is_checked_per_job(store: Store) -> None:
    put(store, *(spec() for _ in range(60)), tenant="acme")
    put(store, *(spec() for _ in range(60)), tenant="umbrella")
    lease = open_lease(store)
    held = claim(store, lease, 120)
    gone = {each.id for each in held[::7]}
    store.run(store.jobs.operate("cancel", sorted(gone), None, "ada", "*"))
    for each in held[::3]:
        save(store, each, entry(2, '"before"'))
    offered = [(each.id, each.attempt, entry(n, f'"{each.id}"')) for each in reversed(held) for n in (2, 1)]
    answers = store.run(store.steps.save(lease, offered, "*"))
    kept = {each.id for each in held[::3]} - gone
    assert {(answer.job_id, answer.n) for answer in answers if answer.fate == "stale"} == {
        (job_id, n) for job_id in gone for n in (1, 2)
    }
    assert {(answer.job_id, answer.n) for answer in answers if answer.fate == "kept"} == {(each, 2) for each in kept}
    assert {answer.value for answer in answers if answer.fate == "kept"} == {"before"}
    for each in held:
        result = [step.value for step in steps(store, each.id, tenant=each.tenant)]
        assert result == ([] if each.id in gone else [each.id, "before" if each.id in kept else each.id])


def test_empty_batch_of_steps_is_accepted(store: Store) -> None:
    _, held = running(store)
    assert save(store, held) == []


@pytest.mark.req("SC-19")
def test_batch_with_an_invalid_step_writes_nothing(store: Store) -> None:
    """The caller then writes the others one by one."""
    job_id, held = running(store)
    for bad in (entry(-1), entry(2, kind="nonsense"), entry(2, tries=0)):
        with pytest.raises(HoldfastError) as caught:
            save(store, held, entry(1), bad)
        assert caught.value.code == "broken_invariant"
    assert steps(store, job_id) == []


# -- unfinished steps, and steps finished from outside -----------------------------------------------------------------


def test_wait_is_finished_by_a_second_write(store: Store) -> None:
    now = forward(store)
    job_id, held = running(store)
    apply(store, held.lease, waits(held, timeout=60.0))
    (open_,) = steps(store, job_id)
    assert (open_.over, open_.is_late, open_.wake_at) == (False, False, now + timedelta(seconds=60))
    forward(store, 60)
    assert steps(store, job_id)[0].is_late
    store.run(store.leases.promote())
    again = take(store, queues=[held.queue])
    late = {"type": "timeout", "message": "it did not come"}
    assert save(store, again, StepEntry(1, "paid", "event", None, late)) == []
    (step,) = steps(store, job_id)
    assert (step.over, step.error, step.attempt, step.started_at) == (True, late, 2, now)


def test_event_at_the_last_moment_wins_over_the_timeout(store: Store) -> None:
    """The handler read its steps before: the response contains the event it missed."""
    forward(store)
    job_id, held = running(store)
    apply(store, held.lease, waits(held, timeout=60.0))
    forward(store, 60)
    store.run(store.leases.promote())
    again = take(store, queues=[held.queue])
    sent = send(store, data={"order": 7})
    assert sent.woke == 0
    (answer,) = save(store, again, StepEntry(1, "paid", "event", None, {"type": "timeout", "message": "late"}))
    assert (answer.job_id, answer.n, answer.fate) == (job_id, 1, "kept")
    assert (answer.value["id"], answer.value["data"]) == (sent.id, {"order": 7})
    assert steps(store, job_id)[0].error is None


@pytest.mark.req("CX-15")
def test_steps_survive_crashes_and_retries(store: Store) -> None:
    forward(store)
    job_id, held = running(store)
    save(store, held, entry(1, '"by the first"'))
    forward(store, 60)
    store.run(store.leases.recover())
    store.run(store.leases.promote())
    again = take(store, queues=[held.queue])
    save(store, again, entry(2, '"by the second"'))
    assert [(step.value, step.attempt) for step in steps(store, job_id)] == [
        ("by the first", 1),
        ("by the second", 2),
    ]


# -- rewind ------------------------------------------------------------------------------------------------------------


def rewind(store: Store, job_id: str, to: int, *, tenant: str = "default") -> int | None:
    return store.run(store.steps.rewind(job_id, to, "ada", tenant))


@pytest.mark.req("DP-15")
def test_rewind_deletes_the_last_steps_of_a_dead_letter(store: Store) -> None:
    cases: dict[int, list[int]] = {0: [], 1: [], 2: [1], 3: [1, 2], 9: [1, 2, 3]}
    for to, left in cases.items():
        job_id, held = running(store)
        save(store, held, *(entry(n) for n in (1, 2, 3)))
        settle(store, held, FINAL)
        assert rewind(store, job_id, to) == 3 - len(left)
        assert [step.n for step in steps(store, job_id)] == left
        store.run(store.jobs.operate("redrive", [job_id], None, "ada", "default"))
        again = take(store, queues=[held.queue])
        assert save(store, again, entry(3, '"again"')) == ([Saved(job_id, 3, "kept", 1)] if 3 in left else [])


@pytest.mark.req("DP-15", "JF-1")
def test_rewind_requires_a_dead_letter_of_the_tenant(store: Store, by_hand: ByHand) -> None:
    job_id, held = running(store)
    save(store, held, entry(1))
    before = by_hand.contents()
    assert rewind(store, job_id, 1) is None
    assert rewind(store, new_id(), 1) is None
    assert by_hand.contents() == before
    settle(store, held, FINAL)
    assert rewind(store, job_id, 1, tenant="umbrella") is None
    assert len(steps(store, job_id)) == 1
    assert rewind(store, job_id, 1, tenant="*") == 1


def test_rewound_wait_receives_its_event_again(store: Store) -> None:
    job_id, held = running(store)
    apply(store, held.lease, waits(held))
    sent = send(store)
    assert sent.woke == 1
    again = take(store, queues=[held.queue])
    settle(store, again, FINAL)
    assert rewind(store, job_id, 1) == 1
    store.run(store.jobs.operate("redrive", [job_id], None, "ada", "default"))
    third = take(store, queues=[held.queue])
    apply(store, third.lease, waits(third))
    assert state_of(store, job_id) is State.QUEUED
    assert steps(store, job_id)[0].value["id"] == sent.id


@pytest.mark.req("CX-7")
def test_rewound_approval_is_requested_again(store: Store) -> None:
    job_id, held = running(store)
    first, second = new_id(), new_id()
    apply(store, held.lease, asks(held, first))
    approve(store, first)
    settle(store, take(store, queues=[held.queue]), FINAL)
    assert rewind(store, job_id, 1) == 1
    store.run(store.jobs.operate("redrive", [job_id], None, "ada", "default"))
    third = take(store, queues=[held.queue])
    apply(store, third.lease, asks(third, second))
    assert (approval(store, first).state, approval(store, second).state) == ("approved", "open")
    assert approve(store, first).reason == "already_decided"
    approve(store, second)
    assert steps(store, job_id)[0].value["approval_id"] == second
    assert [event.type for event in history(store, job_id)].count("approve") == 2

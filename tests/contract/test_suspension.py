"""Attempts that end in order to wait: for a time, an event, a retry of a step, an approval.

The wait is written together with the end of the attempt.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.engine.job import EVERY_TENANT, Claim
from holdfast.engine.outcome import Failed, Succeeded
from holdfast.engine.settlement import LONGEST_DELAY, Settlement, decide
from holdfast.engine.states import State
from holdfast.engine.steps import Pause, StepEntry
from holdfast.errors import Refused
from holdfast.features.assembly import Store
from holdfast.stores.requests import ClaimRequest, Reschedule
from tests.support.direct_sql import ByHand
from tests.support.steps import (
    approval,
    approvals,
    approve,
    asks,
    entry,
    paused,
    running,
    save,
    send,
    sleeps,
    steps,
    waits,
)
from tests.support.stores import (
    apply,
    claim,
    forward,
    history,
    job,
    new_id,
    open_lease,
    put,
    put_one,
    spec,
    state_of,
    take,
    types_of,
)

pytestmark = pytest.mark.req("HF-6", "CX-5")

Settle = Callable[..., list[str]]


def _exchange(store: Store, lease: str, *settlements: Settlement) -> list[str]:
    request = ClaimRequest(lease=lease, queues=("nothing here",), want=5, tenant=EVERY_TENANT)
    return store.run(store.leases.exchange(settlements, request)).stale


@pytest.fixture(params=["settle", "exchange"])
def end(request: pytest.FixtureRequest) -> Settle:
    """Both operations that end attempts."""
    return apply if request.param == "settle" else _exchange


def failing(n: int = 1, tries: int = 1, delay: float = 30.0) -> Pause:
    """A step that will be retried."""
    return Pause(n, "charge", "step", delay=delay, tries=tries, error={"type": "x.Busy", "message": "busy"})


def resume(store: Store, held: Claim, seconds: float = 0.0) -> Claim:
    """Claim the next attempt of a job that has come due."""
    forward(store, seconds)
    store.run(store.leases.promote())
    return take(store, queues=[held.queue])


# -- sleeps -------------------------------------------------------------------------------------------------------


def test_sleep_suspends_and_resumes_the_job(store: Store, end: Settle) -> None:
    now = forward(store)
    job_id, held = running(store)
    assert end(store, held.lease, sleeps(held, 90.5)) == []
    stored = job(store, job_id)
    wakes = now + timedelta(seconds=90.5)
    assert (stored.state, stored.due_at, stored.retries, stored.error_code) == (State.RETRY_WAITING, wakes, 0, None)
    (step,) = steps(store, job_id)
    assert (step.kind, step.name, step.wake_at, step.over, step.attempt) == ("sleep", "nap", wakes, False, 1)
    assert types_of(store, job_id) == ["enqueue", "take", "snooze"]
    assert history(store, job_id)[-1].meta["sleeps"] == "nap"
    assert store.run(store.leases.promote()) == 0
    again = resume(store, held, 90.5)
    assert again.attempt == 2
    assert steps(store, job_id)[0].is_late


def test_sleep_until_a_time_keeps_that_time(store: Store, end: Settle) -> None:
    now = forward(store)
    zone = datetime.fromisoformat("2031-05-06T07:08:09.123456+02:00")
    for until in (now + timedelta(days=3), zone, now - timedelta(days=1), datetime(9999, 12, 31, tzinfo=UTC)):
        job_id, held = running(store)
        end(store, held.lease, sleeps(held, until=until))
        assert job(store, job_id).due_at == steps(store, job_id)[0].wake_at == until
    assert store.run(store.leases.promote()) == 1  # the one in the past


@pytest.mark.parametrize("delay", [1e300, float("inf"), LONGEST_DELAY * 2])
def test_longest_sleep_is_a_hundred_years(store: Store, delay: float) -> None:
    """Whatever the handler requests, its attempt must end."""
    now = forward(store)
    job_id, held = running(store)
    apply(store, held.lease, sleeps(held, delay))
    assert job(store, job_id).due_at == now + timedelta(seconds=LONGEST_DELAY)


def test_wait_without_a_timeout_ends_in_a_hundred_years(store: Store) -> None:
    now = forward(store)
    job_id, held = running(store)
    apply(store, held.lease, waits(held))
    assert steps(store, job_id)[0].wake_at == now + timedelta(seconds=LONGEST_DELAY)


def test_job_resumed_early_sleeps_until_the_same_time(store: Store) -> None:
    now = forward(store)
    job_id, held = running(store)
    apply(store, held.lease, sleeps(held, 3600.0))
    store.run(store.jobs.reschedule([job_id], Reschedule(), None, "ada", "default"))
    again = resume(store, held)
    (step,) = steps(store, job_id)
    apply(store, again.lease, sleeps(again, until=step.wake_at))
    (step,) = steps(store, job_id)
    assert step.wake_at == job(store, job_id).due_at == now + timedelta(hours=1)
    assert (step.attempt, step.started_at) == (2, now)


# -- retries of a step --------------------------------------------------------------------------------------------


def test_step_retry_counts_the_steps_tries_only(store: Store, end: Settle) -> None:
    forward(store)
    job_id, held = running(store)
    end(store, held.lease, paused(held, failing(tries=1)))
    again = resume(store, held, 30)
    end(store, again.lease, paused(again, failing(tries=2)))
    (step,) = steps(store, job_id)
    assert (step.over, step.tries, step.attempt, step.error) == (False, 2, 2, {"type": "x.Busy", "message": "busy"})
    assert job(store, job_id).retries == 0
    meta = history(store, job_id)[-1].meta
    assert (meta["step"], meta["tries"], meta["error"]) == ("charge", 2, "busy")
    third = resume(store, held, 30)
    assert save(store, third, entry(1, '"paid"', tries=3)) == []
    (step,) = steps(store, job_id)
    assert (step.over, step.value, step.error, step.tries) == (True, "paid", None, 3)


# -- steps written with the wait ----------------------------------------------------------------------------------


def test_deferred_steps_are_written_with_the_wait(store: Store, end: Settle) -> None:
    now = forward(store)
    job_id, held = running(store)
    caught = entry(1, None, error={"type": "x.No", "message": "no"}, tries=2, took=1.0)
    patch = StepEntry(2, "new way", "patch")
    end(store, held.lease, paused(held, Pause(3, "nap", "sleep", delay=5.0), caught, patch))
    one, two, three = steps(store, job_id)
    assert (one.over, one.error, one.tries, one.attempt) == (True, {"type": "x.No", "message": "no"}, 2, 1)
    assert (one.started_at, one.ended_at) == (now - timedelta(seconds=1), now)
    assert (two.over, two.kind, two.name) == (True, "patch", "new way")
    assert (three.over, three.kind) == (False, "sleep")


def test_retried_step_is_finished_when_its_failure_is_caught(store: Store, end: Settle) -> None:
    """It must not be retried: its handler has continued after catching the failure."""
    forward(store)
    job_id, held = running(store)
    end(store, held.lease, paused(held, failing(tries=1)))
    again = resume(store, held, 30)
    caught = entry(1, None, error={"type": "x.Busy", "message": "for good"}, tries=2)
    end(store, again.lease, paused(again, Pause(2, "nap", "sleep", delay=5.0), caught))
    one, two = steps(store, job_id)
    assert (one.over, one.tries, one.error) == (True, 2, {"type": "x.Busy", "message": "for good"})
    assert (two.over, two.kind) == (False, "sleep")


def test_deferred_step_does_not_overwrite_a_stored_one(store: Store, end: Settle) -> None:
    job_id, held = running(store)
    save(store, held, entry(1, '"first"'))
    end(store, held.lease, paused(held, Pause(2, "nap", "sleep", delay=5.0), entry(1, None, error={"type": "x"})))
    assert [(step.value, step.error) for step in steps(store, job_id)] == [("first", None), (None, None)]


@pytest.mark.req("DP-7", "SC-19")
def test_stale_wait_writes_nothing(store: Store, by_hand: ByHand, end: Settle) -> None:
    _, held = running(store)
    old = dataclasses.replace(held, attempt=0)
    before = by_hand.contents()
    put_off = entry(1, None, error={"type": "x"})
    pauses: list[Settlement] = [
        sleeps(old, 5.0),
        waits(old),
        asks(old, new_id(), put_off, n=2, notify="tell"),
        paused(old, failing()),
    ]
    for pause in pauses:
        assert end(store, held.lease, pause) == [held.id]
        assert by_hand.contents() == before


def test_first_of_two_ends_of_one_attempt_counts(store: Store, end: Settle) -> None:
    job_id, held = running(store)
    end(store, held.lease, sleeps(held, 5.0), decide(held, Succeeded("1"), 1.0), asks(held, new_id()))
    assert types_of(store, job_id)[2:] == ["snooze"]
    assert approvals(store) == []


# -- batches ------------------------------------------------------------------------------------------------------


def test_batch_with_every_kind_of_end(store: Store, end: Settle) -> None:
    """Each job gets its own end, in two tenants."""
    now = forward(store)
    put(store, *(spec() for _ in range(20)), tenant="acme")
    put(store, *(spec() for _ in range(20)), tenant="umbrella")
    lease = open_lease(store)
    held = claim(store, lease, 40)
    send(store, "sent before", {"order": 1}, tenant="acme")
    ask_ids = {each.id: new_id() for each in held}
    ends: list[Callable[[Claim], Settlement]] = [
        lambda each: decide(each, Succeeded('"ok"'), 1.0),
        lambda each: sleeps(each, 10.0),
        lambda each: waits(each, "later", {"order": 1}, timeout=20.0),
        lambda each: asks(each, ask_ids[each.id], entry(7, None, name="p", kind="patch"), n=8),
        lambda each: decide(each, Failed("boom", "it broke", final=True), 1.0),
        lambda each: waits(each, "sent before", {"order": 1}),
        lambda each: dataclasses.replace(sleeps(each, 10.0), attempt=9),
    ]
    chosen = {each.id: n % len(ends) for n, each in enumerate(held)}
    stale = end(store, lease, *(ends[chosen[each.id]](each) for each in reversed(held)))
    assert set(stale) == {job_id for job_id, n in chosen.items() if n == 6}
    for each in held:
        n, result = chosen[each.id], job(store, each.id)
        mine = [(step.kind, step.over) for step in steps(store, each.id)]
        received = n == 5 and each.tenant == "acme"
        state = [
            *(State.SUCCEEDED, State.RETRY_WAITING, State.RETRY_WAITING, State.WAITING_FOR_APPROVAL),
            *(State.DEAD_LETTER, State.QUEUED if received else State.RETRY_WAITING, State.IN_PROGRESS),
        ][n]
        assert (n, result.state) == (n, state)
        expected: list[list[tuple[str, bool]]] = [
            *([], [("sleep", False)], [("event", False)], [("patch", True), ("approval", False)]),
            *([], [("event", received)], []),
        ]
        assert mine == expected[n]
        due = {1: now + timedelta(seconds=10), 2: now + timedelta(seconds=20)}.get(n)
        assert n not in (1, 2) or result.due_at == due
        if n == 3:
            opened = approval(store, ask_ids[each.id])
            assert (opened.job_id, opened.tenant, opened.n, opened.state) == (each.id, each.tenant, 8, "open")
    assert len(approvals(store, tenant="*", limit=100)) == sum(n == 3 for n in chosen.values())


# -- approvals ----------------------------------------------------------------------------------------------------


def test_approval_request_is_stored_unchanged(store: Store, end: Settle) -> None:
    now = forward(store)
    job_id, held = running(store)
    approval_id = new_id()
    question: dict[str, Any] = {
        "summary": "Pay 12,000 to “ACME” → now?",
        "data": {"to": "ACME", "sum": 12000.5, "lines": [1, None]},
        "form": {"type": "object", "required": ["limit"]},
        "approvers": ("ada", "bob, the 2nd", "{eve}"),
        "quorum": 2,
        "not_requester": True,
        "on_deny": "resume",
        "on_expire": "remind",
        "expires_in": 3600.5,
        "remind_every": 60.0,
        "escalate_after": 120.0,
        "escalate_to": ("boss",),
    }
    end(store, held.lease, asks(held, approval_id, n=4, name="pay", **question))
    opened = approval(store, approval_id)
    for name in question.keys() - {"expires_in", "remind_every", "escalate_after"}:
        assert getattr(opened, name) == question[name], name
    assert (opened.tenant, opened.job_id, opened.n, opened.name) == ("default", job_id, 4, "pay")
    assert (opened.requester, opened.state, opened.opened_at, opened.decided_at) == ("tester", "open", now, None)
    spans = (opened.expires_at, opened.remind_at, opened.escalate_at)
    assert spans == tuple(now + timedelta(seconds=each) for each in (3600.5, 60, 120))
    assert (opened.reminders, opened.escalated_at) == (0, None)
    stored = job(store, job_id)
    assert (stored.state, stored.due_at, stored.finished_at) == (State.WAITING_FOR_APPROVAL, None, None)
    (step,) = steps(store, job_id)
    assert (step.n, step.kind, step.name, step.over, step.wake_at) == (4, "approval", "pay", False, None)
    assert history(store, job_id)[-1].meta == {"approval": "pay", "approval_id": approval_id}
    assert types_of(store, job_id)[-1] == "ask"


def test_approval_enqueues_its_notification_job(store: Store, end: Settle) -> None:
    """In the queue of the waiting job, as its child; it names the approval and carries no token."""
    forward(store)
    payloads: list[dict[str, Any]] = []
    for correlation in (None, "order-7"):
        job_id, held = running(store, tenant="acme", correlation_id=correlation)
        approval_id = new_id()
        end(store, held.lease, asks(held, approval_id, notify="tell_people"))
        (notice,) = claim(store, open_lease(store), 5, queues=[held.queue])
        assert (notice.kind, notice.tenant, notice.parent_id) == ("tell_people", "acme", job_id)
        assert notice.correlation_id == (correlation or job_id)
        stored = job(store, notice.id)
        assert (stored.enqueued_by, stored.source_system) == ("approval release", "holdfast")
        payloads.append(stored.payload)
        assert stored.payload == {"notice": {"approval_id": approval_id, "what": "asked", "number": 0}}
    assert len(payloads) == 2


def test_repeated_approvals_leave_one_open(store: Store) -> None:
    _, held = running(store)
    for n in range(3):
        approval_id = new_id()
        apply(store, held.lease, asks(held, approval_id, n=n))
        assert [each.id for each in approvals(store)] == [approval_id]
        approve(store, approval_id)
        held = take(store, queues=[held.queue])


# -- changes between reading the steps and the wait -----------------------------------------------------------------


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_wait_fulfilled_meanwhile_resumes_at_once(store: Store, end: Settle, timeout: float | None) -> None:
    """The handler resumed and read its steps; the event arrived after that and must not be missed."""
    forward(store)
    job_id, held = running(store)
    end(store, held.lease, waits(held, timeout=timeout))
    store.run(store.jobs.reschedule([job_id], Reschedule(), None, "ada", "default"))
    again = resume(store, held)
    (known,) = steps(store, job_id)
    assert send(store, data={"order": 7}).woke == 0
    end(store, again.lease, waits(again, until=known.wake_at))
    stored = job(store, job_id)
    assert (stored.state, stored.due_at) == (State.QUEUED, None)
    assert types_of(store, job_id)[-2:] == ["snooze", "due"]
    third = take(store, queues=[held.queue])
    assert third.attempt == 3
    (step,) = steps(store, job_id)
    assert (step.over, step.value["data"]) == (True, {"order": 7})


def test_repeated_wait_uses_the_latest_match(store: Store, end: Settle) -> None:
    """A release that waits for something else: neither the old event nor an earlier one counts."""
    forward(store)
    job_id, held = running(store)
    end(store, held.lease, waits(held, match={"order": 7}))
    store.run(store.jobs.reschedule([job_id], Reschedule(), None, "ada", "default"))
    again = resume(store, held)
    end(store, again.lease, waits(again, match={"order": 8, "shop": "a"}))
    assert send(store, data={"order": 7}).woke == 0
    assert send(store, data={"order": 8, "shop": "a"}).woke == 1


@pytest.mark.req("SC-19")
def test_different_call_at_the_position_of_a_wait_is_refused(store: Store, by_hand: ByHand, end: Settle) -> None:
    """The handler gets an error before; the store refuses it as well, and writes nothing."""
    job_id, held = running(store)
    end(store, held.lease, waits(held))
    store.run(store.jobs.reschedule([job_id], Reschedule(), None, "ada", "default"))
    again = resume(store, held)
    before = by_hand.contents()
    for wrong in (sleeps(again, 5.0), waits(again, "refunded"), paused(again, failing())):
        with pytest.raises(Refused) as caught:
            end(store, again.lease, wrong)
        assert caught.value.code == "immutable"
    with pytest.raises(Refused):
        save(store, again, entry(1))
    assert by_hand.contents() == before


def test_next_wait_ignores_events_already_received(store: Store, end: Settle) -> None:
    job_id, held = running(store)
    first = send(store, data={"n": 1})
    end(store, held.lease, waits(held))
    assert state_of(store, job_id) is State.QUEUED
    again = take(store, queues=[held.queue])
    end(store, again.lease, waits(again, n=2))
    assert state_of(store, job_id) is State.RETRY_WAITING
    second = send(store, data={"n": 2})
    assert second.woke == 1
    assert [step.value["id"] for step in steps(store, job_id)] == [first.id, second.id]


def test_snoozed_job_has_no_step(store: Store) -> None:
    put_one(store)
    held = take(store)
    apply(store, held.lease, Settlement(held.id, held.attempt, "snooze", delay=5.0))
    assert steps(store, held.id) == []

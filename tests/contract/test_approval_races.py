"""Waiting and sending, deciding and cancelling at the same time: no wake-up is lost, and one decision counts."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as all_done
from contextlib import ExitStack, closing
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from holdfast.engine.job import Claim
from holdfast.engine.states import State
from holdfast.features.approvals.model import Answer
from holdfast.features.assembly import Store, open_store
from holdfast.stores.requests import ClaimRequest
from tests.support.ledger import all_jobs
from tests.support.steps import approvals, approve, asks, attend, ballot, save, say, send, steps, votes, waits
from tests.support.steps import deny as say_no
from tests.support.steps import entry as done
from tests.support.stores import apply, claim, forward, history, new_id, open_lease, put, spec

pytestmark = pytest.mark.req("HF-6", "CX-7", "SC-19")

ROUNDS = 200


def run_in_step(*sides: Sequence[Callable[[], object]]) -> list[list[Any]]:
    """Run each side in its own thread; all first calls start together, then all second calls, and so on."""
    barrier = threading.Barrier(len(sides))

    def run_side(calls: Sequence[Callable[[], object]]) -> list[Any]:
        answers = []
        try:
            for call in calls:
                barrier.wait(timeout=60)
                answers.append(call())
        except BaseException:
            barrier.abort()  # the other threads stop waiting, and their BrokenBarrierError is not reported
            raise
        return answers

    with ThreadPoolExecutor(len(sides)) as pool:
        futures = [pool.submit(run_side, calls) for calls in sides]
        all_done(futures, timeout=120)
        failed = [error for each in futures if (error := each.exception(timeout=0)) is not None]
        for error in sorted(failed, key=lambda each: isinstance(each, threading.BrokenBarrierError)):
            raise error
        return [future.result() for future in futures]


@pytest.fixture
def others(store: Store) -> Iterator[list[Store]]:
    """Stores of other processes on the same database, as far as connections are concerned."""
    with ExitStack() as stack:
        yield [stack.enter_context(closing(open_store(store.url))) for _ in range(4)]


def started(store: Store, count: int, lease: str | None = None) -> list[Claim]:
    put(store, *(spec() for _ in range(count)))
    return claim(store, lease or open_lease(store, ttl=1000), count)


# -- waiting and sending ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["settle", "exchange"])
def test_no_wake_up_is_lost(store: Store, others: list[Store], operation: str) -> None:
    """A job starts to wait at the moment the event is sent: one of the two must see the other."""
    held = started(store, ROUNDS)
    lease = held[0].lease
    request = ClaimRequest(lease=lease, queues=("nothing here",), want=1)

    def wait(each: Claim, n: int) -> object:
        ended = [waits(each, f"paid-{n}", {"n": n})]
        return (
            others[0].run(others[0].leases.exchange(ended, request)).stale
            if operation == "exchange"
            else apply(others[0], lease, *ended)
        )

    _, sent = run_in_step(
        [partial(wait, each, n) for n, each in enumerate(held)],
        [partial(send, others[1], f"paid-{n}", {"n": n}) for n in range(ROUNDS)],
    )
    store.run(store.leases.promote())  # wakes jobs where neither side saw the other
    asleep = [job.id for job in all_jobs(store) if job.state is not State.QUEUED]
    assert asleep == []
    assert all(steps(store, each.id)[0].value["data"] == {"n": n} for n, each in enumerate(held[:20]))
    print(Counter(each.woke for each in sent))


@pytest.mark.slow
def test_no_wake_up_of_a_batch_is_lost(store: Store, others: list[Store]) -> None:
    """Batches that wait for the same few names, in any order, while those are being sent."""
    lease = open_lease(store, ttl=1000)
    batches = [started(store, 40, lease) for _ in range(8)]

    def wait(one: Store, batch: list[Claim]) -> object:
        return apply(one, lease, *(waits(each, f"e{n % 5}") for n, each in enumerate(batch)))

    def send_all(one: Store, *names: str) -> object:
        return [send(one, name) for name in names]

    run_in_step(
        [partial(wait, others[0], batch) for batch in batches[:4]],
        [partial(wait, others[1], batch[::-1]) for batch in batches[4:]],
        [partial(send_all, others[2], "e0", "e1", "e2")] * 4,
        [partial(send_all, others[3], "e4", "e3", "e2", "e1", "e0")] * 4,
    )
    store.run(store.leases.promote())
    # Jobs that started to wait after the last event of a name may wait; no others.
    for job in all_jobs(store):
        (step,) = steps(store, job.id)
        assert (job.state is State.QUEUED) == step.over
    for n in range(5):
        send(store, f"e{n}")
    assert {job.state for job in all_jobs(store)} == {State.QUEUED}


def test_concurrent_sends_with_one_key_make_one_event(store: Store, others: list[Store]) -> None:
    held = started(store, 20)
    apply(store, held[0].lease, *(waits(each, f"paid-{n}") for n, each in enumerate(held)))
    sides = run_in_step(*([partial(send, one, f"paid-{n}", {}, key="k") for n in range(20)] for one in others))
    for answers in zip(*sides, strict=True):
        assert len({each.id for each in answers}) == 1
        assert sorted((each.created, each.woke) for each in answers) == [(False, 0)] * 3 + [(True, 1)]


def test_step_save_during_a_cancel_is_stored_or_refused(store: Store, others: list[Store]) -> None:
    """While the job is being cancelled: a step is stored exactly if the save was acknowledged."""
    held = started(store, 60)
    ids = [each.id for each in held]
    saved, _ = run_in_step(
        [partial(save, others[0], each, done(1)) for each in held],
        [partial(others[1].run, others[1].jobs.operate("cancel", [job], None, "ada", "default")) for job in ids],
    )
    for job_id, answer in zip(ids, saved, strict=True):
        assert bool(steps(store, job_id)) == (answer == [])


# -- deciding --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_of_many_concurrent_decisions_counts(store: Store, others: list[Store]) -> None:
    """Approve, deny, cancel, expiry and deadline, on one approval after another."""
    rounds = 60
    start = forward(store)
    hour = [start + timedelta(hours=n + 1) for n in range(rounds)]
    # A third has no time limit, so that people can decide.
    put(store, *(spec(deadline_at=hour[n] if n % 3 == 1 else None) for n in range(rounds)))
    held = claim(store, open_lease(store, ttl=1e6), rounds)
    ids = {each.id: new_id() for each in held}
    spans = [(n + 1) * 3600.0 if n % 3 == 2 else None for n in range(rounds)]
    apply(store, held[0].lease, *(asks(each, ids[each.id], expires_in=spans[n]) for n, each in enumerate(held)))

    def cancel(one: Store, job_id: str) -> object:
        return one.run(one.jobs.operate("cancel", [job_id], None, "eve", "default"))[0]

    def let_pass(one: Store, n: int) -> None:
        one.run(one.clock.set(timedelta(0), hour[n]))
        attend(one)
        one.run(one.leases.expire())

    yes, no, stop, *_ = run_in_step(
        [partial(approve, others[0], ids[each.id], "ada") for each in held],
        [partial(say_no, others[1], ids[each.id], "bob") for each in held],
        [partial(cancel, others[2], each.id) for each in held],
        [partial(let_pass, others[3], n) for n in range(rounds)],
    )
    ends: Counter[str] = Counter()
    for n, each in enumerate(held):
        acknowledged = {
            "approve": not yes[n].refused,
            "deny": not no[n].refused,
            "cancel": not stop[n].refused,
        }
        ways = [event.type for event in history(store, each.id)][3:]  # after enqueue, take, ask
        # An acknowledged decision is in the ledger; a resumed job may still be cancelled.
        assert [operation for operation, counted in acknowledged.items() if counted and operation not in ways] == [], (
            acknowledged,
            ways,
        )
        assert ways[1:] in ([], ["cancel"], ["expire"]), ways
        (result,) = approvals(store, state=None, job_id=each.id)
        states = {"approve": "approved", "deny": "denied", "cancel": "withdrawn"}
        assert result.state == states.get(ways[0], result.state)
        assert ways[0] != "expire" or result.state == ("withdrawn" if n % 3 == 1 else "expired")
        assert len(votes(store, result.id)) == int(ways[0] in ("approve", "deny"))
        ends[ways[0]] += 1
    print(ends)
    assert len(ends) >= 3


def test_concurrent_votes_reach_the_quorum_once(store: Store, others: list[Store]) -> None:
    """Four concurrent votes where three are needed: three are counted, one decision is made."""
    held = started(store, 25)
    ids = [new_id() for _ in held]
    apply(store, held[0].lease, *(asks(each, approval, quorum=3) for each, approval in zip(held, ids, strict=True)))
    sides = run_in_step(
        *([partial(approve, one, approval, f"p{n}") for approval in ids] for n, one in enumerate(others))
    )
    for approval, answers in zip(ids, zip(*sides, strict=True), strict=True):
        assert sorted(str(each.reason) for each in answers) == ["None"] * 3 + ["already_decided"]
        assert sorted(each.state for each in answers if not each.refused) == ["approved", "open", "open"]
        assert len(votes(store, approval)) == 3
    assert {job.state for job in all_jobs(store)} == {State.QUEUED}


@pytest.mark.req("CX-6")
def test_concurrent_uses_of_a_token_count_once(store: Store, others: list[Store]) -> None:
    held = started(store, 25)
    ids = [new_id() for _ in held]
    apply(store, held[0].lease, *(asks(each, approval, quorum=9) for each, approval in zip(held, ids, strict=True)))
    for approval in ids:
        store.run(store.approvals.save_token(approval, f"h {approval}", None, None, "ada", "default"))

    def use(one: Store, approval: str, person: str) -> Answer:
        return say(one, approval, ballot(person, token_hash=f"h {approval}"))

    sides = run_in_step(*([partial(use, one, approval, f"p{n}") for approval in ids] for n, one in enumerate(others)))
    for approval, answers in zip(ids, zip(*sides, strict=True), strict=True):
        assert sorted(str(each.reason) for each in answers) == ["None"] + ["token_used"] * 3
        assert len(votes(store, approval)) == 1

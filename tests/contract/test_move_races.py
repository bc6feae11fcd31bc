"""Moves concurrent with moves, claims and other operators: no deadlock, no lost or half-moved job."""

from __future__ import annotations

import random
import threading
from functools import partial

import pytest

from holdfast.engine.states import State
from holdfast.features.assembly import Store
from tests.support.concurrency import together
from tests.support.direct_sql import ByHand, PostgresByHand
from tests.support.features import crowd, move, order_of
from tests.support.stores import claim, job, open_lease, put, settle, spec, state_of, types_of

pytestmark = pytest.mark.req("SC-3")


def test_concurrent_moves_into_one_gap_all_succeed(store: Store, by_hand: ByHand) -> None:
    """Every caller moves its job right before the same one, where no position is free."""
    ids = put(store, *(spec() for _ in range(40)))
    crowd(by_hand, ids, start=-40)
    target, others = ids[20], ids[21:37]
    verdicts = together(*(partial(move, store, each, before=target) for each in others))
    assert not any(verdict.refused for verdict in verdicts)
    order = order_of(store)
    assert order[:20] == ids[:20]
    assert sorted(order[20:36]) == sorted(others)
    assert order[36:] == [target, *ids[37:]]
    places = [job(store, each).position for each in order]
    assert len(set(places)) == len(places), "no two jobs share a position"


def test_concurrent_moves_to_first_get_distinct_positions(store: Store) -> None:
    ids = put(store, *(spec() for _ in range(12)))
    together(*(partial(move, store, each, first=True) for each in ids))
    places = [job(store, each).position for each in ids]
    assert len(set(places)) == len(places)


@pytest.mark.slow
def test_concurrent_moves_claims_and_cancels(store: Store, by_hand: ByHand) -> None:
    """All threads work on the same jobs in any order; every refusal has its reason, and the ledger is consistent."""
    ids = put(store, *(spec() for _ in range(120)))
    crowd(by_hand, ids, start=-200)

    def mover(seed: int) -> list[str | None]:
        choice = random.Random(seed)
        reasons = []
        for _ in range(25):
            one, two = choice.sample(ids, 2)
            reasons.append(move(store, one, **{choice.choice(["before", "after"]): two}).reason)
        return reasons

    def canceller(seed: int) -> list[str | None]:
        choice = random.Random(seed)
        for _ in range(8):
            store.run(store.jobs.operate("cancel", choice.sample(ids, 3), None, "bob", "default"))
        return []

    def claimer(name: str) -> list[str | None]:
        lease = open_lease(store, name)
        for _ in range(8):
            claims = claim(store, lease, 5)
            if claims:
                assert settle(store, claims) is not None
        return []

    sides = [partial(mover, n) for n in range(4)] + [partial(canceller, n) for n in range(2)]
    answers = together(*sides, *(partial(claimer, f"worker-{n}") for n in range(2)))
    assert {reason for reasons in answers for reason in reasons} <= {None, "not_waiting", "target_not_waiting"}
    counts = store.run(store.jobs.counts("default"))
    assert set(counts) <= {State.QUEUED, State.SUCCEEDED, State.CANCELLED}
    assert sum(counts.values()) == len(ids)


def test_readers_never_see_a_half_moved_queue(store: Store, by_hand: ByHand) -> None:
    """While jobs are moved back and forth, a reader sees each of them once and the others in order."""
    ids = put(store, *(spec() for _ in range(12)))
    crowd(by_hand, ids, start=-100)
    mover, still = ids[0], ids[1:]
    over = threading.Event()

    def move_about() -> int:
        try:
            for n in range(60):
                assert not move(store, mover, before=still[n % len(still)]).refused
        finally:
            over.set()
        return 60

    def read() -> int:
        reads = 0
        while not over.is_set():
            rows = by_hand.execute("select id from job_state order by priority desc, position, id")
            seen = [row[0] for row in rows]
            assert sorted(seen) == sorted(ids)
            assert [each for each in seen if each != mover] == still
            reads += 1
        return reads

    moves, reads = together(move_about, read)
    assert moves == 60
    assert reads > 0
    assert types_of(store, mover).count("move") == 60


def test_move_of_a_job_that_is_being_claimed_waits_and_is_refused(store: Store, by_hand: ByHand) -> None:
    """The claim came first: the move waits for its row lock."""
    if not isinstance(by_hand, PostgresByHand):
        pytest.skip("SQLite has one writer at a time")
    taken, other = put(store, spec(), spec())
    lease = open_lease(store)
    by_hand.begin()
    by_hand.execute("select id from claim_many(:lease, array['default'], 1)", {"lease": lease})

    ((claiming,),) = by_hand.execute("select pg_backend_pid()")

    def commit_when_waited_for() -> None:
        watch = PostgresByHand(store.url)
        try:
            waited_for = "select 1 from pg_locks where not granted and :pid = any (pg_blocking_pids(pid))"
            for _ in range(2_000):
                if watch.execute(waited_for, {"pid": claiming}):
                    break
                threading.Event().wait(0.01)
            else:
                raise AssertionError("the move does not wait")
        finally:
            watch.close()
            by_hand.commit()

    verdict, _ = together(partial(move, store, taken, after=other), commit_when_waited_for)
    assert verdict is not None
    assert (verdict.refused, verdict.reason, verdict.state) == (True, "not_waiting", State.IN_PROGRESS)
    assert state_of(store, other) is State.QUEUED
    assert types_of(store, taken) == ["enqueue", "take"]

"""Moves at the same time as moves, claims and other operators: nobody waits for ever, nothing is lost or half moved."""

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


def test_moves_into_one_gap_at_once_each_find_a_place(store: Store, by_hand: ByHand) -> None:
    """Everybody wants to stand right before the same job, where there is no room."""
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
    assert len(set(places)) == len(places), "no two in one place"


def test_first_at_once_gives_everybody_a_place_of_their_own(store: Store) -> None:
    ids = put(store, *(spec() for _ in range(12)))
    together(*(partial(move, store, each, first=True) for each in ids))
    places = [job(store, each).position for each in ids]
    assert len(set(places)) == len(places)


@pytest.mark.slow
def test_movers_claimers_and_cancellers_together(store: Store, by_hand: ByHand) -> None:
    """Each side works on the same jobs in any order; whoever is refused is told why, and the ledger holds."""
    ids = put(store, *(spec() for _ in range(120)))
    crowd(by_hand, ids, start=-200)

    def mover(seed: int) -> list[str | None]:
        choice = random.Random(seed)
        said = []
        for _ in range(25):
            one, two = choice.sample(ids, 2)
            said.append(move(store, one, **{choice.choice(["before", "after"]): two}).reason)
        return said

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
    assert {reason for said in answers for reason in said} <= {None, "not_waiting", "target_not_waiting"}
    counts = store.run(store.jobs.counts("default"))
    assert set(counts) <= {State.QUEUED, State.SUCCEEDED, State.CANCELLED}
    assert sum(counts.values()) == len(ids)


def test_nobody_sees_a_half_moved_queue(store: Store, by_hand: ByHand) -> None:
    """While jobs are moved to and fro, whoever looks sees each of them once and the others in their order."""
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

    def look() -> int:
        looks = 0
        while not over.is_set():
            rows = by_hand.execute("select id from job_state order by priority desc, position, id")
            seen = [row[0] for row in rows]
            assert sorted(seen) == sorted(ids)
            assert [each for each in seen if each != mover] == still
            looks += 1
        return looks

    moves, looks = together(move_about, look)
    assert moves == 60
    assert looks > 0
    assert types_of(store, mover).count("move") == 60


def test_a_job_that_is_being_claimed_is_waited_for_and_refused(store: Store, by_hand: ByHand) -> None:
    """The claim came first: the move waits for it (PostgreSQL: for the row; SQLite: for its turn to write)."""
    if not isinstance(by_hand, PostgresByHand):
        pytest.skip("one writer at a time: there is nothing half done to wait for")
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
                raise AssertionError("nobody waits")
        finally:
            watch.close()
            by_hand.commit()

    verdict, _ = together(partial(move, store, taken, after=other), commit_when_waited_for)
    assert verdict is not None
    assert (verdict.refused, verdict.reason, verdict.state) == (True, "not_waiting", State.IN_PROGRESS)
    assert state_of(store, other) is State.QUEUED
    assert types_of(store, taken) == ["enqueue", "take"]

"""Moving a waiting job within its queue: all positions, every refusal, renumbering of full gaps (SC-2, SC-3)."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.engine.job import Verdict
from holdfast.engine.order import Move
from holdfast.engine.states import State
from holdfast.errors import HoldfastError, InvalidSetting
from holdfast.features.assembly import Store
from holdfast.stores.requests import Reschedule
from tests.support.direct_sql import ByHand, unguarded
from tests.support.features import crowd, move, moved, order_of
from tests.support.job_states import bring
from tests.support.ledger import check_ledger
from tests.support.stores import (
    BROKEN,
    claim,
    forward,
    history,
    job,
    new_id,
    open_lease,
    put,
    put_one,
    spec,
    take,
    types_of,
    work,
)

pytestmark = pytest.mark.req("SC-2", "SC-3")

S = State


def claimed(store: Store) -> list[str]:
    """Job ids in the order in which workers claim them."""
    return [each.id for each in claim(store, open_lease(store), 1000)]


def test_move_to_every_position(store: Store) -> None:
    a, b, c, d = put(store, *(spec() for _ in range(4)))
    moved(store, d, first=True)
    assert order_of(store) == [d, a, b, c]
    moved(store, d, last=True)
    assert order_of(store) == [a, b, c, d]
    moved(store, a, after=c)
    assert order_of(store) == [b, c, a, d]
    moved(store, d, before=c)
    assert order_of(store) == [b, d, c, a]
    moved(store, b, after=a)
    assert order_of(store) == [d, c, a, b]
    moved(store, b, before=d)
    assert order_of(store) == [b, d, c, a]
    late = put_one(store)
    assert order_of(store) == claimed(store) == [b, d, c, a, late]


def test_new_jobs_come_after_jobs_moved_last(store: Store) -> None:
    ids = put(store, *(spec() for _ in range(3)))
    for _ in range(150):  # more than the positions between two new jobs
        moved(store, ids[0], last=True)
        ids.append(ids.pop(0))
    ids += put(store, spec(), spec())
    moved(store, ids[1], after=ids[-1])
    ids.append(ids.pop(1))
    ids += put(store, spec())
    assert order_of(store) == claimed(store) == ids


def test_move_to_another_priority(store: Store) -> None:
    low, high = put(store, spec(), spec(priority=5))
    other, more = put(store, spec(), spec(priority=5))
    moved(store, low, priority=5)
    assert order_of(store) == [high, more, low, other]
    moved(store, other, first=True, priority=5)
    assert order_of(store) == [other, high, more, low]
    moved(store, high, last=True, priority=-3)
    assert order_of(store) == [other, more, low, high]
    moved(store, other, after=high)
    assert order_of(store) == [more, low, high, other]
    assert [job(store, each).priority for each in order_of(store)] == [5, 5, -3, -3]
    moved(store, other, first=True, priority=32767)
    assert order_of(store)[0] == other
    assert history(store, low)[-1].meta["priority"] == 5
    assert claimed(store) == [other, more, low, high]


def test_move_to_the_same_position_is_recorded_each_time(store: Store) -> None:
    a, b, c = put(store, spec(), spec(), spec())
    places = [job(store, each).position for each in (a, b, c)]
    for place in ({"before": c}, {"after": a}, {"before": c}, {"before": c}, {"after": b}):
        moved(store, b, **place)
    moved(store, a, first=True)
    moved(store, c, last=True)
    assert [job(store, each).position for each in (a, b, c)] == places
    assert types_of(store, b) == ["enqueue", *["move"] * 5]
    assert types_of(store, a) == types_of(store, c) == ["enqueue", "move"]
    check_ledger(store)


def test_repeated_move_is_recorded_after_its_note_is_gone(store: Store) -> None:
    """A job that comes due, or returns from a disabled agent, loses its note without an event."""
    forward(store)
    job_id = put_one(store, delay=60.0)
    moved(store, job_id, first=True)
    forward(store, 61.0)
    assert store.run(store.leases.promote()) == 1
    moved(store, job_id, first=True)
    assert [event.meta.get("times") for event in history(store, job_id)] == [None, 1, 2]


@pytest.mark.req("DP-3")
@pytest.mark.parametrize("state", list(State))
def test_move_in_every_state(store: Store, by_hand: ByHand, state: State) -> None:
    job_id = bring(store, by_hand, state).id
    other = put_one(store, queue=job(store, job_id).queue)
    before = by_hand.contents()
    for place in ({"first": True}, {"last": True}, {"before": other}, {"priority": 4}):
        verdict = move(store, job_id, **place)
        if state in (S.QUEUED, S.RETRY_WAITING):
            assert verdict == Verdict(job_id, state, False, None)
            last = history(store, job_id)[-1]
            assert (last.type, last.from_state, last.to_state, last.actor) == ("move", state, state, "ada")
        else:
            assert verdict == Verdict(job_id, state, True, "not_waiting")
            assert by_hand.contents() == before
    verdict = move(store, other, after=job_id)
    if state not in (S.QUEUED, S.RETRY_WAITING):
        assert verdict == Verdict(other, S.QUEUED, True, "target_not_waiting")
        assert by_hand.contents() == before


@pytest.mark.req("DP-3")
def test_move_refuses_unknown_and_foreign_jobs(store: Store, by_hand: ByHand) -> None:
    here, elsewhere = put(store, spec(), spec(queue="mail"))
    foreign = put_one(store, tenant="acme")
    before = by_hand.contents()
    assert move(store, new_id(), first=True).reason == "not_found"
    assert move(store, foreign, first=True, tenant="default").reason == "not_found"
    assert move(store, here, before=new_id()) == Verdict(here, S.QUEUED, True, "target_not_found")
    assert move(store, here, after=foreign, tenant="default").reason == "target_not_found"
    assert move(store, here, after=elsewhere).reason == "other_queue"
    assert by_hand.contents() == before


@pytest.mark.parametrize(
    "place",
    [
        {},
        {"first": True, "last": True},
        {"first": True, "before": new_id()},
        {"before": new_id(), "after": new_id()},
        {"before": new_id(), "priority": 3},
        {"priority": 40_000},
        {"priority": True},
        {"before": "nobody"},
    ],
)
def test_invalid_positions_are_refused(place: dict[str, Any]) -> None:
    with pytest.raises(HoldfastError):
        Move.of(**place)


def test_move_event_has_position_and_reason(store: Store) -> None:
    a, b = put(store, spec(), spec())
    move(store, b, before=a, reason="the auditors are here")
    last = history(store, b)[-1]
    assert last.meta == {
        "to": "before",
        "other": a,
        "priority": 0,
        "reason": "the auditors are here",
        "times": 1,
    }
    assert types_of(store, a) == ["enqueue"]


def test_delayed_jobs_keep_their_position_until_due(store: Store) -> None:
    forward(store)
    a, b = put(store, spec(), spec(delay=60.0))
    put_one(store)
    retried = put_one(store, priority=9)
    work(store, BROKEN)
    assert job(store, retried).state is S.RETRY_WAITING
    moved(store, retried, before=a)
    moved(store, b, first=True)
    moved(store, a, after=retried)
    assert order_of(store)[:3] == [b, retried, a]
    assert job(store, b).due_at is not None
    forward(store, 120.0)
    store.run(store.leases.promote())
    assert claimed(store)[:3] == [b, retried, a]


def test_move_keeps_the_note_of_a_held_job(store: Store, by_hand: ByHand) -> None:
    """The note of a held or sleeping job is still needed while it waits."""
    job_id = put_one(store)
    with unguarded(by_hand, "job_state"):
        by_hand.execute('update job_state set note = \'{"held": "agent_disabled"}\' where id = :id', {"id": job_id})
    moved(store, job_id, first=True)
    ((note,),) = by_hand.execute("select note from job_state where id = :id", {"id": job_id})
    assert "agent_disabled" in str(note)


def test_moves_and_reschedules_alternate(store: Store) -> None:
    forward(store)
    job_id = put_one(store)
    moved(store, job_id, first=True)
    store.run(store.jobs.reschedule([job_id], Reschedule(delay=5.0), None, "ada", "default"))
    moved(store, job_id, first=True)
    moved(store, job_id, priority=3)
    store.run(store.jobs.reschedule([job_id], Reschedule(), None, "ada", "default"))
    assert types_of(store, job_id) == ["enqueue", "move", "reschedule", "move", "move", "reschedule"]
    assert take(store).id == job_id


def test_full_gap_is_renumbered_and_nothing_else(store: Store, by_hand: ByHand) -> None:
    ids = put(store, *(spec() for _ in range(60)))
    crowd(by_hand, ids[20:40], start=job(store, ids[20]).position)
    far = {each: job(store, each).position for each in (*ids[:5], *ids[-5:])}
    last = ids[-1]
    moved(store, last, before=ids[30])
    expected = [*ids[:30], last, *ids[30:-1]]
    assert order_of(store) == expected
    assert {each: job(store, each).position for each in far if each != last} == {
        each: place for each, place in far.items() if each != last
    }
    assert {event_type for each in ids[:-1] for event_type in types_of(store, each)} == {"enqueue"}
    assert claimed(store) == expected


def test_full_gap_at_the_front_and_at_the_end(store: Store, by_hand: ByHand) -> None:
    ids = put(store, *(spec() for _ in range(6)))
    crowd(by_hand, ids, start=-3)
    moved(store, ids[5], after=ids[0])
    ids = [ids[0], ids[5], *ids[1:5]]
    assert order_of(store) == ids
    crowd(by_hand, ids)
    moved(store, ids[0], before=ids[5])
    ids = [*ids[1:5], ids[0], ids[5]]
    assert order_of(store) == ids
    crowd(by_hand, ids)
    moved(store, ids[2], first=True)
    ids = [ids[2], *ids[:2], *ids[3:]]
    assert order_of(store) == claimed(store) == ids


def test_equal_positions_are_ordered_by_age_and_separated_by_a_move(store: Store, by_hand: ByHand) -> None:
    ids = put(store, *(spec() for _ in range(5)))
    with unguarded(by_hand, "job_state"):
        by_hand.execute("update job_state set position = 7")
    moved(store, ids[4], before=ids[2])
    assert order_of(store) == claimed(store) == [ids[0], ids[1], ids[4], ids[2], ids[3]]


@pytest.mark.slow
def test_thousand_moves_into_the_same_gap(store: Store, by_hand: ByHand) -> None:
    """Each right before the same job: only neighbours are renumbered, not jobs a hundred positions away."""
    ids = put(store, *(spec() for _ in range(1_200)))
    target = ids[60]
    before = {each: job(store, each).position for each in (ids[0], ids[1])}
    line = ids[:60]
    for each in ids[200:]:
        moved(store, each, before=target)
        line.append(each)
    assert order_of(store) == [*line, *ids[60:200]]
    assert before == {each: job(store, each).position for each in before}
    taken = claimed(store)
    assert taken == [*line, *ids[60:200]][: len(taken)]


@pytest.mark.req("JF-1")
def test_tenant_moves_only_its_own_jobs_in_a_shared_queue(store: Store, by_hand: ByHand) -> None:
    ours = put(store, spec(), spec())
    theirs = put(store, spec(), spec(), tenant="acme")
    assert not move(store, theirs[1], first=True, tenant="acme").refused
    assert order_of(store) == [theirs[1], *ours, theirs[0]]
    crowd(by_hand, order_of(store))
    assert not move(store, theirs[0], after=theirs[1], tenant="acme").refused
    assert order_of(store) == [theirs[1], theirs[0], *ours]
    assert [event_type for each in ours for event_type in types_of(store, each)] == ["enqueue"] * 2
    assert not move(store, theirs[1], after=ours[0], tenant="*").refused
    assert order_of(store) == [theirs[0], ours[0], theirs[1], ours[1]]


@pytest.mark.req("CX-4")
def test_move_by_hand_is_recorded(store: Store, by_hand: ByHand) -> None:
    job_id = put_one(store)
    by_hand.execute('update job_state set note = \'{"moved": {"to": "first"}}\' where id = :id', {"id": job_id})
    assert types_of(store, job_id) == ["enqueue", "move"]
    assert history(store, job_id)[-1].meta == {"to": "first"}
    assert by_hand.refusal("update job_state set priority = 3 where id = :id", {"id": job_id}) is not None
    assert types_of(store, job_id) == ["enqueue", "move"]


def test_move_before_itself_changes_nothing(store: Store) -> None:
    a, b = put(store, spec(), spec())
    moved(store, b, before=b)
    assert order_of(store) == [a, b]


def test_move_without_a_position_is_refused() -> None:
    with pytest.raises(InvalidSetting) as refused:
        Move.of()
    assert refused.value.code == "no_place"

"""Application events: which waiting jobs they wake, which jobs read them later, and which ignore them."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from holdfast.engine.outcome import Failed
from holdfast.engine.payload import canonical
from holdfast.engine.states import State
from holdfast.engine.steps import MATCH_LIMIT, check_match, projection
from holdfast.errors import HoldfastError, InvalidInput, InvalidSetting, NotFound
from holdfast.features.assembly import Store
from holdfast.stores.requests import Reschedule, SendEvent
from tests.support.direct_sql import ByHand, PostgresByHand
from tests.support.ledger import all_jobs
from tests.support.steps import running, send, sleeps, steps, waiting, waits
from tests.support.stores import (
    apply,
    claim,
    forward,
    history,
    job,
    new_id,
    open_lease,
    put,
    settle,
    spec,
    state_of,
    take,
    types_of,
)

pytestmark = pytest.mark.req("HF-6")


def data_of(store: Store, job_id: str, n: int = 1) -> Any:
    """The data of the event that fulfilled a job's wait; None while it waits."""
    (step,) = (step for step in steps(store, job_id) if step.n == n)
    return step.value and step.value["data"]


def test_event_resumes_a_waiting_job_with_its_data(store: Store) -> None:
    forward(store)
    job_id = waiting(store, timeout=60.0)
    now = forward(store, 5)
    sent = send(store, data={"order": 7, "sum": 1.50})
    assert (sent.created, sent.woke) == (True, 1)
    stored = job(store, job_id)
    assert (stored.state, stored.due_at, stored.retries) == (State.QUEUED, None, 0)
    (step,) = steps(store, job_id)
    assert step.value == {
        "id": sent.id,
        "name": "paid",
        "data": {"order": 7, "sum": 1.5},
        "sent_by": "till",
        "sent_at": now.isoformat(timespec="microseconds").replace("+00:00", "Z"),
    }
    assert (step.over, step.ended_at, step.error) == (True, now, None)
    last = history(store, job_id)[-1]
    assert (last.type, last.actor, last.meta) == ("due", "till", {"event": "paid"})


def test_event_data_is_stored_verbatim(store: Store, by_hand: ByHand) -> None:
    text = '{"b": 1e23, "a": 0.10, "é": "\\u00e9"}'
    job_id = waiting(store)
    send(store, data=text)
    cast = ("data", "value") if by_hand.name == "sqlite" else ("data::text", "value::text")
    assert by_hand.execute(f"select {cast[0]} from app_event") == [(text,)]
    ((kept,),) = by_hand.execute(f"select {cast[1]} from step where job_id = :id", {"id": job_id})
    assert text in kept


def test_event_wakes_only_waits_for_its_name(store: Store) -> None:
    other, other_case, mine = waiting(store, "refunded"), waiting(store, "Paid"), waiting(store, "paid")
    asleep, held = running(store)
    apply(store, held.lease, sleeps(held, 60.0))  # a sleep named "nap" is not an event
    assert send(store, "nap").woke == 0
    assert send(store).woke == 1
    waits_still = [state_of(store, each) is State.RETRY_WAITING for each in (other, other_case, mine, asleep)]
    assert waits_still == [True, True, False, True]


# -- matching --------------------------------------------------------------------------------------------------

WANTED: list[dict[str, Any]] = [
    *({}, {"order": 7}, {"order": "7"}, {"order": True}, {"order": 1}, {"order": None}, {"order": 0}),
    *({"order": 7, "shop": "a"}, {"shop": "a"}, {"shop": "A"}, {"shop": "é → 'a' \"b\""}, {"a.b": 1}, {"": 1}),
    *({"order": 2**53 + 1}, {"order": -(2**70)}, {"a": False, "b": None, "c": "", "ä": 1}, {"order": False}),
]
SENT: list[tuple[str, object]] = [
    ("nothing", {}),
    ("a number", {"order": 7}),
    ("the same with a point", '{"order": 7.0}'),
    ("the same with an exponent", '{"order": 0.7e1}'),
    ("not quite", {"order": 7.5}),
    ("text", {"order": "7"}),
    ("true", {"order": True}),
    ("one", {"order": 1}),
    ("false", {"order": False}),
    ("zero", '{"order": -0.0}'),
    ("null", {"order": None}),
    ("more fields than wanted", {"order": 7, "shop": "a", "more": [1, {"order": 1}]}),
    ("of another kind", {"order": [7], "shop": {"a": 1}}),
    ("letters", {"shop": "é → 'a' \"b\""}),
    ("a name with a point", {"a.b": 1, "a": {"b": 2}}),
    ("no name", {"": 1}),
    ("a large number", {"order": 2**53 + 1}),
    ("its neighbour", {"order": 2**53}),
    ("a very large one", {"order": -(2**70)}),
    ("a float as large", '{"order": -1180591620717411303424.0}'),
    ("all kinds", {"a": False, "c": "", "ä": 1.0}),
]


@pytest.mark.slow
def test_event_wakes_waits_whose_values_it_has(store: Store) -> None:
    """Compared with the pure rule: 7.0 equals 7, true does not equal 1, a missing field is null."""
    forward(store)
    put(store, *(spec() for _ in WANTED for _ in SENT))
    lease = open_lease(store)
    held = claim(store, lease, len(WANTED) * len(SENT))
    pairs = [(n, wanted) for n in range(len(SENT)) for wanted in range(len(WANTED))]
    # Each event has its own waits, so that no other event fulfils them.
    settlements = [waits(each, f"e{n}", WANTED[wanted]) for each, (n, wanted) in zip(held, pairs, strict=True)]
    assert apply(store, lease, *settlements) == []
    for n, (label, data) in enumerate(SENT):
        sent = send(store, f"e{n}", data)
        mine = [(each, WANTED[w]) for each, (t, w) in zip(held, pairs, strict=True) if t == n]
        states = {each.id: each.state for each in all_jobs(store)}
        result = {each.id for each, _ in mine if states[each.id] is State.QUEUED}
        expected = {each.id for each, wanted in mine if _fits(data, wanted)}
        labels = {each.id: (label, wanted) for each, wanted in mine}
        assert {repr(labels[x]) for x in result} == {repr(labels[x]) for x in expected}
        assert sent.woke == len(expected)


def test_wait_matches_earlier_events_by_the_same_rule(store: Store) -> None:
    forward(store)
    put(store, *(spec() for _ in WANTED for _ in SENT))
    lease = open_lease(store)
    held = claim(store, lease, len(WANTED) * len(SENT))
    for n, (_, data) in enumerate(SENT):
        assert send(store, f"e{n}", data).woke == 0
    pairs = [(n, wanted) for n in range(len(SENT)) for wanted in range(len(WANTED))]
    settlements = [waits(each, f"e{n}", WANTED[wanted]) for each, (n, wanted) in zip(held, pairs, strict=True)]
    assert apply(store, lease, *settlements) == []
    states = {each.id: each.state for each in all_jobs(store)}
    for each, (n, wanted) in zip(held, pairs, strict=True):
        resumed = states[each.id] is State.QUEUED
        assert resumed == _fits(SENT[n][1], WANTED[wanted]), (SENT[n], WANTED[wanted])


def _fits(data: object, wanted: dict[str, Any]) -> bool:
    """Apply the pure rule. It compares types as well, because True == 1."""
    result = projection(json.loads(_text(data)), list(wanted))
    return all(type(result[name]) is type(value) and result[name] == value for name, value in wanted.items())


def _text(data: object) -> str:
    return data if isinstance(data, str) else json.dumps(data)


def test_sql_matching_equals_the_python_rule(by_hand: ByHand) -> None:
    if not isinstance(by_hand, PostgresByHand):
        pytest.skip("SQLite calls the Python rule")
    rows = by_hand.execute(
        "select projection(t.data, shape_of(w.wanted)) = projection(w.wanted, shape_of(w.wanted))"
        " from jsonb_array_elements(:sent::jsonb) with ordinality as t(data, one),"
        " jsonb_array_elements(:wanted::jsonb) with ordinality as w(wanted, other) order by one, other",
        {"sent": f"[{','.join(_text(data) for _, data in SENT)}]", "wanted": json.dumps(WANTED)},
    )
    assert [row[0] for row in rows] == [_fits(data, wanted) for _, data in SENT for wanted in WANTED]


def test_wait_with_the_largest_match_is_fulfilled(store: Store) -> None:
    """An index entry has a size limit, and a job whose wait cannot be stored would be stuck."""
    many: dict[str, Any] = {}
    while len(canonical({**many, f"{len(many):x}": 1}).encode()) <= MATCH_LIMIT:
        many[f"{len(many):x}"] = 1
    long: dict[str, Any] = {"é" * 120: "→" * ((MATCH_LIMIT - 247) // 3)}
    for match in (many, long):
        assert check_match(match) == match
        with pytest.raises(InvalidSetting):
            check_match(match | {"more": "x" * 10})
        # A step may have the longest possible name; no event can have it, but the job must settle.
        never = waiting(store, "𝄞" * 200, match, tenant="𝄞" * 100)
        assert state_of(store, never) is State.RETRY_WAITING
        job_id = waiting(store, "𝄞" * 100, match, tenant="𝄞" * 100)
        assert send(store, "𝄞" * 100, match, tenant="𝄞" * 100).woke == 1
        assert data_of(store, job_id) == match


# -- tenants and addressees ------------------------------------------------------------------------------------


@pytest.mark.req("JF-1")
def test_events_of_other_tenants_wake_no_job(store: Store) -> None:
    mine, theirs = waiting(store, tenant="acme"), waiting(store, tenant="umbrella")
    assert send(store, tenant="umbrella").woke == 1
    assert (state_of(store, mine), state_of(store, theirs)) == (State.RETRY_WAITING, State.QUEUED)
    later = waiting(store, tenant="acme")
    assert state_of(store, later) is State.RETRY_WAITING
    assert send(store, tenant="acme").woke == 2


@pytest.mark.req("JF-1")
def test_sending_an_event_requires_one_tenant(store: Store) -> None:
    with pytest.raises(InvalidInput) as caught:
        send(store, tenant="*")
    assert caught.value.code == "invalid_input"


def test_event_for_one_job_ignores_the_others(store: Store) -> None:
    mine, other = waiting(store), waiting(store)
    assert send(store, data={"n": 1}, job=mine).woke == 1
    assert (data_of(store, mine), data_of(store, other)) == ({"n": 1}, None)
    third, held = running(store)
    send(store, data={"n": 2}, job=third)
    later, later_held = running(store)
    apply(store, later_held.lease, waits(later_held))
    assert data_of(store, later) is None
    apply(store, held.lease, waits(held))
    assert data_of(store, third) == {"n": 2}
    with pytest.raises(NotFound):
        send(store, job=new_id())


def test_event_wakes_many_waiting_jobs(store: Store) -> None:
    put(store, *(spec() for _ in range(300)))
    lease = open_lease(store)
    held = claim(store, lease, 300)
    matches: list[dict[str, Any]] = [{}, {"order": 7}, {"order": 8}, {"shop": "a", "order": 7}]
    assert apply(store, lease, *(waits(each, match=matches[n % 4]) for n, each in enumerate(held))) == []
    sent = send(store, data={"order": 7, "shop": "b"})
    assert sent.woke == 150
    states = {each.id: each.state for each in all_jobs(store)}
    assert [states[each.id] is State.QUEUED for each in held] == [n % 4 in (0, 1) for n in range(300)]
    assert send(store, data={"order": 7, "shop": "a"}).woke == 75


def test_wait_is_fulfilled_once(store: Store) -> None:
    job_id = waiting(store)
    assert send(store, data={"n": 1}).woke == 1
    assert send(store, data={"n": 2}).woke == 0
    assert data_of(store, job_id) == {"n": 1}
    assert types_of(store, job_id).count("due") == 1


# -- jobs that no longer wait ----------------------------------------------------------------------------------


@pytest.mark.req("CX-11")
def test_event_does_not_wake_a_cancelled_job(store: Store) -> None:
    gone, mine = waiting(store), waiting(store)
    store.run(store.jobs.operate("cancel", [gone], None, "ada", "default"))
    assert send(store).woke == 1
    assert (state_of(store, gone), state_of(store, mine)) == (State.CANCELLED, State.QUEUED)
    assert types_of(store, gone)[-1] == "cancel"


def test_event_does_not_end_a_backoff_early(store: Store) -> None:
    """Its wait is open, but the job is delayed for another reason."""
    now = forward(store)
    job_id, held = running(store)
    apply(store, held.lease, waits(held))
    store.run(store.jobs.reschedule([job_id], Reschedule(), None, "ada", "default"))
    again = take(store, queues=[held.queue])
    settle(store, again, Failed("broken", "it broke", after=300.0))
    due = now + timedelta(seconds=300)
    assert job(store, job_id).due_at == due
    assert send(store, data={"n": 1}).woke == 0
    stored = job(store, job_id)
    assert (stored.state, stored.due_at) == (State.RETRY_WAITING, due)
    assert data_of(store, job_id) == {"n": 1}
    forward(store, 300)
    assert store.run(store.leases.promote()) == 1


def test_event_does_not_wake_a_rescheduled_job(store: Store) -> None:
    now = forward(store)
    job_id = waiting(store)
    at = now + timedelta(hours=1)
    store.run(store.jobs.reschedule([job_id], Reschedule(at=at), None, "ada", "default"))
    assert send(store).woke == 0
    assert job(store, job_id).due_at == at
    assert data_of(store, job_id) == {}


def test_job_with_two_waits_receives_both_events(store: Store) -> None:
    """The wait it is suspended for wakes it; the other one is fulfilled meanwhile."""
    job_id, held = running(store)
    apply(store, held.lease, waits(held, "first", n=1))
    store.run(store.jobs.reschedule([job_id], Reschedule(), None, "ada", "default"))
    again = take(store, queues=[held.queue])
    forward(store, 1)  # so that the two end at different times
    apply(store, again.lease, waits(again, "second", n=2))
    assert send(store, "first", {"n": 1}).woke == 0
    assert state_of(store, job_id) is State.RETRY_WAITING
    assert send(store, "second", {"n": 2}).woke == 1
    assert (data_of(store, job_id, 1), data_of(store, job_id, 2)) == ({"n": 1}, {"n": 2})


# -- keys ------------------------------------------------------------------------------------------------------


@pytest.mark.req("DP-5")
def test_event_key_makes_sending_idempotent(store: Store) -> None:
    job_id = waiting(store)
    first = send(store, data={"n": 1}, key="k")
    again = send(store, data={"n": 2}, key="k")
    assert (again.id, again.created, again.woke) == (first.id, False, 0)
    later = waiting(store, since=3600.0)
    assert (data_of(store, job_id), data_of(store, later)) == ({"n": 1}, {"n": 1})
    others = [send(store, key="other"), send(store, "refunded", key="k"), send(store, key="k", tenant="acme")]
    assert [each.created for each in others] == [True, True, True]
    assert len({first.id, *(each.id for each in others)}) == 4


# -- events sent before the wait -------------------------------------------------------------------------------


def test_wait_reads_events_sent_since_the_job_was_created(store: Store) -> None:
    """Older events count only as far back as the wait's `since`."""
    forward(store)
    old = send(store, data={"n": 0})
    forward(store, 100)
    job_id, held = running(store)
    second, second_held = running(store)
    third, third_held = running(store)
    forward(store, 10)
    new = send(store, data={"n": 1})
    forward(store, 10)
    apply(store, held.lease, waits(held))
    assert (data_of(store, job_id), types_of(store, job_id)[-2:]) == ({"n": 1}, ["snooze", "due"])
    apply(store, second_held.lease, waits(second_held, since=100.0))
    apply(store, third_held.lease, waits(third_held, since=99.9))
    assert [steps(store, each)[0].value["id"] for each in (second, third)] == [old.id, new.id]


def test_wait_reads_the_oldest_matching_event(store: Store) -> None:
    forward(store)
    job_id, held = running(store)
    for n in (1, 2, 3):
        forward(store, 1)
        send(store, data={"n": n, "odd": n % 2})
    apply(store, held.lease, waits(held, match={"odd": 0}, n=1))
    again = take(store, queues=[held.queue])
    apply(store, again.lease, waits(again, n=2))
    third = take(store, queues=[held.queue])
    apply(store, third.lease, waits(third, n=3))
    assert [data_of(store, job_id, n)["n"] for n in (1, 2, 3)] == [2, 1, 3]


# -- invalid events --------------------------------------------------------------------------------------------


@pytest.mark.req("SC-19")
def test_invalid_events_are_refused(store: Store) -> None:
    for name, data in [("paid", "[1]"), ("paid", "7"), ("paid", "null"), (" ", "{}"), ("", "{}"), ("x" * 101, "{}")]:
        with pytest.raises(HoldfastError) as caught:
            send(store, name, data)
        assert caught.value.code == "broken_invariant", (name, data)
    assert send(store).created


@pytest.mark.req("HF-6")
def test_event_for_an_unknown_job_is_refused_and_not_recorded(store: Store) -> None:
    (known,) = put(store, spec())
    for job_id, tenant in ((new_id(), "default"), (known, "acme")):
        with pytest.raises(NotFound, match="no job"):
            store.run(store.ledger.send(SendEvent(new_id(), "paid", "{}", "k", job_id), "ada", tenant))
    first = store.run(store.ledger.send(SendEvent(new_id(), "paid", "{}", "k", known), "ada", "default"))
    again = store.run(store.ledger.send(SendEvent(new_id(), "paid", "{}", "k", new_id()), "ada", "default"))
    assert (again.id, first.created, again.created) == (first.id, True, False)

"""What is accepted is stored whole, in order, and exactly as it was asked for; what is not, leaves nothing."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from holdfast.engine.payload import JsonValue
from holdfast.engine.retry import GENTLE, Retry
from holdfast.engine.states import State
from holdfast.errors import Conflict, HoldfastError, Refused
from holdfast.features.assembly import Store
from holdfast.stores.requests import JobFilter
from tests.support.direct_sql import ByHand
from tests.support.stores import (
    claim,
    enqueue,
    forward,
    history,
    job,
    new_id,
    open_lease,
    put,
    put_one,
    spec,
    tries,
)

EVERYTHING: JsonValue = {
    "text": 'naïve ☃ "quoted" \\ \n',
    "numbers": [0, -1, 1.5, 10**15, 2**53 + 1],
    "nothing": None,
    "flags": [True, False],
    "deep": {"a": [{"b": {}}]},
    "%s": "%(percent)s :colon ?",
}


@pytest.mark.req("CX-15", "DP-10", "DP-11", "CX-19", "CX-17")
def test_every_fact_comes_back_as_it_was_given(store: Store) -> None:
    now = forward(store)
    parent = put_one(store)
    asked = spec(
        "report.make",
        payload=EVERYTHING,
        queue="reports",
        priority=-7,
        run_at=datetime(2031, 5, 6, 7, 8, 9, 123456, UTC),
        deadline_at=datetime(2032, 1, 1, tzinfo=UTC),
        retry=Retry(max_attempts=8, backoff=GENTLE, max_crashes=1),
        key="r-1",
        content_key="c-1",
        tags=("blue", "näh"),
        agent="agent-7",
        correlation_id="corr",
        causation_id="cause",
        parent_id=parent,
        workflow_id=new_id(),
        external_ref="ext:42",
        enqueued_by="ada",
        source_system="billing",
    )
    put(store, asked)
    found = job(store, asked.id)
    same = ("id", "kind", "queue", "priority", "run_at", "deadline_at", "content_key", "tags", "agent",
            "correlation_id", "causation_id", "parent_id", "workflow_id", "external_ref", "enqueued_by",
            "source_system")  # fmt: skip
    assert {name: getattr(found, name) for name in same} == {name: getattr(asked, name) for name in same}
    assert (found.payload, found.idempotency_key, found.backoff) == (EVERYTHING, "r-1", GENTLE.to_json())
    assert (found.max_attempts, found.max_crashes, found.created_at) == (8, 1, now)
    assert (found.state, found.attempt, found.due_at) == (State.QUEUED, 0, asked.run_at)


@pytest.mark.req("CX-17", "DP-9")
def test_a_plain_first_job_does_not_hide_the_facts_of_later_jobs(store: Store) -> None:
    now = forward(store)
    later = now + timedelta(hours=1)
    plain, tagged, delayed, late = spec(), spec(tags=("blue",)), spec(run_at=later), spec(deadline_at=later)
    put(store, plain, tagged, delayed, late)
    assert [job(store, each.id).due_at for each in (plain, tagged, delayed, late)] == [None, None, later, None]
    assert job(store, late.id).deadline_at == later
    listed = store.run(store.jobs.list(JobFilter(tenant="default", tag="blue")))
    assert [each.id for each in listed] == [tagged.id]


@pytest.mark.req("SC-2", "CX-2")
def test_a_thousand_at_once_keep_their_order(store: Store) -> None:
    specs = [spec(payload={"n": n}) for n in range(1000)]
    answers = enqueue(store, *specs)
    assert [answer.id for answer in answers] == [each.id for each in specs]
    assert all(answer.created and answer.reason is None for answer in answers)
    taken = claim(store, open_lease(store), 1000)
    assert [each.id for each in taken] == [each.id for each in specs]
    listed = store.run(store.jobs.list(JobFilter(tenant="default", limit=1000)))
    assert [each.id for each in listed] == [each.id for each in reversed(specs)]


@pytest.mark.req("SC-2")
def test_positions_have_gaps_to_move_into(store: Store) -> None:
    jobs = [job(store, job_id) for job_id in put(store, *(spec() for _ in range(5)))]
    assert all(later.position - sooner.position >= 100 for sooner, later in pairwise(jobs))


@pytest.mark.req("SC-2")
def test_nothing_to_enqueue_is_no_error(store: Store) -> None:
    assert enqueue(store) == []


@pytest.mark.req("DP-11", "CX-4")
def test_who_enqueued_is_the_actor_of_the_first_event(store: Store) -> None:
    (event,) = history(store, put_one(store, enqueued_by="ada"))
    assert (event.type, event.name, event.actor) == ("enqueue", "job.enqueue", "ada")
    assert (event.from_state, event.to_state, event.attempt) == (None, State.QUEUED, 0)


BAD: dict[str, dict[str, Any]] = {
    "no kind": {"kind": None},
    "blank kind": {"kind": "  "},
    "long kind": {"kind": "k" * 101},
    "blank queue": {"queue": ""},
    "blank enqueued_by": {"enqueued_by": " "},
    "white enqueued_by": {"enqueued_by": "\t\n"},
    "blank source_system": {"source_system": ""},
    "huge priority": {"priority": 40_000},
}


@pytest.mark.req("SC-19", "DP-11")
@pytest.mark.parametrize("fault", BAD)
def test_one_bad_row_stores_nothing_of_its_batch(store: Store, by_hand: ByHand, fault: str) -> None:
    before = by_hand.contents()
    good = [spec(key=f"k-{n}", content_key=f"c-{n}", tags=("t",)) for n in range(3)]
    bad = dataclasses.replace(spec(), **BAD[fault])
    with pytest.raises(HoldfastError) as caught:
        enqueue(store, good[0], bad, *good[1:])
    assert caught.value.code in ("broken_invariant", "invalid_input")
    assert by_hand.contents() == before
    assert [answer.created for answer in enqueue(store, *good)] == [True] * 3


@pytest.mark.req("SC-19", "DP-11", "CX-4")
def test_one_alone_is_what_it_would_be_among_others(store: Store, by_hand: ByHand) -> None:
    """A plain job that comes alone may take a shorter road; nobody sees by which one a job came."""
    forward(store)
    facts: dict[str, Any] = {"payload": EVERYTHING, "queue": "q", "priority": -3, "retry": tries(2, crashes=0)}
    alone, among, other = (spec(**facts) for _ in range(3))
    put(store, alone)
    put(store, among, other)
    assert told(store, alone.id) == told(store, among.id)

    before = by_hand.contents()
    for fault in BAD:
        with pytest.raises(HoldfastError) as caught:
            enqueue(store, dataclasses.replace(spec(), **BAD[fault]))
        assert caught.value.code in ("broken_invariant", "invalid_input"), fault
    with pytest.raises(Conflict, match="already"):
        enqueue(store, dataclasses.replace(alone, payload="{}"))
    assert by_hand.contents() == before


def told(store: Store, job_id: str) -> list[dict[str, Any]]:
    """What is known of a job, less what is its own: its id and its places."""
    whole = [dataclasses.asdict(job(store, job_id)), *map(dataclasses.asdict, history(store, job_id))]
    own = {"id", "job_id", "position", "seq", "cursor"}
    return [{name: value for name, value in each.items() if name not in own} for each in whole]


@pytest.mark.req("SC-19", "CX-2")
def test_the_same_id_twice_is_a_conflict_and_stores_nothing(store: Store, by_hand: ByHand) -> None:
    first = spec(payload={"first": True})
    put(store, first)
    before = by_hand.contents()
    with pytest.raises(Conflict) as caught:
        enqueue(store, spec(), dataclasses.replace(first, payload="{}"))
    assert caught.value.code == "already_exists"
    twice = spec()
    with pytest.raises(Conflict):
        enqueue(store, twice, twice)
    assert by_hand.contents() == before


@pytest.mark.req("JF-1")
@pytest.mark.parametrize("tenant", ["*", "", "  "])
def test_a_job_belongs_to_one_tenant(store: Store, tenant: str) -> None:
    with pytest.raises(Refused):
        enqueue(store, spec(), tenant=tenant)


@pytest.mark.req("DP-10")
def test_a_child_inherits_what_it_does_not_set(store: Store) -> None:
    workflow = new_id()
    root = put_one(store, workflow_id=workflow)
    named = put_one(store, correlation_id="order-7")
    child, grandchild = put_one(store, parent_id=root), put_one(store, parent_id=named)
    own = put_one(store, parent_id=named, correlation_id="own", workflow_id=workflow)
    assert (job(store, child).correlation_id, job(store, child).workflow_id) == (root, workflow)
    assert (job(store, grandchild).correlation_id, job(store, grandchild).workflow_id) == ("order-7", None)
    assert (job(store, own).correlation_id, job(store, own).workflow_id) == ("own", workflow)
    assert job(store, root).correlation_id is None


@pytest.mark.req("DP-10", "JF-1", "DP-3")
def test_a_parent_of_another_tenant_is_not_found(store: Store) -> None:
    foreign = put_one(store, tenant="acme", correlation_id="secret")
    answers = enqueue(store, spec(), spec(parent_id=foreign), spec(parent_id=new_id()), spec())
    assert [answer.created for answer in answers] == [True, False, False, True]
    assert [answer.reason for answer in answers] == [None, "parent_not_found", "parent_not_found", None]
    assert [answer.id is None for answer in answers] == [False, True, True, False]
    assert sum(store.run(store.jobs.counts("default")).values()) == 2

"""Accepted jobs are stored completely, in order and unchanged; refused jobs leave nothing behind."""

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
def test_every_field_is_stored_unchanged(store: Store) -> None:
    now = forward(store)
    parent = put_one(store)
    requested = spec(
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
    put(store, requested)
    stored = job(store, requested.id)
    same = ("id", "kind", "queue", "priority", "run_at", "deadline_at", "content_key", "tags", "agent",
            "correlation_id", "causation_id", "parent_id", "workflow_id", "external_ref", "enqueued_by",
            "source_system")  # fmt: skip
    assert {name: getattr(stored, name) for name in same} == {name: getattr(requested, name) for name in same}
    assert (stored.payload, stored.idempotency_key, stored.backoff) == (EVERYTHING, "r-1", GENTLE.to_json())
    assert (stored.max_attempts, stored.max_crashes, stored.created_at) == (8, 1, now)
    assert (stored.state, stored.attempt, stored.due_at) == (State.QUEUED, 0, requested.run_at)


@pytest.mark.req("CX-17", "DP-9")
def test_plain_first_job_does_not_hide_fields_of_later_jobs(store: Store) -> None:
    now = forward(store)
    later = now + timedelta(hours=1)
    plain, tagged, delayed, late = spec(), spec(tags=("blue",)), spec(run_at=later), spec(deadline_at=later)
    put(store, plain, tagged, delayed, late)
    assert [job(store, each.id).due_at for each in (plain, tagged, delayed, late)] == [None, None, later, None]
    assert job(store, late.id).deadline_at == later
    listed = store.run(store.jobs.list(JobFilter(tenant="default", tag="blue")))
    assert [each.id for each in listed] == [tagged.id]


@pytest.mark.req("SC-2", "CX-2")
def test_batch_of_a_thousand_keeps_its_order(store: Store) -> None:
    specs = [spec(payload={"n": n}) for n in range(1000)]
    answers = enqueue(store, *specs)
    assert [answer.id for answer in answers] == [each.id for each in specs]
    assert all(answer.created and answer.reason is None for answer in answers)
    taken = claim(store, open_lease(store), 1000)
    assert [each.id for each in taken] == [each.id for each in specs]
    listed = store.run(store.jobs.list(JobFilter(tenant="default", limit=1000)))
    assert [each.id for each in listed] == [each.id for each in reversed(specs)]


@pytest.mark.req("SC-2")
def test_new_positions_leave_gaps_for_moves(store: Store) -> None:
    jobs = [job(store, job_id) for job_id in put(store, *(spec() for _ in range(5)))]
    assert all(later.position - sooner.position >= 100 for sooner, later in pairwise(jobs))


@pytest.mark.req("SC-2")
def test_empty_batch_is_accepted(store: Store) -> None:
    assert enqueue(store) == []


@pytest.mark.req("DP-11", "CX-4")
def test_first_event_names_the_enqueuing_actor(store: Store) -> None:
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
def test_one_invalid_job_refuses_its_whole_batch(store: Store, by_hand: ByHand, fault: str) -> None:
    before = by_hand.contents()
    good = [spec(key=f"k-{n}", content_key=f"c-{n}", tags=("t",)) for n in range(3)]
    bad = dataclasses.replace(spec(), **BAD[fault])
    with pytest.raises(HoldfastError) as caught:
        enqueue(store, good[0], bad, *good[1:])
    assert caught.value.code in ("broken_invariant", "invalid_input")
    assert by_hand.contents() == before
    assert [answer.created for answer in enqueue(store, *good)] == [True] * 3


@pytest.mark.req("SC-19", "DP-11", "CX-4")
def test_single_enqueue_stores_the_same_as_a_batch(store: Store, by_hand: ByHand) -> None:
    """A single plain job may take a faster path; the stored result is the same."""
    forward(store)
    facts: dict[str, Any] = {"payload": EVERYTHING, "queue": "q", "priority": -3, "retry": tries(2, crashes=0)}
    alone, among, other = (spec(**facts) for _ in range(3))
    put(store, alone)
    put(store, among, other)
    assert facts_of(store, alone.id) == facts_of(store, among.id)

    before = by_hand.contents()
    for fault in BAD:
        with pytest.raises(HoldfastError) as caught:
            enqueue(store, dataclasses.replace(spec(), **BAD[fault]))
        assert caught.value.code in ("broken_invariant", "invalid_input"), fault
    with pytest.raises(Conflict, match="already"):
        enqueue(store, dataclasses.replace(alone, payload="{}"))
    assert by_hand.contents() == before


def facts_of(store: Store, job_id: str) -> list[dict[str, Any]]:
    """The fields of a job and its events, without ids and positions."""
    whole = [dataclasses.asdict(job(store, job_id)), *map(dataclasses.asdict, history(store, job_id))]
    own = {"id", "job_id", "position", "seq", "cursor"}
    return [{name: value for name, value in each.items() if name not in own} for each in whole]


@pytest.mark.req("SC-19", "CX-2")
def test_duplicate_id_is_a_conflict_and_stores_nothing(store: Store, by_hand: ByHand) -> None:
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
def test_enqueue_requires_one_tenant(store: Store, tenant: str) -> None:
    with pytest.raises(Refused):
        enqueue(store, spec(), tenant=tenant)


@pytest.mark.req("DP-10")
def test_child_inherits_unset_fields(store: Store) -> None:
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
def test_parent_of_another_tenant_is_not_found(store: Store) -> None:
    foreign = put_one(store, tenant="acme", correlation_id="secret")
    answers = enqueue(store, spec(), spec(parent_id=foreign), spec(parent_id=new_id()), spec())
    assert [answer.created for answer in answers] == [True, False, False, True]
    assert [answer.reason for answer in answers] == [None, "parent_not_found", "parent_not_found", None]
    assert [answer.id is None for answer in answers] == [False, True, True, False]
    assert sum(store.run(store.jobs.counts("default")).values()) == 2

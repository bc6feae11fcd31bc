"""Waiting jobs of a disabled agent are not started, do not block other jobs, and return when it is enabled (CX-16)."""

from __future__ import annotations

import pytest

from holdfast.engine.states import State
from holdfast.features.agents.model import DISABLED_DELAY
from holdfast.features.assembly import Store
from holdfast.stores.requests import ClaimRequest, Reschedule
from tests.support.direct_sql import ByHand
from tests.support.features import disable, enable
from tests.support.features import set_agent as register
from tests.support.stores import (
    BROKEN,
    FINAL,
    LATER,
    claim,
    forward,
    job,
    open_lease,
    put,
    put_one,
    settle,
    spec,
    state_of,
    take,
    types_of,
    work,
)

pytestmark = pytest.mark.req("CX-16")


def claimed(store: Store, want: int = 100, **fields: object) -> list[str]:
    return [each.id for each in claim(store, open_lease(store), want, **fields)]  # type: ignore[arg-type]


@pytest.mark.slow
def test_waiting_jobs_of_a_disabled_agent_are_not_started(store: Store) -> None:
    register(store)
    ids = put(store, spec(agent="planner"), spec(), spec(agent="planner"), spec(agent="other"), spec())
    disable(store)
    assert claimed(store) == [ids[1], ids[3], ids[4]]
    assert [state_of(store, each) for each in (ids[0], ids[2])] == [State.QUEUED, State.QUEUED]


def test_enabling_returns_held_jobs_to_their_positions(store: Store) -> None:
    register(store)
    ids = put(store, *(spec(agent="planner") for _ in range(5)), spec())
    disable(store)
    assert claimed(store) == ids[5:]
    later = put_one(store)
    assert enable(store) == 5
    assert claimed(store) == [*ids[:5], later]
    assert {event_type for each in ids[:5] for event_type in types_of(store, each)} == {"enqueue", "take"}, (
        "holding adds no events"
    )


def test_jobs_never_held_by_a_claim_need_no_return(store: Store) -> None:
    register(store)
    ids = put(store, spec(agent="planner"), spec(agent="planner"))
    disable(store)
    assert enable(store) == 0
    assert claimed(store) == ids


def test_held_jobs_return_after_the_hold_time(store: Store) -> None:
    """The process that enables an agent may die half-way: its jobs then return within ten minutes."""
    forward(store)
    register(store)
    job_id = put_one(store, agent="planner")
    disable(store)
    assert claimed(store) == []
    forward(store, DISABLED_DELAY.total_seconds())
    assert store.run(store.leases.promote()) == 1
    assert claimed(store) == []
    store.run(store.agents.enable("planner", "default"))  # without `resume`
    assert claimed(store) == []
    forward(store, DISABLED_DELAY.total_seconds())
    store.run(store.leases.promote())
    assert claimed(store) == [job_id]


def test_running_job_continues_and_its_retry_is_held(store: Store) -> None:
    forward(store)
    register(store)
    job_id = put_one(store, agent="planner")
    held = take(store)
    disable(store)
    assert settle(store, held, BROKEN) == []
    assert state_of(store, job_id) is State.RETRY_WAITING
    forward(store, 300)
    store.run(store.leases.promote())
    assert claimed(store) == []
    enable(store)
    assert claimed(store) == [job_id]


def test_leased_job_continues_and_a_released_one_is_held(store: Store) -> None:
    """Leased jobs are already claimed by a worker; a released one waits."""
    register(store)
    first, second = put(store, spec(agent="planner"), spec(agent="planner"))
    lease = open_lease(store)
    claim(store, lease, 2, begin=False)
    disable(store)
    assert store.run(store.leases.start(lease, [first], "*")) == {first: 1}
    assert store.run(store.leases.release(lease, [second], "*")) == [second]
    assert claimed(store) == []


@pytest.mark.parametrize("way", ["redrive", "reschedule", "snooze"])
def test_jobs_that_return_to_the_queue_are_held(store: Store, way: str) -> None:
    forward(store)
    register(store)
    job_id = put_one(store, agent="planner", delay=60 if way == "reschedule" else None)
    if way == "redrive":
        work(store, FINAL)
    elif way == "snooze":
        work(store, LATER)
    disable(store)
    match way:
        case "redrive":
            store.run(store.jobs.operate("redrive", [job_id], None, "ada", "default"))
        case "reschedule":
            store.run(store.jobs.reschedule([job_id], Reschedule(), None, "ada", "default"))
        case _:
            forward(store, 60)
            store.run(store.leases.promote())
    assert claimed(store) == []
    assert state_of(store, job_id) is State.QUEUED
    enable(store)
    assert claimed(store) == [job_id]


def test_same_agent_of_another_tenant_is_not_held(store: Store) -> None:
    for tenant in ("default", "acme"):
        register(store, tenant=tenant)
    put_one(store, agent="planner")
    theirs = put_one(store, agent="planner", tenant="acme")
    disable(store)
    assert claimed(store) == [theirs]


@pytest.mark.slow
@pytest.mark.parametrize("want", [1, 16])
def test_thousands_of_held_jobs_do_not_block_a_claim(store: Store, want: int) -> None:
    """The first claim postpones all of them; later claims do not even read them."""
    register(store)
    for _ in range(3):
        put(store, *(spec(agent="planner", priority=5) for _ in range(600)))
    others = put(store, *(spec() for _ in range(20)))
    disable(store)
    lease = open_lease(store)
    request = ClaimRequest(lease=lease, queues=("default",), want=want)
    assert [each.id for each in store.run(store.leases.exchange([], request)).claims] == others[:want]
    health = store.run(store.health.get("default"))
    assert (health.backlog, health.scheduled) == (20 - want, 1800)
    assert enable(store) == 1800


def test_claims_by_queue_and_kind_skip_held_jobs(store: Store) -> None:
    """A claim narrowed by queue or kind holds jobs back and continues its search."""
    register(store)
    put(store, *(spec("plan", agent="planner", queue=queue) for queue in ("a", "b") for _ in range(3)))
    one, two, three = put(store, spec("mail", queue="a"), spec("mail", queue="b", priority=-1), spec("plan", queue="b"))
    disable(store)
    assert claimed(store, queues=("a", "b"), kinds=("plan",), want=2) == [three]
    assert claimed(store, queues=("b", "a")) == [two, one]


def test_claim_after_a_position_skips_held_jobs(store: Store) -> None:
    """A worker claims from a position when walking the head of the queue has become slow."""
    register(store)
    first = put_one(store, priority=1)
    held = put(store, *(spec(agent="planner", priority=priority) for priority in (1, 0)))
    free = put(store, spec(priority=1), spec(priority=0))
    taken = take(store)
    assert taken.id == first
    disable(store)
    lease = open_lease(store)
    position = {"default": (taken.priority, taken.position)}
    exchange = store.run(
        store.leases.exchange([], ClaimRequest(lease=lease, queues=("default",), want=9, after=position))
    )
    assert [each.id for each in exchange.claims] == free
    assert {job(store, each).state for each in held} == {State.QUEUED}


@pytest.mark.req("DP-9")
def test_held_job_still_expires_at_its_deadline(store: Store) -> None:
    forward(store)
    register(store, max_wait=60)
    job_id = put_one(store, agent="planner")
    disable(store)
    assert claimed(store) == []
    forward(store, 61)
    assert store.run(store.leases.expire()) == 1
    assert (state_of(store, job_id), job(store, job_id).error_code) == (State.FAILED, "deadline_passed")


@pytest.mark.req("CX-11")
def test_held_job_can_be_cancelled(store: Store) -> None:
    register(store)
    job_id = put_one(store, agent="planner")
    disable(store)
    assert claimed(store) == []
    store.run(store.jobs.operate("cancel", [job_id], None, "ada", "default"))
    assert enable(store) == 0
    assert state_of(store, job_id) is State.CANCELLED


def test_resume_does_nothing_while_the_agent_is_disabled(store: Store) -> None:
    register(store)
    put_one(store, agent="planner")
    disable(store)
    assert claimed(store) == []
    assert store.run(store.agents.resume("planner", 10, "default")) == 0
    assert claimed(store) == []


def test_enabling_does_not_release_delayed_jobs(store: Store) -> None:
    register(store)
    put(store, spec(agent="planner", delay=60), spec(agent="planner"))
    disable(store)
    assert claimed(store) == []
    assert enable(store) == 1


def test_held_job_notes_the_reason(store: Store, by_hand: ByHand) -> None:
    register(store)
    job_id = put_one(store, agent="planner")
    disable(store)
    claimed(store)
    ((note,),) = by_hand.execute("select note from job_state where id = :id", {"id": job_id})
    assert "agent_disabled" in str(note)


def test_held_job_can_be_rescheduled_to_the_same_time(store: Store) -> None:
    """Rescheduled, held, rescheduled again while the clock stands still: the ledger has two events."""
    forward(store)
    register(store)
    job_id = put_one(store, agent="planner", delay=100)
    again = Reschedule()
    (one,) = store.run(store.jobs.reschedule([job_id], again, "now", "ada", "default"))
    assert not one.refused
    disable(store)
    assert claim(store, open_lease(store)) == []
    (two,) = store.run(store.jobs.reschedule([job_id], again, "now", "ada", "default"))
    assert not two.refused
    assert types_of(store, job_id) == ["enqueue", "reschedule", "reschedule"]

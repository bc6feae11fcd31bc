"""Tenants are isolated on every store: every operation, called with ids of another tenant (JF-1, fault 33)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from holdfast.engine.job import Sweep, Verdict
from holdfast.engine.outcome import Succeeded
from holdfast.engine.settlement import Settlement
from holdfast.engine.states import State
from holdfast.errors import Conflict, StaleLease
from holdfast.features.assembly import Store
from holdfast.stores.flow import Flow
from holdfast.stores.requests import ClaimRequest, JobFilter, OperatorAction
from tests.support.direct_sql import ByHand
from tests.support.ledger import read_events
from tests.support.stores import (
    claim,
    enqueue,
    forward,
    open_lease,
    put,
    put_one,
    settle,
    spec,
    take,
)

pytestmark = pytest.mark.req("JF-1")

MINE, THEIRS = "umbrella", "acme"


@dataclass
class Theirs:
    """Rows of the other tenant: a finished, a running and a queued job, and the lease."""

    done: str
    running: str
    queued: str
    lease: str


@pytest.fixture
def theirs(store: Store) -> Theirs:
    put(store, *(spec(tags=("t",), agent="a", correlation_id="c") for _ in range(3)), tenant=THEIRS)
    lease = open_lease(store, tenant=THEIRS)
    done, running = claim(store, lease, 2, tenant=THEIRS)
    for held in (done, running):
        assert store.run(store.steps.save_checkpoint(held.id, lease, 1, "p", '"secret"', THEIRS))
        assert store.run(store.steps.add_artifact(held.id, lease, 1, "f", "file:secret", THEIRS))
    settle(store, done, Succeeded('"secret"'), tenant=THEIRS)
    (queued,) = (each.id for each in store.run(store.jobs.list(JobFilter(tenant=THEIRS, state=State.QUEUED))))
    return Theirs(done.id, running.id, queued, lease)


def test_reads_return_nothing_of_another_tenant(store: Store, theirs: Theirs) -> None:
    run = store.run
    for job_id in (theirs.done, theirs.running, theirs.queued):
        assert run(store.jobs.get(job_id, MINE)) is None
        assert run(store.jobs.history(job_id, MINE)) == []
        assert run(store.jobs.attempts(job_id, MINE)) == []
        assert run(store.jobs.artifacts(job_id, MINE)) == []
        assert run(store.jobs.checkpoints(job_id, MINE)) == {}
        assert run(store.jobs.result(job_id, MINE)) is None
    assert run(store.jobs.counts(MINE)) == {}
    assert read_events(store, tenant=MINE) == []
    result = run(store.health.get(MINE))
    assert (result.backlog, result.in_progress, result.lease_active, result.waiting_kinds) == (0, 0, 0, ())


@pytest.mark.parametrize(
    "wanted",
    [
        JobFilter(tenant=MINE),
        JobFilter(tenant=MINE, state=State.QUEUED),
        JobFilter(tenant=MINE, kind="mail.send"),
        JobFilter(tenant=MINE, tag="t"),
        JobFilter(tenant=MINE, tag="t", state=State.SUCCEEDED),
        JobFilter(tenant=MINE, agent="a"),
        JobFilter(tenant=MINE, correlation_id="c"),
        JobFilter(tenant=MINE, queue="default"),
    ],
)
def test_no_filter_lists_jobs_of_another_tenant(store: Store, theirs: Theirs, wanted: JobFilter) -> None:
    assert store.run(store.jobs.list(wanted)) == []
    mine = put_one(store, tenant=MINE, tags=("t",), agent="a", correlation_id="c")
    result = [job.id for job in store.run(store.jobs.list(wanted))]
    assert result in ([mine], [])
    assert theirs.queued not in result


def test_writes_do_not_find_jobs_of_another_tenant(store: Store, by_hand: ByHand, theirs: Theirs) -> None:
    """With a lease of my tenant: jobs of the other tenant are not found."""
    run = store.run
    lease = open_lease(store, tenant=MINE)
    before = by_hand.contents()
    running = theirs.running
    assert run(store.jobs.list(JobFilter(tenant=MINE, parent_id=theirs.done))) == []
    types: tuple[OperatorAction, ...] = ("cancel", "redrive", "discard")
    for event_type in types:
        not_found = Verdict(running, None, True, "not_found")
        assert run(store.jobs.operate(event_type, [running], "mine now", "eve", MINE)) == [not_found]
    assert run(store.leases.start(lease, [theirs.queued, running], MINE)) == {}
    assert run(store.leases.release(lease, [theirs.queued, running], MINE)) == []
    assert run(store.leases.settle(lease, [Settlement(running, 1, "succeeded")], MINE)) == [running]
    assert not run(store.steps.save_checkpoint(running, lease, 1, "p", "1", MINE))
    assert not run(store.steps.add_artifact(running, lease, 1, "g", "file:g", MINE))
    assert claim(store, lease, 10, tenant=MINE) == []
    (answer,) = enqueue(store, spec(parent_id=running), tenant=MINE)
    assert (answer.created, answer.id, answer.reason) == (False, None, "parent_not_found")
    assert by_hand.contents() == before


def test_lease_of_another_tenant_is_stale(store: Store, by_hand: ByHand, theirs: Theirs) -> None:
    """With a leaked lease token of the other tenant: it is unknown in mine."""
    run = store.run
    before = by_hand.contents()
    settlement = Settlement(theirs.running, 1, "succeeded")
    assert not run(store.leases.renew(theirs.lease, 30, MINE))
    assert not run(store.leases.end(theirs.lease, "mine", MINE))
    calls: list[Flow[Any]] = [
        store.leases.claim(ClaimRequest(lease=theirs.lease, queues=("default",), want=1, tenant=MINE)),
        store.leases.start(theirs.lease, [theirs.queued], MINE),
        store.leases.release(theirs.lease, [theirs.queued], MINE),
        store.leases.settle(theirs.lease, [settlement], MINE),
        store.steps.save_checkpoint(theirs.running, theirs.lease, 1, "p", "1", MINE),
        store.steps.add_artifact(theirs.running, theirs.lease, 1, "g", "file:g", MINE),
    ]
    for call in calls:
        with pytest.raises(StaleLease):
            run(call)
    assert by_hand.contents() == before


def test_maintenance_of_one_tenant_leaves_others_alone(store: Store, by_hand: ByHand, theirs: Theirs) -> None:
    forward(store)
    now = store.run(store.clock.now())
    put(store, spec(delay=1), spec(deadline_at=now + timedelta(seconds=1)), tenant=THEIRS)
    forward(store, 3600)
    before = by_hand.contents()
    assert store.run(store.leases.promote(100, MINE)) == 0
    assert store.run(store.leases.expire(100, MINE)) == 0
    assert store.run(store.leases.recover(100, MINE)) == Sweep(0, 0, 0)
    assert by_hand.contents() == before
    assert store.run(store.leases.recover(100, THEIRS)) == Sweep(1, 0, 1)


def test_keys_and_cursors_are_per_tenant(store: Store) -> None:
    for tenant in (MINE, THEIRS):
        put(store, spec(key="k", content_key="c", dedupe="skip", payload=tenant), tenant=tenant)
        assert store.run(store.ledger.save_cursor("consumer", "0", None, tenant))
    assert store.run(store.ledger.cursor("consumer", "nobody")) is None


def test_duplicate_id_does_not_change_a_job_of_another_tenant(store: Store, by_hand: ByHand, theirs: Theirs) -> None:
    before = by_hand.contents()
    with pytest.raises(Conflict):
        enqueue(store, spec(id=theirs.queued, payload={"evil": True}), tenant=MINE)
    assert by_hand.contents() == before


@pytest.mark.parametrize("name", ["a'b", 'a"b', "a;b", "%", "_", "a b", "ä", "default'--", "NULL", "-"])
def test_tenant_names_with_special_characters(store: Store, name: str) -> None:
    job_id = put_one(store, tenant=name)
    assert store.run(store.jobs.get(job_id, name)) is not None
    assert store.run(store.jobs.get(job_id, "default")) is None
    assert take(store, tenant=name).id == job_id
    assert [event.tenant for event in read_events(store, tenant=name)] == [name, name]

"""The same flows on an event loop: one definition, two runners, the same results."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.engine.job import Enqueued, Sweep, Verdict
from holdfast.engine.outcome import Succeeded
from holdfast.engine.settlement import decide
from holdfast.engine.states import State
from holdfast.errors import Refused, StaleLease
from holdfast.features.assembly import Store
from holdfast.stores.flow import Flow
from holdfast.stores.requests import ClaimRequest, JobFilter
from tests.support.stores import FINAL, new_id, spec

pytestmark = pytest.mark.req("CX-15", "SC-18")


async def test_job_lifecycle_on_an_event_loop(store: Store) -> None:
    specs = [spec(payload={"n": n}) for n in range(3)]
    answers = await store.arun(store.jobs.enqueue(specs, "default"))
    assert answers == [Enqueued(each.id, True) for each in specs]
    lease = await store.arun(store.leases.open("worker-1", 30, "*"))
    claims = await store.arun(store.leases.claim(ClaimRequest(lease=lease.id, queues=("default",), want=2)))
    assert [each.id for each in claims] == [each.id for each in specs[:2]]
    assert await store.arun(store.leases.renew(lease.id, 30, "*"))
    assert await store.arun(store.steps.save_checkpoint(claims[0].id, lease.id, 1, "p", "[1]", "*"))
    settlements = [decide(claims[0], Succeeded('{"ok":true}'), 1.0), decide(claims[1], FINAL, 1.0)]
    assert await store.arun(store.leases.settle(lease.id, settlements, "*")) == []
    assert await store.arun(store.leases.settle(lease.id, settlements[:1], "*")) == [claims[0].id]
    redriven = await store.arun(store.jobs.operate("redrive", [claims[1].id], None, "ada", "default"))
    assert redriven == [Verdict(claims[1].id, State.QUEUED, False, None)]
    result = await store.arun(store.jobs.result(claims[0].id, "default"))
    assert result is not None
    assert result.value == {"ok": True}
    assert await store.arun(store.jobs.counts("default")) == {State.SUCCEEDED: 1, State.QUEUED: 2}
    listed = await store.arun(store.jobs.list(JobFilter(tenant="default")))
    assert [each.id for each in listed] == [each.id for each in reversed(specs)]
    history = await store.arun(store.jobs.history(claims[0].id, "default"))
    assert [event.type for event in history] == ["enqueue", "take", "succeed"]
    await store.aclose()


async def test_sync_and_async_runners_return_the_same(store: Store) -> None:
    jobs = [spec(tags=("t",), priority=n) for n in range(5)]
    await store.arun(store.jobs.enqueue(jobs, "default"))
    store.run(store.leases.open("worker-1", 30, "*"))
    reads: list[Flow[Any]] = [
        store.jobs.get(jobs[0].id, "default"),
        store.jobs.list(JobFilter(tenant="default", tag="t")),
        store.jobs.history(jobs[1].id, "default"),
        store.jobs.counts("*"),
        store.ledger.cursor("nobody", "*"),
    ]
    for read in reads:
        assert await store.arun(read) == store.run(read)
    page = store.ledger.read(None, 2, "*")
    ours, theirs = await store.arun(page), store.run(page)
    assert [event.seq for event in ours] == [event.seq for event in theirs]
    await store.aclose()


async def test_first_calls_of_a_store_from_many_tasks(store: Store) -> None:
    await asyncio.gather(*(store.arun(store.clock.now()) for _ in range(12)))
    await store.aclose()


async def test_async_calls_raise_the_same_errors(store: Store) -> None:
    with pytest.raises(StaleLease):
        await store.arun(store.leases.claim(ClaimRequest(lease=new_id(), queues=("default",), want=1)))
    with pytest.raises(Refused) as caught:
        await store.arun(store.jobs.enqueue([spec(), spec(enqueued_by=" ")], "default"))
    assert caught.value.code == "broken_invariant"
    assert await store.arun(store.jobs.counts("*")) == {}
    await store.aclose()


@pytest.mark.req("DP-7", "DP-8")
async def test_concurrent_tasks_claim_disjoint_jobs(store: Store) -> None:
    await store.arun(store.jobs.enqueue([spec() for _ in range(60)], "default"))
    leases = [await store.arun(store.leases.open(f"w-{n}", 30, "*")) for n in range(10)]
    requests = [ClaimRequest(lease=lease.id, queues=("default",), want=5) for lease in leases]
    batches = await asyncio.gather(*(store.arun(store.leases.claim(request)) for request in requests))
    taken = [each.id for batch in batches for each in batch]
    assert len(taken) == len(set(taken)) == 50
    assert await store.arun(store.leases.recover()) == Sweep(0, 0, 0)
    await store.aclose()


async def test_cancelled_task_leaves_the_store_usable(store: Store) -> None:
    tasks = [asyncio.create_task(store.arun(store.jobs.enqueue([spec()], "default"))) for _ in range(10)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert not [each for each in ended if isinstance(each, Exception)]
    stored = await store.arun(store.jobs.counts("*"))
    assert 5 <= stored[State.QUEUED] <= 10
    await store.aclose()

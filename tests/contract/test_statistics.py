"""Statistics of queues and workers, capped counts of tenants, and the ledger in pages: the same on every store."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from holdfast.engine.states import State
from holdfast.features.assembly import Store
from holdfast.features.audit import store as audit
from holdfast.features.audit.store import EventFilter
from holdfast.features.health import snapshot as reads
from holdfast.features.health.statistics import QueueStatus
from holdfast.stores.requests import ClaimRequest
from tests.support.features import share
from tests.support.stores import forward, put, spec, take

LATER = datetime(2100, 1, 1, tzinfo=UTC)

pytestmark = pytest.mark.req("JF-16", "DP-19")


def queues(store: Store, tenant: str) -> dict[str, QueueStatus]:
    return {each.queue: each for each in store.run(store.health.statistics(tenant)).queues}


def test_statistics_of_one_tenant_and_of_all(store: Store) -> None:
    share(store)  # the order of the queue, without fair shares between tenants
    run = store.run
    put(store, *(spec(queue="mail") for _ in range(3)), spec(queue="mail", run_at=LATER))
    put(store, spec(queue="mail"), spec(queue="own"), tenant="acme")
    lease = run(store.leases.open("host-1", 30.0, "*", "crew", ["mail.send"], ["mail"], 4)).id
    other = run(store.leases.open("host-2", 30.0, "acme", "crew")).id
    run(store.leases.open("host-3", 0.01, "acme", "crew"))
    assert len(run(store.leases.claim(ClaimRequest(lease=lease, queues=("mail",), want=1)))) == 1
    run(store.leases.end(other, "done", "acme"))
    forward(store, 1.0)

    own = queues(store, "default")
    assert set(own) == {"mail"}
    mail = own["mail"]
    assert (mail.waiting, mail.scheduled, mail.retrying, mail.running) == (2, 1, 0, 1)
    assert mail.oldest_age_s is not None
    assert mail.oldest_age_s > 0
    every = queues(store, "*")
    assert {name: (each.waiting, each.running) for name, each in every.items()} == {"mail": (3, 1), "own": (1, 0)}
    assert every["mail"].scheduled == 1
    assert every["own"].oldest_age_s is not None

    for tenant in ("default", "acme", "*"):
        (worker,) = run(store.health.statistics(tenant)).workers
        assert (worker.holder, worker.label, worker.tenant, worker.slots, worker.busy) == ("host-1", "crew", "*", 4, 1)
        assert (worker.kinds, worker.queues) == (("mail.send",), ("mail",))
        assert worker.opened_at <= worker.renewed_at < worker.until


@pytest.mark.parametrize("tenant", ["default", "*"])
def test_oldest_age_ignores_a_job_that_was_released(store: Store, tenant: str) -> None:
    """The first job by id is not the one that has waited longest."""
    forward(store)
    put(store, spec(), spec())
    first = take(store)
    forward(store, 100)
    store.run(store.leases.release(first.lease, [first.id], "*"))
    forward(store, 5)
    age = queues(store, tenant)["default"].oldest_age_s
    assert age == pytest.approx(105, abs=1), "not the five seconds of the released job"


@pytest.mark.req("JF-12")
def test_tenant_counts_are_capped(store: Store) -> None:
    for tenant, jobs in (("acme", 5), ("globex", 2), ("initech", 1)):
        put(store, *(spec() for _ in range(jobs)), tenant=tenant)
    take(store, tenant="acme")
    counted = store.run(store.tenants.list("*", most=3))
    assert [(each.name, each.pending, each.running) for each in counted] == [
        ("acme", 3, 1),
        ("globex", 2, 0),
        ("initech", 1, 0),
    ]
    assert [each.name for each in store.run(store.tenants.list("*", most=3, names=2))] == ["acme", "globex"]
    assert store.run(store.tenants.list("*", most=100)) == store.run(store.tenants.list("*"))
    assert [each.name for each in store.run(store.tenants.list("globex", most=3))] == ["globex"]


@pytest.mark.req("HF-4", "DP-2")
def test_recent_events_are_read_backwards_in_bounded_pages(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, *(spec(kind=f"kind-{n % 2}") for n in range(6)))
    put(store, spec(), tenant="acme")
    take(store, tenant="acme")
    run = store.run
    first = run(store.audit.recent_events(EventFilter(tenant="default", limit=4)))
    rest = run(store.audit.recent_events(EventFilter(tenant="default", limit=4, before=first.before)))
    numbers = [event.seq for event in (*first.events, *rest.events)]
    assert len(numbers) == 6
    assert numbers == sorted(numbers, reverse=True)
    assert rest.before is None
    assert {event.tenant for event in first.events} == {"default"}
    odd = run(store.audit.recent_events(EventFilter(tenant="*", kind="kind-1")))
    assert [event.kind for event in odd.events] == ["kind-1"] * 3
    started = run(store.audit.recent_events(EventFilter(tenant="*", type="take")))
    assert [event.to_state for event in started.events] == [State.IN_PROGRESS]
    assert run(store.audit.recent_events(EventFilter(tenant="*", since=LATER))).events == []

    monkeypatch.setattr(audit, "EVENTS_SCANNED", 3)
    result, before, pages = 0, None, 0
    while pages < 20:
        page = run(store.audit.recent_events(EventFilter(tenant="default", actor="nobody", before=before)))
        result, before, pages = result + len(page.events), page.before, pages + 1
        if before is None:
            break
    assert (result, pages > 2, before) == (0, True, None), "the search ends, a few rows at a time"


@pytest.mark.parametrize("tenant", ["default", "*"])
def test_listed_workers_equal_the_statistics(store: Store, tenant: str) -> None:
    put(store, spec(queue="mail"), spec(queue="mail", run_at=LATER), spec(queue="other"))
    store.run(store.leases.open("host-1", 30.0, "*", "crew", ["mail.send"], ["mail"], 4))
    statistics, current = store.run(store.health.statistics(tenant)), store.run(store.health.workers(tenant))
    assert [(each.queue, each.waiting, each.scheduled) for each in current.queues] == [
        ("mail", 1, 1),
        ("other", 1, 0),
    ]
    assert [replace(each, oldest_age_s=None) for each in current.queues] == [
        replace(each, oldest_age_s=None) for each in statistics.queues
    ]
    assert (current.workers, current.capped) == (statistics.workers, statistics.capped)


def test_young_queue_has_an_age(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the first rows read belongs to this queue."""
    monkeypatch.setattr(reads, "WALK", 2)
    forward(store)
    put(store, *(spec(queue="old") for _ in range(3)))
    forward(store, 60)
    put(store, spec(queue="young"), spec(queue="young", run_at=LATER))
    forward(store, 5)
    result = queues(store, "default")
    assert result["old"].oldest_age_s == pytest.approx(65, abs=1)
    assert result["young"].oldest_age_s == pytest.approx(5, abs=1)

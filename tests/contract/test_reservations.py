"""Reservations (SC-10): one at a time, no job starts meanwhile, the queue keeps its order; they end or expire."""

from __future__ import annotations

import pytest

from holdfast.engine.job import EVERY_TENANT
from holdfast.features.assembly import Store
from holdfast.features.limits.model import Reservation, ReservationRequest, ReservationStatus
from tests.support.stores import TENANT, claim, forward, new_id, open_lease, put, settle, spec

pytestmark = pytest.mark.req("SC-10")


def ask(scope: str = "all", name: str = "*", ttl: float = 30.0) -> ReservationRequest:
    return ReservationRequest(new_id(), scope, name, ttl, "by hand")


def reserve(store: Store, request: ReservationRequest, actor: str = "ada", tenant: str = TENANT) -> ReservationStatus:
    return store.run(store.reservations.set(request, actor, tenant))


def release(store: Store, request: ReservationRequest, why: str = "done", tenant: str = TENANT) -> bool:
    return store.run(store.reservations.release(request.id, why, "ada", tenant))


def every(store: Store, tenant: str = TENANT) -> dict[str, Reservation]:
    return {each.id: each for each in store.run(store.reservations.list(tenant, ended=True))}


def test_no_job_starts_in_a_reserved_scope_and_the_order_stays(store: Store) -> None:
    lease, queues = open_lease(store, ttl=1e6), ("default", "q")
    specs = [
        spec(queue="q"),
        spec(queue="q", priority=5),
        spec(uses=("resource:gpu-0",)),
        spec(uses=("resource:gpu-0",), priority=5),
        spec(uses=("resource:gpu-1",)),
    ]
    low, high, gpu_low, gpu_high, other = put(store, *specs)
    queue, gpu, everything = ask("queue", "q"), ask("resource", "gpu-0"), ask()
    assert reserve(store, queue) == ReservationStatus("active", 0, 0)
    assert reserve(store, gpu) == ReservationStatus("active", 0, 0)
    (held,) = claim(store, lease, 9, queues=queues)
    assert held.id == other
    assert claim(store, lease, 9, queues=queues) == []
    assert reserve(store, everything) == ReservationStatus("waiting", 1, 2), "it waits for both"
    later = ask("queue", "elsewhere")
    assert reserve(store, later) == ReservationStatus("waiting", 0, 1), "later requests wait behind it"
    assert release(store, queue)
    assert [each.id for each in claim(store, lease, 1, queues=queues)] == [high]
    assert release(store, gpu)
    assert not release(store, gpu)
    assert reserve(store, everything) == ReservationStatus("active", 2, 0)
    assert claim(store, lease, 9, queues=queues) == []
    settle(store, held)
    assert reserve(store, everything) == ReservationStatus("active", 1, 0), "running jobs continue, and are counted"
    assert reserve(store, later).ahead == 1
    assert release(store, everything)
    assert [each.id for each in claim(store, lease, 9, queues=queues)] == [gpu_high, gpu_low, low]
    assert reserve(store, later) == ReservationStatus("active", 0, 0)


def test_reservation_expires_without_renewal(store: Store) -> None:
    lease = open_lease(store, ttl=1e6)
    forward(store)
    (job,) = put(store, spec(uses=("resource:gpu-0",)))
    gpu, gone, next_one = ask("resource", "gpu-0", 10), ask("resource", "gpu-0", 5), ask("resource", "gpu-0", 30)
    assert reserve(store, gpu).state == "active"
    assert reserve(store, gone).state == "waiting"
    assert reserve(store, next_one).ahead == 2
    forward(store, 9)
    assert reserve(store, gpu).state == "active", "renewed"
    assert reserve(store, next_one).ahead == 1, "an expired request is not waited for"
    forward(store, 9)
    assert claim(store, lease) == []
    forward(store, 1)
    assert reserve(store, next_one) == ReservationStatus("active", 0, 0), "at once, without a maintenance task"
    assert reserve(store, gpu).state == "expired", "it stays expired"
    assert not release(store, gpu)
    result = every(store)
    assert [result[each.id].state for each in (gpu, gone, next_one)] == ["expired", "withdrawn", "active"]
    assert (result[gpu.id].holder, result[gpu.id].ended_why) == ("ada", "the reservation was not renewed")
    assert claim(store, lease) == []
    forward(store, 31)
    assert store.run(store.limits.attend()) >= 1
    assert [each.id for each in claim(store, lease)] == [job]
    assert store.run(store.reservations.list(TENANT)) == []


def test_reservation_of_a_tenant_does_not_affect_others(store: Store) -> None:
    lease = open_lease(store)
    for tenant in ("a", "b"):
        put(store, spec(), spec(), tenant=tenant)
    own, all_of_them = ask(), ask("queue", "default")
    assert reserve(store, own, tenant="a").state == "active"
    assert [each.tenant for each in claim(store, lease, 1)] == ["b"]
    assert reserve(store, ask(), tenant="b") == ReservationStatus("active", 1, 0)
    assert claim(store, lease, 9) == []
    assert reserve(store, all_of_them, tenant=EVERY_TENANT).state == "waiting"
    assert release(store, own, tenant="b") is False
    assert {each.tenant for each in every(store, "a").values()} == {"a", "*"}

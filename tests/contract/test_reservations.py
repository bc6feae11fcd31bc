"""Direct reservations (SC-10): one at a time, no job begun meanwhile, the order as it was; they end or run out."""

from __future__ import annotations

import pytest

from holdfast.engine.job import EVERY_TENANT
from holdfast.features.assembly import Store
from holdfast.features.limits.model import Ask, Reservation, Standing
from tests.support.stores import TENANT, claim, forward, new_id, open_lease, put, settle, spec

pytestmark = pytest.mark.req("SC-10")


def ask(scope: str = "all", name: str = "*", ttl: float = 30.0) -> Ask:
    return Ask(new_id(), scope, name, ttl, "by hand")


def reserve(store: Store, asked: Ask, actor: str = "ada", tenant: str = TENANT) -> Standing:
    return store.run(store.reservations.set(asked, actor, tenant))


def release(store: Store, asked: Ask, why: str = "done", tenant: str = TENANT) -> bool:
    return store.run(store.reservations.release(asked.id, why, "ada", tenant))


def every(store: Store, tenant: str = TENANT) -> dict[str, Reservation]:
    return {each.id: each for each in store.run(store.reservations.list(tenant, ended=True))}


def test_nothing_is_begun_in_what_is_reserved_and_the_order_stays(store: Store) -> None:
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
    assert reserve(store, queue) == Standing("active", 0, 0)
    assert reserve(store, gpu) == Standing("active", 0, 0)
    (held,) = claim(store, lease, 9, queues=queues)
    assert held.id == other
    assert claim(store, lease, 9, queues=queues) == []
    assert reserve(store, everything) == Standing("waiting", 1, 2), "it waits for both"
    later = ask("queue", "elsewhere")
    assert reserve(store, later) == Standing("waiting", 0, 1), "and nobody gets before it"
    assert release(store, queue)
    assert [each.id for each in claim(store, lease, 1, queues=queues)] == [high]
    assert release(store, gpu)
    assert not release(store, gpu)
    assert reserve(store, everything) == Standing("active", 2, 0)
    assert claim(store, lease, 9, queues=queues) == []
    settle(store, held)
    assert reserve(store, everything) == Standing("active", 1, 0), "what runs goes on, and is counted"
    assert reserve(store, later).ahead == 1
    assert release(store, everything)
    assert [each.id for each in claim(store, lease, 9, queues=queues)] == [gpu_high, gpu_low, low]
    assert reserve(store, later) == Standing("active", 0, 0)


def test_it_runs_out_when_nobody_keeps_it_alive(store: Store) -> None:
    lease = open_lease(store, ttl=1e6)
    forward(store)
    (job,) = put(store, spec(uses=("resource:gpu-0",)))
    gpu, gone, next_one = ask("resource", "gpu-0", 10), ask("resource", "gpu-0", 5), ask("resource", "gpu-0", 30)
    assert reserve(store, gpu).state == "active"
    assert reserve(store, gone).state == "waiting"
    assert reserve(store, next_one).ahead == 2
    forward(store, 9)
    assert reserve(store, gpu).state == "active", "kept alive"
    assert reserve(store, next_one).ahead == 1, "who has gone from the line is not waited for"
    forward(store, 9)
    assert claim(store, lease) == []
    forward(store, 1)
    assert reserve(store, next_one) == Standing("active", 0, 0), "at once, and not when somebody tidies up"
    assert reserve(store, gpu).state == "expired", "and it does not come back"
    assert not release(store, gpu)
    found = every(store)
    assert [found[each.id].state for each in (gpu, gone, next_one)] == ["expired", "withdrawn", "active"]
    assert (found[gpu.id].holder, found[gpu.id].ended_why) == ("ada", "nobody kept it alive")
    assert claim(store, lease) == []
    forward(store, 31)
    assert store.run(store.limits.attend()) >= 1
    assert [each.id for each in claim(store, lease)] == [job]
    assert store.run(store.reservations.list(TENANT)) == []


def test_a_tenant_keeps_nobody_else_away_and_everybody_is_kept_by_all(store: Store) -> None:
    lease = open_lease(store)
    for tenant in ("a", "b"):
        put(store, spec(), spec(), tenant=tenant)
    own, all_of_them = ask(), ask("queue", "default")
    assert reserve(store, own, tenant="a").state == "active"
    assert [each.tenant for each in claim(store, lease, 1)] == ["b"]
    assert reserve(store, ask(), tenant="b") == Standing("active", 1, 0)
    assert claim(store, lease, 9) == []
    assert reserve(store, all_of_them, tenant=EVERY_TENANT).state == "waiting"
    assert release(store, own, tenant="b") is False
    assert {each.tenant for each in every(store, "a").values()} == {"a", "*"}

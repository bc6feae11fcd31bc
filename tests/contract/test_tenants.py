"""The registry of tenants and the cap on waiting jobs (JF-12): exact for every way to enqueue."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.outcome import Failed, Snoozed
from holdfast.errors import Refused
from holdfast.features.assembly import Store, open_store
from holdfast.features.audit.store import ActionFilter
from tests.support.direct_sql import ByHand
from tests.support.features import fill, tenants
from tests.support.features import register_tenant as register
from tests.support.schedules import add, decided, firing
from tests.support.steps import asks
from tests.support.stores import apply, claim, enqueue, forward, new_id, open_lease, put, put_one, settle, spec, work

pytestmark = pytest.mark.req("JF-12")


def test_full_tenant_is_refused_and_others_are_not(store: Store) -> None:
    register(store, "acme", max_pending=3, title="Acme Ltd.")
    fill(store, 2, "acme")
    with pytest.raises(Refused) as refused:
        fill(store, 2, "acme")
    assert refused.value.code == "tenant_full"
    assert "tenant acme has 2 waiting jobs and may have 3: 2 of kind mail.send refused" in str(refused.value)
    fill(store, 5, "other")
    put_one(store, tenant="acme", key="k")
    with pytest.raises(Refused):
        put_one(store, tenant="acme")
    (again,) = enqueue(store, spec(key="k"), tenant="acme")
    assert (again.created, again.reason) == (False, "duplicate_key"), "a duplicate is still reported as such"
    acme = tenants(store)["acme"]
    assert (acme.pending, acme.running, acme.max_pending, acme.title) == (3, 0, 3, "Acme Ltd.")
    register(store, "acme", max_pending=None)
    fill(store, 2, "acme")
    assert tenants(store)["acme"].pending == 5


def test_every_transition_updates_the_pending_count(store: Store) -> None:
    fill(store, 1, "acme")
    register(store, "acme", max_pending=4)
    fill(store, 3, "acme")
    lease = open_lease(store)
    done, again, asleep, released = claim(store, lease, 4)
    fill(store, 4, "acme")  # all four are running
    settle(store, done)
    settle(store, again, Failed("broken", "once"))
    settle(store, asleep, Snoozed(60.0))
    store.run(store.jobs.operate("cancel", [released.id], None, "ada", "acme"))
    with pytest.raises(Refused, match="has 6 waiting jobs and may have 4"):
        fill(store, 1, "acme")
    work(store, want=3)  # retries are not due yet
    fill(store, 1, "acme")
    with pytest.raises(Refused, match="has 4 waiting jobs"):
        fill(store, 1, "acme")
    forward(store, 120.0)
    store.run(store.leases.promote())
    with pytest.raises(Refused, match="has 4 waiting jobs"):
        fill(store, 1, "acme")
    assert len(work(store, want=9)) == 4
    fill(store, 4, "acme")


def test_approval_notification_may_exceed_the_cap(store: Store) -> None:
    register(store, "acme", max_pending=1)
    put_one(store, tenant="acme")
    lease = open_lease(store)
    (asking,) = claim(store, lease)
    put_one(store, tenant="acme")
    assert apply(store, lease, asks(asking, new_id(), notify="tell")) == []
    assert tenants(store)["acme"].pending == 2, "the notification may exceed the cap"
    with pytest.raises(Refused):
        put_one(store, tenant="acme")


def test_schedule_of_a_full_tenant_fails_and_others_fire(store: Store) -> None:
    register(store, "acme", max_pending=0)
    planned = {tenant: add(store, tenant) for tenant in ("acme", "other")}
    decisions = [decided(each, firing()) for each in planned.values()]
    assert store.run(store.schedules.fire(decisions, EVERY_TENANT)) == 2
    assert (tenants(store)["other"].pending, tenants(store)["acme"].pending) == (1, 0)
    (fire,) = store.run(store.schedules.fires(planned["acme"].id, "acme"))
    assert (fire.status, fire.error_code) == ("failed", "tenant_full")


def test_concurrent_enqueues_fill_a_tenant_exactly(store: Store) -> None:
    register(store, "acme", max_pending=25)
    outcomes: list[str] = []
    begin = threading.Barrier(4)

    def enqueues() -> None:
        with closing(open_store(store.url)) as own:
            begin.wait()
            for _ in range(5):
                try:
                    put(own, spec(), spec(), tenant="acme")
                    outcomes.append("in")
                except Refused as refused:
                    outcomes.append(refused.code)

    threads = [threading.Thread(target=enqueues) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["in"] * 12 + ["tenant_full"] * 8
    assert tenants(store)["acme"].pending == 24


def test_cap_applies_to_hand_written_inserts(store: Store, by_hand: ByHand) -> None:
    register(store, "acme", max_pending=1)
    put_one(store, tenant="acme")
    refusal = by_hand.refusal(
        "INSERT INTO job (id, tenant, kind, enqueued_by, source_system, created_at)"
        " SELECT :id, tenant, kind, enqueued_by, source_system, created_at FROM job",
        {"id": new_id()},
    )
    assert refusal is not None
    assert "waiting jobs" in refusal or "tenant full" in refusal


def test_tenant_settings_persist_and_max_running_is_a_limit(store: Store) -> None:
    register(store, "acme", max_running=2, rate="100/m", burst=100, weight=5)
    register(store, "acme", max_pending=9)
    acme = tenants(store, "acme")["acme"]
    assert (acme.max_running, acme.rate, acme.per, acme.weight, acme.max_pending) == (2, 100, 60.0, 5, 9)
    (limit,) = store.run(store.limits.list("acme"))
    assert (limit.tenant, limit.scope, limit.name, limit.concurrency, limit.rate) == ("acme", "tenant", "acme", 2, 100)
    assert store.run(store.limits.list("other")) == [], "limits of a tenant are invisible to others"
    fill(store, 4, "acme")
    assert len(claim(store, open_lease(store), 9)) == 2
    register(store, "acme", rate=None, max_running=3)
    assert len(claim(store, open_lease(store), 9)) == 1
    register(store, "acme", max_running=None)
    assert store.run(store.limits.list("acme")) == []
    assert tenants(store, "acme")["acme"].registered
    assert store.run(store.tenants.remove("acme", "ada"))
    assert not store.run(store.tenants.remove("acme", "ada"))
    gone = tenants(store)["acme"]
    assert (gone.registered, gone.max_pending, gone.pending, gone.running) == (False, None, 1, 3)


def test_tenant_sees_only_itself(store: Store) -> None:
    register(store, "acme", weight=2)
    fill(store, 2, "acme", "other")
    assert set(tenants(store, "other")) == {"other"}
    assert set(tenants(store)) == {"acme", "other"}


def test_registered_only_refuses_unregistered_tenants(store: Store, by_hand: ByHand) -> None:
    """For every way to enqueue. Waiting jobs still run, retry and request approval; schedules record the refusal."""
    waiting, _ = put(store, spec(retry_as="new_job"), spec(), tenant="acme")
    schedule = add(store, "acme")
    register(store, "known")
    assert not store.run(store.tenants.registered_only())
    assert store.run(store.tenants.set_registered_only(True, "ada"))
    assert not store.run(store.tenants.set_registered_only(True, "bob")), "it was set already"
    with pytest.raises(Refused, match="tenant_unregistered"):
        put(store, spec(), spec(), tenant="acme")
    refusal = str(by_hand.refusal("insert into job (tenant, kind) values ('acme', 'x')"))
    assert "registered" in refusal
    put_one(store, tenant="known")
    assert store.run(store.schedules.fire([decided(schedule, firing())], EVERY_TENANT)) == 1
    (fire,) = store.run(store.schedules.fires(schedule.id, "acme"))
    assert (fire.status, fire.error_code) == ("failed", "tenant_unregistered")
    lease = open_lease(store, tenant="acme")
    failing, asking = claim(store, lease, 2, tenant="acme")
    settle(store, failing, Failed("x", "y"), tenant="acme")
    assert len(store.run(store.jobs.chain(waiting, "acme"))) == 2
    assert apply(store, lease, asks(asking, new_id(), notify="tell"), tenant="acme") == []
    register(store, "acme")
    put_one(store, tenant="acme")
    store.run(store.tenants.remove("acme", "ada"))
    with pytest.raises(Refused, match="tenant_unregistered"):
        put_one(store, tenant="acme")
    assert store.run(store.tenants.set_registered_only(False, "eve"))
    put_one(store, tenant="acme")
    done = store.run(store.audit.actions(ActionFilter(tenant=EVERY_TENANT, subject="tenants")))
    assert [(each.actor, each.name, each.changed) for each in reversed(done)] == [
        ("ada", "registered only", {"registered": [False, True]}),
        ("eve", "registered only", {"registered": [True, False]}),
    ]

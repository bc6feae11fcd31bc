"""Registries of kinds and event types, and the policies of a deployment (DP-25, DP-6)."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from holdfast.errors import HoldfastError, InvalidInput, Refused
from holdfast.features.agents.model import Definition
from holdfast.features.assembly import Store
from holdfast.features.audit.store import ActionFilter
from holdfast.features.registry.model import BUILT_IN, EventTypeDraft, Policies, check_policies
from holdfast.stores.requests import ClaimRequest, JobFilter, SendEvent
from tests.support.direct_sql import ByHand
from tests.support.schedules import add, decided, firing
from tests.support.steps import asks
from tests.support.stores import (
    BROKEN,
    apply,
    enqueue,
    forward,
    job,
    new_id,
    open_lease,
    put,
    put_one,
    settle,
    spec,
    take,
    tries,
)

pytestmark = pytest.mark.req("DP-25")

SCHEMA = {
    "type": "object",
    "required": ["order"],
    "properties": {"order": {"type": "integer", "minimum": 1}, "code": {"pattern": "^[a-z]+$"}},
    "additionalProperties": False,
}
INSERT_EVENT = (
    "insert into app_event (id, tenant, name, data, sent_by, sent_at) values (:id, 'default', :name, :data, 'me', 1)"
)


def policy(store: Store, **what: Any) -> Policies:
    return store.run(store.policies.set(what, "ada"))


def register(store: Store, *kinds: str) -> None:
    store.run(store.kinds.register(dict.fromkeys(kinds), "ada"))


def send(store: Store, name: str = "order.paid", *, key: str | None = None, **data: Any) -> str:
    return store.run(store.ledger.send(SendEvent(new_id(), name, json.dumps(data), key), "ada", "default")).id


def refused(store: Store, *specs: Any, tenant: str = "default") -> str:
    with pytest.raises(Refused) as raised:
        enqueue(store, *specs, tenant=tenant)
    assert raised.value.fix
    return raised.value.code


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    messages = [record.getMessage() for record in caplog.records if record.name == "holdfast.store"]
    caplog.clear()
    return messages


def test_unknown_kinds_are_accepted_warned_about_or_refused(
    store: Store, by_hand: ByHand, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    put_one(store, "made.up")
    assert store.run(store.kinds.unregistered("*")) == [], "nothing is checked by default"
    register(store, "mail.send", "mail.read")
    assert [each.name for each in store.run(store.kinds.list("default"))] == ["mail.read", "mail.send"]
    policy(store, unknown_kinds="warn")
    put(store, spec("mail.send"), spec("typo"), spec("typo"), spec("http.request"))
    put_one(store, "typo")
    assert [(each.registry, each.name) for each in store.run(store.kinds.unregistered("*"))] == [("kind", "typo")]
    assert store.run(store.kinds.unregistered("acme")) == [], "a tenant reads its own names"
    assert warned(caplog) == ["Accepted: kind typo is not registered"], "logged once"
    waiting = put_one(store, "typo", retry=tries(2))
    policy(store, unknown_kinds="refuse")
    assert refused(store, spec("typo")) == "kind_unregistered"
    assert refused(store, spec("mail.send"), spec("other")) == "kind_unregistered", "a batch is accepted whole or not"
    for name in BUILT_IN:
        put_one(store, name)
    refusal = by_hand.refusal("insert into job (tenant, kind) values ('default', 'by.hand')")
    assert refusal is not None
    assert "registered" in refusal
    settle(store, next(each for each in claims(store) if each.id == waiting), BROKEN)
    forward(store, 3600)
    store.run(store.leases.promote())
    assert job(store, waiting).state == "queued", "an accepted job is retried"
    register(store, "typo")
    put_one(store, "typo")
    assert store.run(store.kinds.unregistered("*")) == [], "registered meanwhile"
    assert store.run(store.kinds.remove("typo", "ada"))
    assert not store.run(store.kinds.remove("typo", "ada"))
    assert refused(store, spec("typo")) == "kind_unregistered"
    policy(store, unknown_kinds="accept")
    put_one(store, "typo")


def claims(store: Store) -> list[Any]:
    request = ClaimRequest(lease=open_lease(store), queues=("default",), want=100)
    return store.run(store.leases.exchange([], request)).claims


def test_retry_as_new_job_works_for_a_removed_kind(store: Store) -> None:
    register(store, "mail.send")
    old = put_one(store, agent="who", retry=tries(2), retry_as="new_job")
    store.run(store.kinds.remove("mail.send", "ada"))
    policy(store, unknown_kinds="refuse", unknown_agents="refuse")
    settle(store, take(store), BROKEN)
    (new,) = [each for each in store.run(store.jobs.list(JobFilter(tenant="*"))) if each.id != old]
    assert new.retry_of == old


def test_policy_refuses_scheduled_jobs_but_not_notifications(store: Store) -> None:
    schedule = add(store, "default")
    register(store, "mail.send")
    put_one(store)
    policy(store, unknown_kinds="refuse")
    assert store.run(store.schedules.fire([decided(schedule, firing())], "*")) == 1
    (fire,) = store.run(store.schedules.fires(schedule.id, "default"))
    assert (fire.status, fire.error_code) == ("failed", "kind_unregistered")
    taken = take(store)
    assert apply(store, taken.lease, asks(taken, new_id(), notify="tell")) == []
    assert [each.kind for each in store.run(store.jobs.list(JobFilter(tenant="*")))] == ["tell", "mail.send"]


def test_unknown_agents_are_warned_about_or_refused(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    store.run(store.agents.set(Definition.of("planner"), "default", "ada"))
    policy(store, unknown_agents="warn")
    put(store, spec(agent="planner"), spec(agent="stranger"), spec())
    assert warned(caplog) == ["Accepted: agent stranger is not registered"]
    policy(store, unknown_agents="refuse")
    assert refused(store, spec(agent="stranger")) == "agent_unregistered"
    assert refused(store, spec(agent="planner"), tenant="acme") == "agent_unregistered", "agents belong to a tenant"
    put(store, spec(agent="planner"), spec())


def test_event_types_are_checked_against_their_schemas(
    store: Store, by_hand: ByHand, caplog: pytest.LogCaptureFixture
) -> None:
    def code(**data: Any) -> str:
        with pytest.raises(Refused) as raised:
            send(store, **data)
        assert raised.value.fix
        return raised.value.code

    caplog.set_level(logging.WARNING)
    draft = EventTypeDraft.of("order.paid", "billing", SCHEMA, "An order was paid.")
    made = store.run(store.event_types.set(draft, "ada"))
    assert (made.domain, made.schema, made.set_by) == ("billing", SCHEMA, "ada")
    assert store.run(store.event_types.set(draft, "bob")) == made, "the same draft changes nothing"
    assert store.run(store.event_types.list("billing", "default")) == [made]
    assert store.run(store.event_types.list("other", "default")) == []
    first = send(store, key="k", order="x")
    send(store, "unknown")
    policy(store, unknown_event_types="warn")
    send(store, "unknown")
    send(store, order=0)
    about_type, about_data = warned(caplog)
    assert about_type == "Accepted: event type unknown is not registered"
    assert "the data of event order.paid does not fit its schema" in about_data
    policy(store, unknown_event_types="refuse")
    assert code(name="unknown") == "event_type_unregistered"
    for data in ({}, {"order": "x"}, {"order": 0}, {"order": 1, "more": 2}):
        assert code(**data) == "event_data_invalid", data
    assert send(store, key="k", order="x") == first, "a duplicate key returns the first event"
    send(store, order=7)
    if store.embedded:
        assert code(order=7, code="UPPER") == "event_data_invalid"
        for name in ("unknown", "order.paid"):
            refusal = by_hand.refusal(INSERT_EVENT, {"id": new_id(), "name": name, "data": "{}"})
            assert refusal is not None
            assert refusal.startswith("event ")
    else:
        send(store, order=7, code="UPPER")  # the database does not check patterns
        answer = by_hand.execute("select id, refused, reason from send_event('unknown', '{}')")
        assert answer == [(None, True, "event_type_unregistered")]
        assert by_hand.execute("select reason, detail from send_event('order.paid', '{}')") == [
            ("event_data_invalid", "the data of event order.paid does not fit its schema: missing order")
        ]
    assert store.run(store.event_types.remove("order.paid", "ada"))
    assert store.run(store.event_types.get("order.paid", "default")) is None


@pytest.mark.req("DP-6")
def test_empty_executor_list_allows_everyone_or_nobody(store: Store) -> None:
    lease = open_lease(store)
    waiting = put_one(store)
    request = ClaimRequest(lease=lease, queues=("default",), want=1)
    assert policy(store, empty_executors="nobody").empty_executors == "nobody"
    for attempt in (
        lambda: store.run(store.leases.exchange([], request)),
        lambda: store.run(store.leases.claim(request)),
        lambda: open_lease(store),
    ):
        with pytest.raises(Refused) as raised:
            attempt()
        assert raised.value.code == "executor_refused"
    store.run(store.executors.set("worker", "executor", "ada"))
    assert [each.id for each in store.run(store.leases.exchange([], request)).claims] == [waiting]
    store.run(store.executors.remove("worker"))
    with pytest.raises(Refused):
        open_lease(store)
    policy(store, empty_executors="everyone")
    open_lease(store)


@pytest.mark.req("JF-1")
def test_tenant_required_policy_refuses_the_default_tenant(store: Store, by_hand: ByHand) -> None:
    policy(store, tenant_required=True)
    assert refused(store, spec()) == "tenant_required"
    put(store, spec(), tenant="acme")
    assert by_hand.refusal("insert into job (tenant, kind) values ('default', 'x')")
    if not store.embedded:
        assert by_hand.execute("select refused, reason from enqueue('x')") == [(True, "tenant_required")]
        for blank in ("", " ", "*"):
            refusal = by_hand.refusal("select * from enqueue('x', for_tenant => :tenant)", {"tenant": blank})
            answer = refusal or by_hand.execute("select * from enqueue('x', for_tenant => :tenant)", {"tenant": blank})
            assert refusal or answer[0][3] is True, answer
    assert {each.tenant for each in store.run(store.jobs.list(JobFilter(tenant="*")))} == {"acme"}


@pytest.mark.req("JF-12")
def test_pending_includes_running_policy_counts_running_jobs(store: Store, by_hand: ByHand) -> None:
    store.run(store.tenants.set("default", {"max_pending": 2}, "ada"))
    put(store, spec(), spec())
    held = claims(store)
    put(store, spec())
    policy(store, pending_includes_running=True)
    assert refused(store, spec()) == "tenant_full"
    assert by_hand.refusal("insert into job (tenant, kind) values ('default', 'x')")
    settle(store, held[:1])
    assert refused(store, spec()) == "tenant_full", "one job runs and one waits"
    settle(store, held[1:])
    put(store, spec())
    claims(store)
    assert refused(store, spec()) == "tenant_full", "a claimed job still counts"
    policy(store, pending_includes_running=False)
    put(store, spec(), spec())


def test_invalid_policies_are_refused_and_changes_recorded(store: Store) -> None:
    assert store.run(store.policies.get()) == Policies()
    for what in ({"unknown_kinds": "maybe"}, {"tenant_required": "yes"}, {"unknown_moods": "warn"}, {"other": True}):
        with pytest.raises((InvalidInput, HoldfastError)):
            store.run(store.policies.set(what, "ada"))
    assert store.run(store.policies.get()) == Policies()
    policy(store, unknown_kinds="warn", tenant_required=True)
    policy(store, unknown_kinds="warn")
    register(store, "a")
    with pytest.raises(HoldfastError):
        register(store, "ok", " ")
    recorded = [
        (each.subject, each.name, each.actor) for each in store.run(store.audit.actions(ActionFilter(tenant="*")))
    ]
    assert sorted(recorded) == [
        ("kind", "a", "ada"),
        ("policies", "tenant_required", "ada"),
        ("policies", "unknown_kinds", "ada"),
    ]


FACTS: dict[str, dict[str, Any]] = {
    "key": {"key": "k-1"},
    "executor": {"executor": "gpu-1"},
    "agent": {"agent": "planner"},
}


@pytest.mark.every_case
@pytest.mark.req("DP-27")
@pytest.mark.parametrize("fact", FACTS)
def test_required_facts_are_enforced_for_tenants_and_kinds(store: Store, by_hand: ByHand, fact: str) -> None:
    name = f"{fact}_required"
    assert getattr(policy(store, **{name: ["kind:pay", "tenant:acme"]}), name) == ("kind:pay", "tenant:acme")
    for kind, tenant in (("pay", "default"), ("mail", "acme")):
        with pytest.raises(Refused, match=name) as refused:
            put(store, spec("mail"), spec(kind), tenant=tenant)
        assert (
            f"jobs of kind {kind if tenant == 'default' else 'mail'} in tenant {tenant} need" in refused.value.message
        )
        assert refused.value.fix is not None
        put_one(store, kind, tenant=tenant, **FACTS[fact])
    put_one(store, "mail")
    put_one(store, "webhook.deliver", tenant="acme")
    message = by_hand.refusal("insert into job (tenant, kind) values ('default', 'pay')")
    assert message is not None
    assert "required" in message or "need an" in message
    assert getattr(policy(store, **{name: ["*"]}), name) == ("*",)
    with pytest.raises(Refused, match=name):
        put_one(store, "mail")
    schedule = add(store, "default")
    assert store.run(store.schedules.fire([decided(schedule, firing())], "*")) == 1
    (fire,) = store.run(store.schedules.fires(schedule.id, "default"))
    assert (fire.status, fire.error_code) == ("failed", name)
    (action,) = store.run(store.audit.actions(ActionFilter(tenant="*", subject="policies", limit=1)))
    assert action.changed == {name: [["kind:pay", "tenant:acme"], ["*"]]}
    assert policy(store, **{name: []}) == Policies()
    put_one(store, "pay")


@pytest.mark.req("DP-27")
@pytest.mark.parametrize("wrong", ["pay", "queue:x", "kind:", 7, [None], True, {"a": 1}.items()])
def test_malformed_requirements_are_refused(store: Store, wrong: Any) -> None:
    with pytest.raises(HoldfastError, match="invalid"):
        check_policies({"key_required": wrong})


@pytest.mark.req("DP-27")
def test_retries_and_approval_notices_need_no_required_fact(store: Store) -> None:
    old = put_one(store, "pay", retry_as="new_job")
    policy(store, key_required=["*"])
    settle(store, take(store), BROKEN)
    assert len(store.run(store.jobs.chain(old, "default"))) == 2

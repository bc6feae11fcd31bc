"""Pauses (DP-18): paused jobs do not start, a paused system changes nothing, and every job returns."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast.engine.job import Claim
from holdfast.engine.outcome import Failed
from holdfast.engine.states import State
from holdfast.errors import HoldfastError, InvalidInput, InvalidSetting, Refused
from holdfast.features.agents.model import Definition
from holdfast.features.assembly import Store
from holdfast.features.dead_letters.model import NewOperation
from holdfast.features.limits.model import PauseDraft, Rule
from holdfast.features.retention.model import RetentionRule
from holdfast.stores.requests import JobFilter
from tests.support.direct_sql import ByHand
from tests.support.features import pause, paused, resume
from tests.support.steps import asks, entry
from tests.support.stores import (
    apply,
    claim,
    enqueue,
    forward,
    job,
    new_id,
    open_lease,
    put,
    put_one,
    settle,
    spec,
    state_of,
    take,
    tries,
    types_of,
)

pytestmark = pytest.mark.req("DP-18")

QUEUES = ("default", "mail")


def test_paused_jobs_do_not_start_and_return_in_order(store: Store) -> None:
    """Each scope in sequence, for all tenants and for one."""
    lease = open_lease(store, ttl=1e6)
    jobs = [
        spec("pay", queue="mail"),
        spec("pay"),
        spec("other", agent="bot"),
        spec("other", priority=3),
    ]
    mine = put(store, *jobs)
    theirs = put(store, *(spec(each.kind, queue=each.queue, agent=each.agent) for each in jobs[:3]), tenant="acme")
    expected: dict[str, list[str]] = {
        "queue mail": [mine[3], mine[1], mine[2], theirs[1], theirs[2]],
        "queue mail of tenant acme": [mine[3], mine[1], mine[2], theirs[1], theirs[2], mine[0]],
        "kind pay": [mine[3], mine[2], theirs[2]],
        "kind pay of tenant acme": [mine[3], mine[1], mine[2], theirs[2], mine[0]],
        "agent bot": [mine[3], mine[1], theirs[1], mine[0], theirs[0]],
        "agent bot of tenant acme": [mine[3], mine[1], mine[2], theirs[1], mine[0], theirs[0]],
        "everything of tenant acme": [mine[3], mine[1], mine[2], mine[0]],
        "everything": [],
    }
    for what, allowed in expected.items():
        scope, *rest = what.split(" of tenant ")
        names: dict[str, Any] = {"everything": True} if scope == "everything" else dict([scope.split()])
        if rest:
            names["tenant"] = rest[0]
        assert pause(store, **names).what == what
        assert paused(store) == [what]
        got = claim(store, lease, 9, queues=QUEUES, begin=False)
        assert [each.id for each in got] == allowed, what
        assert claim(store, lease, 9, queues=QUEUES, begin=False) == [], what
        store.run(store.leases.release(lease, [each.id for each in got], "*"))
        assert resume(store, **names)
        assert not resume(store, **names)
        assert paused(store) == []
    everything = claim(store, lease, 9, queues=QUEUES)
    assert [each.id for each in everything] == [mine[3], mine[1], mine[2], *theirs[1:], mine[0], theirs[0]]
    settle(store, everything)
    store.run(store.limits.attend())
    assert {state_of(store, each) for each in mine + theirs} == {State.SUCCEEDED}


def test_claim_of_one_tenant_respects_its_own_and_global_pauses(store: Store) -> None:
    put_one(store, "pay", tenant="acme")
    lease = open_lease(store, tenant="acme")
    for what in (
        {"everything": True},
        {"everything": True, "tenant": "acme"},
        {"kind": "pay", "tenant": "acme"},
        {"queue": "default"},
    ):
        pause(store, **what)
        assert claim(store, lease, tenant="acme") == []
        resume(store, **what)
    pause(store, everything=True, tenant="umbrella")
    pause(store, kind="pay", tenant="umbrella")
    assert len(claim(store, lease, tenant="acme")) == 1


def test_paused_jobs_at_the_head_are_skipped_once(store: Store, by_hand: ByHand) -> None:
    """A claim parks paused jobs, so that the next claim skips them and reaches the rest of the queue."""
    put(store, *(spec("pay") for _ in range(700)))
    other = put_one(store, "other")
    pause(store, kind="pay")
    lease = open_lease(store)
    (got,) = claim(store, lease, 5)
    assert got.id == other
    assert by_hand.execute("select count(*) from job_state where held_by is not null and due_at is not null") == [
        (700,)
    ]
    store.run(store.limits.set(Rule("kind", "full", 0), "ada", "*"))
    put_one(store, "full")
    assert claim(store, lease, 5) == []
    assert store.run(store.limits.attend()) == 0, "it stays parked while it is paused"
    resume(store, kind="pay")
    assert len(claim(store, lease, 1000)) == 700


def test_pause_ends_at_its_time(store: Store) -> None:
    now = forward(store)
    waiting = put(store, spec("pay"), spec("pay", queue="mail"))
    lease = open_lease(store, ttl=1e6)
    pause(store, kind="pay", until=60.0)
    made = pause(store, queue="mail", until=now + timedelta(seconds=90))
    assert (made.since, made.until, made.set_by) == (now, now + timedelta(seconds=90), "ada")
    assert claim(store, lease, 9, queues=QUEUES) == []
    forward(store, 60)
    assert paused(store) == ["queue mail"], "the other pause has ended"
    assert store.run(store.limits.attend()) >= 1
    assert [each.id for each in claim(store, lease, 9, queues=QUEUES)] == [waiting[0]]
    forward(store, 30)
    assert [each.id for each in claim(store, lease, 9, queues=QUEUES)] == [waiting[1]], "also if nothing was parked"


def test_pausing_again_keeps_the_start_time(store: Store) -> None:
    now = forward(store)
    pause(store, "first", kind="pay", until=60.0)
    forward(store, 5)
    again = store.run(store.pauses.set(PauseDraft.of("second", refuse_enqueue=True, kind="pay"), "eve"))
    assert (again.reason, again.set_by, again.since, again.until) == ("second", "eve", now, None)
    assert again.refuse_enqueue
    assert store.run(store.pauses.list("default")) == [again]


def test_paused_system_changes_nothing_and_lets_running_jobs_end(store: Store, by_hand: ByHand) -> None:
    forward(store)
    held = [take_one(store, retry=tries(3)) for _ in range(3)]
    put_one(store, delay=10)
    put_one(store, deadline_at=forward(store) + timedelta(seconds=10))
    crashed = take_one(store)
    store.run(store.queues.set_aging("default", 1.0, 1, 100, "ada", "default"))
    asking = take_one(store)
    apply(store, asking.lease, asks(asking, new_id(), n=1, expires_in=5.0))
    store.run(store.retention.set(RetentionRule.of(clean_after=1.0), "ada", "default"))
    store.run(store.operations.start(NewOperation(new_id(), "redrive"), JobFilter(tenant="default"), "ada", "default"))
    made = pause(store, "the disk is full", everything=True)
    assert made.halts
    with pytest.raises(Refused, match=r"everything was paused by ada at .*: the disk is full") as refused:
        put_one(store)
    assert (refused.value.code, "resume" in (refused.value.fix or "")) == ("paused", True)
    for lease in {each.lease for each in held}:
        assert store.run(store.leases.renew(lease, 1e6, "*"))
    forward(store, 60)
    before = by_hand.contents()
    assert store.run(store.leases.promote()) == 0
    assert store.run(store.leases.expire()) == 0
    assert store.run(store.approvals.attend()) == 0
    assert store.run(store.limits.attend()) == 0
    assert store.run(store.queues.age()) == 0
    sweep = store.run(store.leases.recover())
    assert (sweep.leases, sweep.requeued, sweep.crashed) == (0, 0, 0)
    assert store.run(store.subscriptions.active("*")) == []
    assert not store.run(store.retention.sweep()).more
    assert store.run(store.operations.next()) is None
    assert by_hand.contents() == before
    # Running jobs may end in every way: also by a retry, and by requesting approval.
    assert settle(store, held[0]) == []
    assert settle(store, held[1], Failed("broken", "it broke")) == []
    ask = asks(held[2], new_id(), entry(1, '"done"'), n=2, notify="tell")
    assert apply(store, held[2].lease, ask) == []
    ends = [State.SUCCEEDED, State.RETRY_WAITING, State.WAITING_FOR_APPROVAL]
    assert [state_of(store, each.id) for each in held] == ends
    assert resume(store, everything=True)
    assert store.run(store.leases.recover()).leases >= 1
    assert types_of(store, crashed.id)[-1] == "retry"
    assert store.run(store.leases.promote()) >= 2
    assert store.run(store.leases.expire()) == 1
    assert store.run(store.operations.next()) == 0
    put_one(store)


def take_one(store: Store, **fields: Any) -> Claim:
    put_one(store, "job", priority=9, **fields)
    return take(store)


def test_retries_as_new_jobs_are_created_during_a_pause(store: Store) -> None:
    put(store, spec(retry_as="new_job", retry=tries(2)))
    held = take(store)
    pause(store, everything=True)
    assert settle(store, held, Failed("broken", "it broke")) == []
    chain = store.run(store.jobs.chain(held.id, "default"))
    assert [each.state for each in chain] == [State.FAILED, State.QUEUED]


@pytest.mark.parametrize("by", ["operation", "hand"])
def test_pause_with_refuse_enqueue_refuses_new_jobs(store: Store, by_hand: ByHand, by: str) -> None:
    """A batch is refused whole, raw SQL too. A duplicate of an existing key is still reported as such."""
    store.run(store.agents.set(Definition.of("bot"), "default"))
    there = put_one(store, "pay", key="7")

    def send(kind: str = "pay", tenant: str = "default", queue: str = "default", agent: str | None = None) -> None:
        if by == "operation":
            put(store, spec("fine", queue="fine"), spec(kind, queue=queue, agent=agent), tenant=tenant)
            return
        facts = {"id": new_id(), "tenant": tenant, "kind": kind, "queue": queue, "agent": agent}
        now = "(select now from present)"
        refusal = by_hand.refusal(
            "insert into job (id, tenant, kind, queue, agent, payload, enqueued_by, source_system, created_at)"
            f" values (:id, :tenant, :kind, :queue, :agent, '{{}}', 'me', 'tests', {now})",
            facts,
        )
        if refusal is not None:
            raise Refused(refusal, code="paused" if "refused" in refusal or "accepted" in refusal else "something else")

    cases: list[tuple[dict[str, Any], dict[str, str], dict[str, str]]] = [
        ({"kind": "pay"}, {}, {"kind": "other"}),
        ({"queue": "mail"}, {"queue": "mail"}, {}),
        ({"agent": "bot"}, {"agent": "bot"}, {}),
        ({"everything": True, "tenant": "acme"}, {"tenant": "acme"}, {}),
        ({"kind": "pay", "tenant": "acme"}, {"tenant": "acme"}, {}),
        ({"everything": True}, {}, {}),
    ]
    for what, refused, accepted in cases:
        pause(store, **what, refuse=True)
        before = by_hand.execute("select count(*) from job")
        with pytest.raises(HoldfastError) as raised:
            send(**refused)
        assert raised.value.code == "paused"
        assert by_hand.execute("select count(*) from job") == before
        if what != {"everything": True}:
            send(**accepted)
        assert enqueue(store, spec("pay", key="7"))[0].id == there
        resume(store, **what)
        send(**refused)
    pause(store, everything=True, refuse=False)
    send()
    forward(store)
    pause(store, kind="pay", refuse=True, until=5.0)
    forward(store, 5)
    send()


def test_invalid_pauses_are_refused(store: Store, by_hand: ByHand) -> None:
    for what in (
        {},
        {"queue": "a", "kind": "b"},
        {"everything": True, "agent": "bot"},
        {"tenant": "acme"},
        {"queue": ""},
        {"kind": "*"},
    ):
        with pytest.raises(InvalidSetting):
            pause(store, **what)
    for reason in ("", "  "):
        with pytest.raises(InvalidInput) as refused:
            pause(store, reason, kind="pay")
        assert refused.value.code == "reason_required"
    with pytest.raises(HoldfastError):
        pause(store, kind="pay", until=job(store, put_one(store)).created_at - timedelta(days=1))
    assert by_hand.execute("select count(*) from pause") == [(0,)]
    assert paused(store) == []


@pytest.mark.req("SC-16")
def test_pause_and_limit_of_the_same_kind(store: Store) -> None:
    put(store, *(spec("pay") for _ in range(3)))
    store.run(store.limits.set(Rule("kind", "pay", 1), "ada", "*"))
    lease = open_lease(store)
    first = claim(store, lease, 5)
    pause(store, kind="pay")
    settle(store, first)
    assert claim(store, lease, 5) == []
    assert store.run(store.limits.remove("kind", "pay", "ada", "*"))
    assert claim(store, lease, 5) == [], "the pause holds after the limit is removed"
    store.run(store.limits.set(Rule("kind", "pay", 1), "ada", "*"))
    resume(store, kind="pay")
    assert len(claim(store, lease, 5)) == 1

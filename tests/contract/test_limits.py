"""Limits (SC-16): maximum concurrency and maximum starts per period, counted by the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.engine.job import EVERY_TENANT, Claim, Exchange
from holdfast.engine.order import Move
from holdfast.engine.settlement import Settlement
from holdfast.engine.states import State
from holdfast.errors import Refused
from holdfast.features.assembly import Store
from holdfast.features.limits.model import EACH, Limit, Rule
from holdfast.stores.requests import ClaimRequest, JobFilter, Reschedule
from tests.support.direct_sql import ByHand
from tests.support.features import disable, share
from tests.support.features import set_agent as register
from tests.support.stores import (
    BROKEN,
    LATER,
    TENANT,
    claim,
    forward,
    job,
    open_lease,
    put,
    put_one,
    settle,
    spec,
    types_of,
)

pytestmark = pytest.mark.req("SC-16")


def limit(
    store: Store,
    scope: str = "all",
    name: str = EACH,
    concurrency: int | None = None,
    *,
    tenant: str = TENANT,
    **rate: Any,
) -> Limit:
    return store.run(store.limits.set(Rule.of(scope, name, concurrency, **rate), "ada", tenant))


def remove(store: Store, scope: str, name: str = EACH, *, tenant: str = TENANT) -> bool:
    return store.run(store.limits.remove(scope, name, "ada", tenant))


def limits(store: Store, tenant: str = TENANT) -> list[Limit]:
    return store.run(store.limits.list(tenant))


def attend(store: Store, tenant: str = EVERY_TENANT) -> int:
    return store.run(store.limits.attend(tenant=tenant))


def ids(claims: list[Claim]) -> list[str]:
    return [each.id for each in claims]


def some(store: Store, count: int, kind: str = "mail.send", *, tenant: str = TENANT, **fields: Any) -> list[str]:
    return put(store, *(spec(kind, **fields) for _ in range(count)), tenant=tenant)


# The limit, the fields of jobs that it counts, and the fields of a job that it does not count.
SCOPES: dict[str, tuple[tuple[str, str], dict[str, Any], dict[str, Any]]] = {
    "queue": (("queue", "q1"), {"queue": "q1"}, {"queue": "q2"}),
    "kind": (("kind", "slow"), {"kind": "slow"}, {"kind": "fast"}),
    "key": (("key", "c-7"), {"uses": ("key:c-7",)}, {"uses": ("key:c-8",)}),
    "each key": (("key", EACH), {"uses": ("key:c-7",)}, {"uses": ("key:c-8",)}),
    "resource": (("resource", "gpu-0"), {"uses": ("resource:gpu-1", "resource:gpu-0")}, {"uses": ("resource:gpu-2",)}),
    "agent": (("agent", "a1"), {"agent": "a1"}, {"agent": "a2"}),
}


def test_limit_of_each_scope_holds_back_only_its_jobs(store: Store) -> None:
    lease, queues = open_lease(store), ("default", "q1", "q2")
    for what, ((scope, name), counted, other) in SCOPES.items():
        limit(store, scope, name, 1)
        first, second, third, free = put(store, spec(**counted), spec(**counted), spec(**counted), spec(**other))
        taken = claim(store, lease, 9, queues=queues)
        assert sorted(ids(taken)) == sorted([first, free]), what
        assert claim(store, lease, 9, queues=queues) == [], what
        (kept,) = limits(store)
        assert (kept.scope, kept.name, kept.running) == (scope, name, 2 if name == EACH else 1)
        settle(store, [each for each in taken if each.id == first])
        (held,) = claim(store, lease, 9, queues=queues)
        assert held.id == second, f"{what}: in queue order"
        assert remove(store, scope, name)
        (last,) = claim(store, lease, 9, queues=queues)
        assert last.id == third, what
        settle(store, [held, last, *(each for each in taken if each.id == free)])


def test_global_limit_and_limit_per_tenant(store: Store) -> None:
    share(store)  # the order of the queue, without fair shares between tenants
    limit(store, "tenant", EACH, 1, tenant=EVERY_TENANT)
    limit(store, "all", EACH, 3, tenant=EVERY_TENANT)
    for tenant in ("a", "b", "c", "d"):
        some(store, 2, tenant=tenant)
    lease = open_lease(store)
    taken = claim(store, lease, 9)
    assert [each.tenant for each in taken] == ["a", "b", "c"]
    settle(store, taken[:1])
    assert [each.tenant for each in claim(store, lease, 9)] == ["a"]
    assert [each.tenant for each in limits(store, EVERY_TENANT)] == ["*", "*"]
    own = open_lease(store, tenant="d")
    assert claim(store, own, 9, tenant="d") == [], "global limits apply to a worker of one tenant"
    settle(store, taken[1:])
    assert [each.tenant for each in claim(store, own, 9, tenant="d")] == ["d"]


def test_limit_of_a_tenant_counts_its_own_jobs_only(store: Store) -> None:
    limit(store, "queue", "default", 1, tenant="a")
    some(store, 3, tenant="a")
    others = some(store, 3, tenant="b")
    taken = claim(store, open_lease(store), 9)
    assert [each.tenant for each in taken] == ["a", "b", "b", "b"]
    assert limits(store, "b") == []
    assert set(others) < set(ids(taken))


def test_job_under_several_limits_needs_capacity_in_all(store: Store) -> None:
    limit(store, "kind", "slow", 1)
    limit(store, "key", EACH, 1)
    a1, a2, b1, free = put(
        store,
        spec("slow", uses=("key:a",)),
        spec("fast", uses=("key:a",)),
        spec("slow", uses=("key:b",)),
        spec("fast", uses=("key:b",)),
    )
    lease = open_lease(store)
    taken = claim(store, lease, 9)
    assert ids(taken) == [a1, free], "a limit holds back only the jobs it counts"
    settle(store, [each for each in taken if each.id == a1])
    assert ids(claim(store, lease, 9)) == [a2], "b1 has capacity by kind, and waits for its key"
    settle(store, [each for each in taken if each.id == free])
    assert ids(claim(store, lease, 9)) == [b1]


def test_every_end_of_a_claim_frees_its_slot(store: Store, by_hand: ByHand) -> None:
    limit(store, "key", EACH, 1)
    ways: dict[str, Callable[[Claim], object]] = {
        "succeed": lambda held: settle(store, held),
        "fail": lambda held: settle(store, held, BROKEN),
        "snooze": lambda held: settle(store, held, LATER),
        "cancel": lambda held: store.run(store.jobs.operate("cancel", [held.id], None, "ada", TENANT)),
        "by hand": lambda held: by_hand.execute(
            "update job_state set state = 'cancelled', lease = null, finished_at = (select now from present)"
            " where id = :id",
            {"id": held.id},
        ),
        "recover": lambda held: (forward(store, 31), store.run(store.leases.recover())),
    }
    for way, end in ways.items():
        first, second = some(store, 2, way, uses=(f"key:{way}",))
        (held,) = claim(store, open_lease(store), 2, kinds=(way,))
        assert held.id == first
        assert claim(store, open_lease(store), 2, kinds=(way,)) == [], way
        end(held)
        (held,) = claim(store, open_lease(store), 2, kinds=(way,))
        assert held.id == second, way
        settle(store, held)


def test_leased_job_occupies_a_slot(store: Store) -> None:
    limit(store, "key", EACH, 1)
    first, second = some(store, 2, uses=("key:k",))
    lease = open_lease(store)
    assert ids(claim(store, lease, 2, begin=False)) == [first]
    assert claim(store, lease, 2) == []
    assert store.run(store.leases.release(lease, [first], EVERY_TENANT)) == [first]
    assert ids(claim(store, lease, 2, begin=False)) == [first], "it kept its position"
    assert store.run(store.leases.start(lease, [first], EVERY_TENANT)) == {first: 1}
    request = ClaimRequest(lease=lease, queues=("default",), want=5)
    exchange = store.run(store.leases.exchange([Settlement(first, 1, "succeeded")], request))
    assert ids(exchange.claims) == [second], "in the same exchange that settles"


def test_raised_limit_applies_at_once_and_lowered_as_jobs_end(store: Store) -> None:
    limit(store, "kind", "slow", 3)
    some(store, 6, "slow")
    lease = open_lease(store)
    running = claim(store, lease, 9)
    assert len(running) == 3
    limit(store, "kind", "slow", 1)
    for _ in range(2):
        settle(store, running.pop())
        assert claim(store, lease, 9) == []
    settle(store, running.pop())
    assert len(claim(store, lease, 9)) == 1
    limit(store, "kind", "slow", 2)
    assert len(claim(store, lease, 9)) == 1
    assert remove(store, "kind", "slow")
    assert not remove(store, "kind", "slow")
    assert len(claim(store, lease, 9)) == 1


def test_new_limit_counts_running_jobs(store: Store) -> None:
    some(store, 4, "slow", uses=("resource:gpu-0",))
    lease = open_lease(store)
    running = claim(store, lease, 2)
    limit(store, "resource", "gpu-0", 2)
    assert [each.running for each in limits(store)] == [2]
    assert claim(store, lease, 9) == []
    settle(store, running)
    assert len(claim(store, lease, 9)) == 2


def test_held_jobs_keep_their_queue_order(store: Store) -> None:
    limit(store, "kind", "slow", 1)
    running = put_one(store, "slow")
    lease = open_lease(store)
    (held,) = claim(store, lease)
    assert held.id == running
    low, high, middle = put(store, spec("slow"), spec("slow", priority=9), spec("slow", priority=5))
    assert claim(store, lease, 9) == []
    later = put_one(store, "slow", priority=7)  # no claim has seen it yet
    order = []
    for _ in range(4):
        settle(store, held)
        (held,) = claim(store, lease, 9)
        order.append(held.id)
    assert order == [high, later, middle, low]


def test_held_job_can_be_cancelled_and_moved_but_not_rescheduled(store: Store, by_hand: ByHand) -> None:
    limit(store, "kind", "slow", 1)
    now = forward(store)
    put_one(store, "slow")
    late = store.run(store.clock.now()).replace(year=now.year + 1)
    one, two, three = put(store, spec("slow"), spec("slow"), spec("slow", deadline_at=late))
    lease = open_lease(store)
    (held,) = claim(store, lease, 9)
    parked = job(store, one)
    assert (parked.state, parked.due_at) == (State.QUEUED, None)
    listed = store.run(store.jobs.list(JobFilter(tenant=TENANT, kind="slow")))
    assert [each.due_at for each in listed] == [None] * 4
    assert store.run(store.jobs.notes(JobFilter(tenant=TENANT)))[one]["held"] == "limit"
    assert [each.waiting for each in limits(store)] == [3]
    assert [v.reason for v in store.run(store.jobs.reschedule([one], Reschedule(), None, "ada", TENANT))] == [
        "job_held"
    ]
    assert store.run(store.leases.promote()) == 0
    assert not store.run(store.jobs.move(two, Move.of(first=True), None, "ada", TENANT)).refused
    store.run(store.jobs.operate("cancel", [one], None, "ada", TENANT))
    settle(store, held)
    (held,) = claim(store, lease, 9)
    assert held.id == two
    forward(store, 2 * 366 * 86_400)
    assert store.run(store.leases.expire()) == 1
    assert types_of(store, three) == ["enqueue", "expire"]


def test_jobs_of_a_full_queue_are_not_parked(store: Store) -> None:
    """Also under the limit of the only tenant: a claim takes as many jobs as fit, and the rest keep their place."""
    limit(store, "queue", "call", 1)
    put(store, *(spec(queue="call") for _ in range(3)))
    assert len(claim(store, open_lease(store), 9, queues=("call",))) == 1
    (listed,) = store.run(store.limits.list("default"))
    assert (listed.running, listed.waiting) == (1, 0)


def test_rate_limit_releases_jobs_over_time(store: Store) -> None:
    forward(store)
    limit(store, "kind", "call", rate="6/m", burst=2)
    some(store, 6, "call")
    lease = open_lease(store, ttl=1e6)
    assert len(claim(store, lease, 9)) == 2, "the burst"
    assert claim(store, lease, 9) == []
    forward(store, 9)
    assert attend(store) == 0
    assert claim(store, lease, 9) == []
    forward(store, 1.001)
    assert attend(store) == 1
    assert len(claim(store, lease, 9)) == 1
    forward(store, 3600)
    attend(store)
    assert len(claim(store, lease, 9)) == 2, "tokens accumulate only up to the burst"
    assert attend(store) == 0
    forward(store, 10.001)
    assert attend(store) == 1
    assert len(claim(store, lease, 9)) == 1


@pytest.mark.req("SC-19")
@pytest.mark.parametrize("scope", ["kind", "queue"])
def test_rate_limit_continues_after_the_clock_was_set_back(store: Store, scope: str) -> None:
    """The last token was taken in what is now the future: tokens come in from now on."""
    forward(store)
    limit(store, scope, "call", rate="6/m")
    put(store, *(spec("call", queue="call") for _ in range(4)))
    lease = open_lease(store, ttl=1e6)
    assert len(claim(store, lease, 9, queues=("call",))) == 1
    forward(store, -3600)
    for _ in range(3):
        attend(store)
        assert claim(store, lease, 9, queues=("call",)) == []
        forward(store, 10.001)
        attend(store)
        assert len(claim(store, lease, 9, queues=("call",))) == 1


@pytest.mark.parametrize("scope", ["kind", "queue"])
def test_claim_reports_the_next_token_and_late_workers_lose_none(store: Store, scope: str) -> None:
    """Five per second, one at a time. A worker that is late each time still gets five per second."""
    forward(store)
    limit(store, scope, "call", rate="5/s")
    put(store, *(spec("call", queue="call" if scope == "queue" else "default") for _ in range(8)))
    lease = open_lease(store, ttl=1e6)
    request = ClaimRequest(lease=lease, queues=("call", "default"), want=9)

    def exchange() -> Exchange:
        store.run(store.limits.wake())
        return store.run(store.leases.exchange([], request))

    first = exchange()
    assert len(first.claims) == 1
    assert first.next_in == pytest.approx(0.2, abs=0.001)
    for late in (0.02, 0.0, 0.04, 0.02):  # seconds after the token became available
        before = exchange()
        assert before.claims == []
        assert before.next_in is not None
        forward(store, before.next_in + late)
        taken = exchange()
        assert len(taken.claims) == 1
        assert taken.next_in == pytest.approx(0.2 - late, abs=0.001)
    forward(store, 3600)
    assert len(exchange().claims) == 1, "tokens accumulate only up to the burst"


def test_rate_limits_per_queue_and_per_key(store: Store) -> None:
    forward(store)
    limit(store, "queue", "default", rate=(3, 60), burst=3)
    limit(store, "key", EACH, rate=(1, 60))
    a1, _, b1, c1 = put(store, *(spec(uses=(f"key:{key}",)) for key in "aabc"))
    lease = open_lease(store, ttl=1e6)
    assert ids(claim(store, lease, 9)) == [a1, b1, c1]
    forward(store, 19)
    assert attend(store) == 0
    assert claim(store, lease, 9) == []
    forward(store, 41.1)
    attend(store)
    assert len(claim(store, lease, 9)) == 1


def test_dispatch_is_limited_only_while_limits_exist(store: Store, by_hand: ByHand) -> None:
    def limited() -> bool:
        return bool(by_hand.execute("select limited from dispatch")[0][0])

    assert not limited()
    limit(store, "kind", "slow", 1)
    some(store, 2, "slow")
    lease = open_lease(store)
    (held,) = claim(store, lease, 9)
    assert limited()
    remove(store, "kind", "slow")
    attend(store)
    assert not limited()
    assert len(claim(store, lease, 9)) == 1
    settle(store, held)


def test_invalid_limits_are_refused(store: Store) -> None:
    for rule in (
        Rule("nobody", "x", 1),
        Rule("queue", "x"),
        Rule("queue", "", 1),
        Rule("queue", "x", -1),
        Rule("queue", "x", None, 0, 1.0, 1),
        Rule("all", "x", 1),
    ):
        with pytest.raises(Refused):
            store.run(store.limits.set(rule, "ada", TENANT))


def test_many_held_jobs_do_not_block_other_kinds(store: Store) -> None:
    limit(store, "kind", "slow", 1)
    some(store, 60, "slow")
    (behind,) = some(store, 1, "fast")
    lease = open_lease(store)
    assert [each.kind for each in claim(store, lease, 1)] == ["slow"]
    assert ids(claim(store, lease, 1)) == [behind]


def test_jobs_of_a_disabled_agent_do_not_block_a_limited_claim(store: Store) -> None:
    limit(store, "kind", "slow", 1)
    register(store, "planner")
    put_one(store, agent="planner")
    (behind,) = some(store, 1)
    disable(store, "planner")
    assert ids(claim(store, open_lease(store), 1)) == [behind]

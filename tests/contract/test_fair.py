"""Fair shares between tenants (JF-12): a tenant with few jobs does not wait behind a tenant with many."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import closing
from dataclasses import replace

import psycopg
import pytest

from holdfast.engine.job import Claim
from holdfast.engine.states import State
from holdfast.features.assembly import Store, open_store
from holdfast.features.limits.model import ReservationRequest, Rule
from holdfast.stores.postgres.store import run_on
from holdfast.stores.requests import ClaimRequest
from tests.support.direct_sql import ByHand
from tests.support.features import fill, pause, resume, served, share, tenants
from tests.support.features import register_tenant as register
from tests.support.stores import claim, job, new_id, open_lease, put, put_one, settle, spec

pytestmark = pytest.mark.req("JF-12")


def test_small_tenants_do_not_wait_behind_a_large_one(store: Store) -> None:
    share(store)
    fill(store, 60, "big")
    fill(store, 2, "a", "m", "z")
    assert served(store, 2, 4) == {"big": 8}, "nothing is shared"
    share(store, "*")
    assert served(store, 4, 4) == {"big": 10, "a": 2, "m": 2, "z": 2}
    share(store)
    fill(store, 1, "a")
    assert served(store, 2, 4) == {"big": 8}, "sharing is off again"


def has_index(by_hand: ByHand) -> bool:
    if by_hand.name == "sqlite":
        return bool(by_hand.execute("select 1 from sqlite_schema where name = 'holdfast_fair'"))
    return bool(by_hand.execute("select 1 from pg_indexes where indexname = 'fair'"))


def test_queues_are_shared_by_default_from_the_second_tenant_on(store: Store, by_hand: ByHand) -> None:
    """The default settings. A database with one tenant has no index for shares."""
    fill(store, 1500, "big")
    assert served(store, 2, 4) == {"big": 8}
    assert not has_index(by_hand)
    mine = put(store, *(spec(priority=n % 3) for n in range(10)), tenant="small")
    lease = open_lease(store)
    assert has_index(by_hand)
    taken = [claim for _ in range(10) for claim in claim_and_settle(store, lease, 2)]
    assert Counter(each.tenant for each in taken) == {"big": 10, "small": 10}, "all of them in its first shares"
    order = sorted(mine, key=lambda id_: (-job(store, id_).priority, mine.index(id_)))
    assert [each.id for each in taken if each.tenant == "small"] == order
    assert store.run(store.tenants.fair_queues()) == ["*"]


def test_running_worker_notices_the_second_tenant(store: Store, by_hand: ByHand) -> None:
    fill(store, 30, "big")
    lease = open_lease(store)
    fill(store, 3, "small")
    assert {each.tenant for each in claim_and_settle(store, lease, 4)} == {"big"}
    assert not store.run(store.leases.promote(10, "small")), "a worker of one tenant shares nothing"
    assert not has_index(by_hand)
    if not store.embedded:
        assert by_hand.execute("select 'promote' = any (tasks) from due_work()") == [(True,)], "the task is due"
    store.run(store.leases.promote(10, "*"))
    assert Counter(each.tenant for each in claim_and_settle(store, lease, 4)) == {"big": 2, "small": 2}


def test_sharing_can_be_turned_off_for_all_or_one_queue(store: Store, by_hand: ByHand) -> None:
    """Off for all queues, and off for one queue; a weight changes neither."""
    fill(store, 9, "big", queue="plain")
    fill(store, 9, "big", queue="mail")
    fill(store, 3, "small", queue="plain")
    fill(store, 3, "small", queue="mail")
    share(store, "*", "-plain")
    assert served(store, 2, 3, queues=("plain",)) == {"big": 6}
    assert served(store, 3, 2, queues=("mail",)) == {"big": 3, "small": 3}
    share(store)
    register(store, "small", weight=2)
    assert store.run(store.tenants.fair_queues()) == []
    assert not has_index(by_hand)
    assert served(store, 1, 3, queues=("plain",)) == {"big": 3}


def claim_and_settle(store: Store, lease: str, want: int) -> list[Claim]:
    claims = claim(store, lease, want)
    settle(store, claims)
    return claims


def test_shares_rotate_over_tenants_as_in_the_model(store: Store, choice: random.Random) -> None:
    """Compared with a model: with one job per claim, the next tenant by name that has a ready job is served."""
    lease, waiting, last = None, dict[str, list[str]](), ""
    for _ in range(60):
        if choice.random() < 0.5 or not waiting:
            name = choice.choice(("a", "b", "c", "d"))
            waiting.setdefault(name, []).extend(put(store, *(spec() for _ in range(choice.randint(1, 3))), tenant=name))
        if lease is None:
            if len(waiting) < 2:
                continue
            lease = open_lease(store)
        (taken,) = claim_and_settle(store, lease, 1)
        names = sorted(waiting)
        if len(names) > 1:
            last = next((name for name in names if name > last), names[0])
            assert (taken.tenant, taken.id) == (last, waiting[last][0])
        waiting[taken.tenant].remove(taken.id)
        if not waiting[taken.tenant]:
            del waiting[taken.tenant]


def test_weight_sets_the_ratio_of_shares(store: Store) -> None:
    register(store, "heavy", weight=3)
    register(store, "light", weight=1)
    for want in (1, 3, 20):
        queue = f"by {want}"
        fill(store, 30, "light", "heavy", "other", queue=queue)
        counts = served(store, 40 // want, want, queues=(queue,))
        assert set(counts) == {"heavy", "light", "other"}
        assert counts["heavy"] / sum(counts.values()) == pytest.approx(3 / 5, abs=0.1)
        assert abs(counts["light"] - counts["other"]) <= max(2, want // 3)


def test_unused_shares_go_to_others_and_tenant_order_stays(store: Store) -> None:
    share(store, "default")
    first, second, third = put(store, spec(priority=1), spec(priority=5), spec(priority=1), tenant="a")
    fill(store, 30, "b", "c")
    claims = claim(store, open_lease(store), 21)
    assert [each.id for each in claims if each.tenant == "a"] == [second, first, third]
    counts = Counter(each.tenant for each in claims)
    assert counts["a"] == 3
    assert abs(counts["b"] - counts["c"]) <= 1
    assert len({each.id for each in claims}) == 21


def test_priority_does_not_delay_other_tenants(store: Store) -> None:
    share(store, "*")
    fill(store, 8, "loud", priority=100)
    fill(store, 8, "quiet")
    assert served(store, 5, 2) == {"loud": 5, "quiet": 5}
    own = claim(store, open_lease(store, tenant="quiet"), 9, tenant="quiet")
    assert [each.tenant for each in own] == ["quiet"] * 3


def test_more_tenants_than_one_claim_holds_are_all_served(store: Store) -> None:
    share(store, "*")
    names = [f"t-{n:02}" for n in range(40)]
    fill(store, 3, *names)
    counts = served(store, 10, 8)
    assert len(counts) == 40, "80 places, and each of them in twice"
    assert max(counts.values()) <= 3
    assert sum(served(store, 6, 8).values()) == 40, "no job is left behind"


def test_interleaved_claims_take_different_jobs(store: Store) -> None:
    share(store, "*")
    names = ("a", "b", "c", "d", "e")
    fill(store, 4, *names)
    leases = [open_lease(store, f"worker-{n}") for n in range(2)]
    seen: list[str] = []
    for n in range(20):
        claims = claim(store, leases[n % 2], 1, kinds=("mail.send",) if n % 2 else None)
        seen += [each.id for each in claims]
    assert len(set(seen)) == 20


def test_shares_respect_limits_and_reservations(store: Store) -> None:
    share(store, "shared")
    register(store, "a", max_running=1)
    fill(store, 6, "a", "b", "c", queue="shared")
    store.run(store.reservations.set(ReservationRequest(new_id(), "queue", "shared", 600.0), "ada", "c"))
    lease = open_lease(store)
    claims = claim(store, lease, 4, queues=("shared",))
    assert sorted(each.tenant for each in claims) == ["a", "b", "b", "b"]
    settle(store, claims)
    assert served(store, 3, 2, queues=("shared",)) == {"a": 3, "b": 3}
    fill(store, 4, "x", "y", queue="alone")
    assert served(store, 1, 4, queues=("alone",)) == {"x": 4}, "that queue is not shared"


def test_claim_from_the_head_serves_every_tenant_after_claims_behind_a_position(store: Store) -> None:
    """A worker that skips dead index entries claims after a position; shares are per tenant, not per position."""
    share(store, "*")
    fill(store, 5, "a", "b")
    last = job(store, put_one(store, tenant="z"))
    lease = open_lease(store)
    request = ClaimRequest(
        lease=lease, queues=("default",), want=4, after={"default": (last.priority, last.position - 1)}
    )
    behind = store.run(store.leases.exchange([], request)).claims
    from_head = store.run(store.leases.exchange([], replace(request, after={}))).claims
    assert behind
    assert len(from_head) == 4
    assert {each.tenant for each in from_head} >= {"a", "b"}


def test_claim_does_not_wait_for_another_that_advances_the_place(postgres_url: str) -> None:
    with closing(open_store(postgres_url)) as store, psycopg.connect(postgres_url) as other:
        share(store, "*")
        fill(store, 5, "a", "b")
        lease = open_lease(store)
        claim(store, lease, 2)
        other.execute("select from holdfast.fair_place for update")
        with psycopg.connect(postgres_url, autocommit=True, options="-c lock_timeout=5s") as connection:
            request = ClaimRequest(lease=lease, queues=("default",), want=2)
            assert len(run_on(connection, store.leases.exchange([], request)).claims) == 2


def test_next_share_reports_the_position_in_a_shared_queue(store: Store) -> None:
    fill(store, 5, "big")
    mine = put(store, spec(), spec(), tenant="small")
    assert store.run(store.tenants.next_share(mine[1], "small")) is None, "nothing is shared"
    register(store, "small", weight=2)
    share_of_job = store.run(store.tenants.next_share(mine[1], "small"))
    assert share_of_job is not None
    assert (share_of_job.ahead, share_of_job.weight) == (1, 2)
    assert share_of_job.tenants == 2
    assert store.run(store.tenants.next_share(mine[1], "big")) is None, "jobs of other tenants are invisible"
    assert store.run(store.tenants.fair_queues()) == ["*"], "the first weight shares all queues"
    assert {name: each.share for name, each in tenants(store).items()} == {"big": 1 / 3, "small": 2 / 3}


def test_shares_with_limits_by_key(store: Store) -> None:
    share(store, "*")
    store.run(store.limits.set(Rule.of("key", "*", 1), "ada", "*"))
    for name in ("a", "b"):
        put(store, *(spec(uses=("key:k",)) for _ in range(4)), *(spec() for _ in range(4)), tenant=name)
    lease = open_lease(store)
    claims = claim(store, lease, 9)
    assert len(claims) == 9
    assert Counter(each.tenant for each in claims) in ({"a": 5, "b": 4}, {"a": 4, "b": 5})


def test_paused_kinds_do_not_use_shares_and_keep_their_order(store: Store) -> None:
    """A tenant whose first job is paused is served from the next one; a tenant with only paused jobs is skipped."""
    share(store, "*")
    held = [put_one(store, "slow", tenant=name) for name in ("a", "b") for _ in range(3)]
    fill(store, 6, "a", "c")
    pause(store, kind="slow")
    assert served(store, 3, 2) == {"a": 3, "c": 3}, "paused jobs do not use a's share"
    fill(store, 6, "b")
    assert served(store, 3, 3) == {"a": 3, "b": 3, "c": 3}, "b is served at once"
    assert {job(store, each).state for each in held} == {State.QUEUED}
    assert resume(store, kind="slow")
    lease, seen = open_lease(store), []
    while claims := claim(store, lease, 2):
        seen += claims
        settle(store, claims)
    assert [each.id for each in seen if each.kind == "slow" and each.tenant == "a"] == held[:3]
    assert [each.id for each in seen if each.kind == "slow" and each.tenant == "b"] == held[3:]
    assert [each.kind for each in seen if each.tenant == "b"][:3] == ["slow"] * 3, "before those that came later"

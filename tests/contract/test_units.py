"""Weighted limits: a job takes units of the rates of its key and resources, known before it starts or settled after."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from holdfast.engine.job import Claim
from holdfast.errors import Refused
from holdfast.features.assembly import Store
from holdfast.features.limits.model import Rule
from tests.support.concurrency import together
from tests.support.direct_sql import ByHand
from tests.support.stores import BROKEN, TENANT, claim, forward, new_id, open_lease, put, settle, spec

pytestmark = pytest.mark.req("HF-12")


def limit(store: Store, scope: str, name: str, concurrency: int | None = None, rate: str = "100/m") -> None:
    store.run(store.limits.set(Rule.of(scope, name, concurrency, rate, burst=100), "ada", TENANT))


def add(store: Store, count: int, *uses: str) -> None:
    put(store, *(spec(uses=uses) for _ in range(count)))


def take(store: Store, want: int = 10) -> list[Claim]:
    store.run(store.limits.wake())
    return claim(store, open_lease(store), want)


def use(store: Store, held: Claim, units: int) -> bool:
    return store.run(store.limits.use_units(held, units, TENANT))


@pytest.mark.parametrize("scope", ["key", "resource"])
def test_job_takes_its_units_and_later_ones_wait_longer(store: Store, scope: str) -> None:
    limit(store, scope, "llm")
    add(store, 3, f"{scope}:llm", "units:60")
    assert len(take(store)) == 2  # 100 - 60 - 60: there was a unit left for the second
    forward(store, 12)  # 20 units: none is left
    assert take(store) == []
    forward(store, 1)
    assert len(take(store)) == 1


def test_units_are_settled_after_the_work(store: Store) -> None:
    limit(store, "key", "llm")
    add(store, 2, "key:llm", "units:0")
    (first,) = take(store, 1)
    assert use(store, first, 150)
    assert take(store) == []
    assert use(store, first, -140)
    (second,) = take(store)
    for stale in (replace(first, attempt=2), replace(first, lease=new_id())):
        assert not use(store, stale, 1)
    settle(store, second)
    assert not use(store, second, 1)


def test_only_rates_of_keys_and_resources_count_units(store: Store) -> None:
    """Those of queues count starts, and a concurrency counts jobs."""
    store.run(store.limits.set(Rule.of("queue", "default", None, "4/m", burst=4), "ada", TENANT))
    limit(store, "key", "llm", concurrency=3)
    add(store, 5, "key:llm", "units:10")
    held = take(store)
    assert len(held) == 3
    settle(store, held)
    assert len(take(store)) == 1


def test_job_without_units_or_with_malformed_ones_takes_one(store: Store) -> None:
    limit(store, "key", "llm")
    add(store, 1, "key:llm", "units:99")
    add(store, 1, "key:llm", "units:many")
    add(store, 1, "key:llm")
    assert len(take(store)) == 2


def test_many_workers_take_no_more_than_there_is(store: Store) -> None:
    limit(store, "key", "llm")
    add(store, 40, "key:llm", "units:30")
    claims = [each for some in together(*(partial(take, store, 5) for _ in range(6))) for each in some]
    assert len(claims) == 4  # 100 - 4 * 30


def test_limit_can_refuse_new_jobs(store: Store) -> None:
    store.run(store.limits.set(Rule.of("key", "*", None, "100/h", burst=100, refuse=True), "ada", TENANT))
    add(store, 2, "key:acme", "units:100")
    add(store, 1, "key:other")
    first, _ = take(store)  # the second of acme is held: it was accepted
    with pytest.raises(Refused) as refused:
        add(store, 1, "key:acme")
    assert refused.value.code == "budget_used_up"
    add(store, 1, "key:other")
    put(store, spec())
    settle(store, first, BROKEN)  # a retry was accepted with its first attempt
    forward(store, 60)
    add(store, 1, "key:acme")
    (limit,) = store.run(store.limits.list(TENANT))
    assert (limit.refuse, limit.waiting) == (True, 1)
    store.run(store.limits.set(Rule.of("key", "*", None, "100/h", burst=100), "ada", TENANT))
    assert not store.run(store.limits.list(TENANT))[0].refuse


def test_database_refuses_hand_written_jobs_too(store: Store, by_hand: ByHand) -> None:
    store.run(store.limits.set(Rule.of("kind", "mail.send", None, "1/h", burst=1, refuse=True), "ada", TENANT))
    put(store, spec())
    assert len(take(store)) == 1
    names = "tenant, kind, queue, payload, enqueued_by, source_system, created_at"
    refusal = by_hand.refusal(f"insert into job (id, {names}) select :id, {names} from job", {"id": new_id()})
    assert refusal is not None
    assert "nothing left" in refusal

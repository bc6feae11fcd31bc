"""Aging queues: the stored priority of waiting jobs rises, so that the claim order still follows the columns (SC-2)."""

from __future__ import annotations

import pytest

from holdfast.engine.order import Move
from holdfast.features.assembly import Store
from tests.support.features import share
from tests.support.stores import TENANT, claim, forward, history, job, open_lease, put, put_one, spec

pytestmark = pytest.mark.req("SC-2")


def age(store: Store) -> int:
    return store.run(store.queues.age())


def test_aging_raises_the_priority_of_old_jobs(store: Store) -> None:
    share(store)  # the order of the queue, without fair shares between tenants
    forward(store)
    assert age(store) == 0
    setting = store.run(store.queues.set_aging("default", 60.0, 2, 5, "ada", TENANT))
    assert setting is not None
    assert store.run(store.queues.list(TENANT)) == [setting]
    old, moved, elsewhere = put(store, spec(), spec(), spec(queue="other"))
    foreign = put_one(store, tenant="other")
    high = put_one(store, priority=9)
    store.run(store.jobs.move(moved, Move(where="last", priority=-1), None, "ada", TENANT))
    forward(store, 59)
    assert age(store) == 0
    forward(store, 2)
    fresh = put_one(store, priority=1)
    assert age(store) == 1
    assert age(store) == 0, "once per interval"
    assert [job(store, each).priority for each in (old, moved, elsewhere, foreign, high, fresh)] == [2, -1, 0, 0, 9, 1]
    event = history(store, old)[-1]
    assert (event.type, event.actor, event.meta) == ("move", "aging", {"to": "aging", "priority": 2, "times": 1})
    forward(store, 600)
    assert age(store) == 2
    assert [job(store, each).priority for each in (old, fresh)] == [5, 5], "up to the maximum of the queue"
    order = [each.id for each in claim(store, open_lease(store), 9)]
    assert order == [high, old, fresh, foreign, moved], "equal priorities in order of age"
    assert store.run(store.queues.set_aging("default", None, 1, 5, "ada", TENANT)) is None
    assert store.run(store.queues.list(TENANT)) == []

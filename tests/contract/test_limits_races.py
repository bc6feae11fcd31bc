"""Several workers under several limits: no limit is exceeded, no job is stuck, no deadlock (SC-16)."""

from __future__ import annotations

import random
import threading
import time
from contextlib import closing

import pytest

from holdfast.engine.job import Job
from holdfast.engine.settlement import Settlement
from holdfast.features.assembly import Store, open_store
from holdfast.stores.requests import ClaimRequest
from tests.contract.test_limits import limit
from tests.support.direct_sql import ByHand
from tests.support.ledger import most_at_once
from tests.support.stores import open_lease, put, spec

pytestmark = pytest.mark.req("SC-16")

WORKERS, JOBS, TIMEOUT = 4, 160, 30.0
LIMITS = {"queue:q1": 3, "kind:slow": 4, **{f"key:{key}": 1 for key in "abcdefgh"}, "resource:gpu": 2}


def counted_by(job: Job) -> list[str]:
    return [f"queue:{job.queue}", f"kind:{job.kind}", *(job.uses or ())]


@pytest.mark.slow
def test_concurrent_exchanges_respect_limits(store: Store, by_hand: ByHand) -> None:
    choice = random.Random(7)
    limit(store, "queue", "q1", 3)
    limit(store, "kind", "slow", 4)
    limit(store, "key", "*", 1)
    limit(store, "resource", "gpu", 2)

    def uses() -> tuple[str, ...]:
        return (f"key:{choice.choice('abcdefgh')}", *choice.choice([(), ("resource:gpu",)]))

    specs = [spec(choice.choice(["slow", "fast"]), queue=choice.choice(["q1", "q2"]), uses=uses()) for _ in range(JOBS)]
    put(store, *specs)
    ended: list[str] = []
    end = time.monotonic() + TIMEOUT

    def work(number: int) -> None:
        mine = random.Random(number)
        queues = mine.sample(["q1", "q2"], 2)  # workers use different orders
        with closing(open_store(store.url)) as own:
            lease, settlements = open_lease(own, ttl=1000), list[Settlement]()
            while len(ended) < JOBS and time.monotonic() < end:
                if number == 0:
                    own.run(own.limits.attend())
                request = ClaimRequest(lease=lease, queues=tuple(queues), want=mine.randint(1, 6))
                exchange = own.run(own.leases.exchange(settlements, request))
                assert exchange.stale == []
                ended.extend(each.id for each in settlements)
                settlements = [Settlement(each.id, each.attempt, "succeeded") for each in exchange.claims]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT + 10)
    assert len(ended) == JOBS, f"{JOBS - len(ended)} are stuck"
    most = most_at_once(store, counted_by)
    assert {name: most[name] for name, most_of in LIMITS.items() if most.get(name, 0) > most_of} == {}
    if by_hand.name != "sqlite":
        by_hand.execute("select pg_stat_clear_snapshot()")
        assert by_hand.execute("select deadlocks from pg_stat_database where datname = current_database()") == [(0,)]

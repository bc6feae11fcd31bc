"""Fault 26 for subscriptions: whoever makes jobs of events is killed with -9, again and again, while transactions
commit in another order than they began. Each event that is wanted has one job, not none, not two (DP-13)."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import closing
from multiprocessing.context import ForkServerProcess

import pytest

from holdfast import App
from holdfast.worker.maintenance import feed
from tests.support.forkserver import start_call
from tests.support.ledger import all_jobs, check_ledger
from tests.support.stores import put_one
from tests.support.transactions import Transaction
from tests.support.waiting import until

pytestmark = pytest.mark.req("DP-13", "DP-12", "CX-15")

MAKERS = 3


def _make(url: str) -> None:
    """The duty of a worker, and nothing else of it, for as long as it lives."""

    async def look() -> None:
        with closing(App(url, name="maker")) as app:
            while True:
                await feed(app._store, tenant="*")
                await asyncio.sleep(0.002)

    asyncio.run(look())


def events_of(app: App) -> Counter[str]:
    """How many jobs each event made, by subscription and event."""
    jobs = [job for job in all_jobs(app._store) if job.source_system == "subscription"]
    return Counter(f"{job.kind} {job.causation_id}" for job in jobs)


@pytest.mark.parametrize("kills", [8, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(900)])])
def test_each_event_has_one_job_however_often_its_makers_are_killed(
    app: App, choice: random.Random, kills: int
) -> None:
    store, wanted, told = app._store, 0, 0
    store.migrate()
    app.subscriptions.set("follow", "job.enqueue", "follow", of_kind="mail.send")
    app.subscriptions.set("hear", "news", "hear")

    def maker() -> ForkServerProcess:
        return start_call(_make, store.url)

    makers = [maker() for _ in range(MAKERS)]
    open_ones: list[Transaction] = []
    try:
        for _ in range(kills):
            have = sum(events_of(app).values())
            if not store.embedded:
                open_ones.append(Transaction(store))
                wanted += len(open_ones[-1].enqueue(choice.randint(1, 5)))
            for _ in range(choice.randint(1, 6)):
                put_one(store)
                app.send_event("news", {})
                wanted, told = wanted + 1, told + 1
            until(lambda have=have: sum(events_of(app).values()) > have, "somebody goes on")  # type: ignore[misc]
            time.sleep(choice.uniform(0, 0.01))  # at any moment of a maker's life
            victim = choice.randrange(MAKERS)
            makers[victim].kill()
            makers[victim].join(10)
            makers[victim] = maker()
            choice.shuffle(open_ones)
            for late in open_ones[2:]:
                late.end()
            del open_ones[2:]
        for late in open_ones:
            late.end()
        until(lambda: sum(events_of(app).values()) >= wanted + told, "they have caught up")
    finally:
        for one in makers:
            one.kill()
            one.join(10)
    made = events_of(app)
    assert set(made.values()) == {1}
    assert Counter(key.split()[0] for key in made) == {"follow": wanted, "hear": told}
    assert {each.name: each.made for each in app.subscriptions.list()} == {"follow": wanted, "hear": told}
    check_ledger(store)

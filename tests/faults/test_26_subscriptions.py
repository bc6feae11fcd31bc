"""Fault 26 for subscriptions: processes that create jobs from events are killed while transactions commit in another
order than they began. Each matching event creates exactly one job (DP-13)."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import closing
from multiprocessing.context import ForkServerProcess

import pytest

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.worker.maintenance import feed
from tests.support.forkserver import start_call
from tests.support.ledger import all_jobs, check_ledger
from tests.support.stores import put_one
from tests.support.transactions import Transaction
from tests.support.waiting import until

pytestmark = pytest.mark.req("DP-13", "DP-12", "CX-15")

FEEDERS = 3


def _feed(url: str) -> None:
    """Run the maintenance task of subscriptions until killed."""

    async def run() -> None:
        with closing(App(url, name="feeder")) as app:
            while True:
                await feed(session_of(app).store, tenant="*")
                await asyncio.sleep(0.002)

    asyncio.run(run())


def events_of(app: App) -> Counter[str]:
    """Count the jobs of each subscription and event."""
    jobs = [job for job in all_jobs(session_of(app).store) if job.source_system == "subscription"]
    return Counter(f"{job.kind} {job.causation_id}" for job in jobs)


@pytest.mark.parametrize("kills", [8, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(900)])])
def test_each_event_creates_one_job_despite_kills(app: App, choice: random.Random, kills: int) -> None:
    store, enqueued, sent = session_of(app).store, 0, 0
    store.migrate()
    app.subscriptions.set("follow", "job.enqueue", "follow", of_kind="mail.send")
    app.subscriptions.set("hear", "news", "hear")

    def feeder() -> ForkServerProcess:
        return start_call(_feed, store.url)

    feeders = [feeder() for _ in range(FEEDERS)]
    open_ones: list[Transaction] = []
    try:
        for _ in range(kills):
            have = sum(events_of(app).values())
            if not store.embedded:
                open_ones.append(Transaction(store))
                enqueued += len(open_ones[-1].enqueue(choice.randint(1, 5)))
            for _ in range(choice.randint(1, 6)):
                put_one(store)
                app.send_event("news", {})
                enqueued, sent = enqueued + 1, sent + 1
            until(lambda have=have: sum(events_of(app).values()) > have, "more jobs are created")  # type: ignore[misc]
            time.sleep(choice.uniform(0, 0.01))  # a random moment
            victim = choice.randrange(FEEDERS)
            feeders[victim].kill()
            feeders[victim].join(10)
            feeders[victim] = feeder()
            choice.shuffle(open_ones)
            for late in open_ones[2:]:
                late.end()
            del open_ones[2:]
        for late in open_ones:
            late.end()
        until(lambda: sum(events_of(app).values()) >= enqueued + sent, "they have caught up")
    finally:
        for one in feeders:
            one.kill()
            one.join(10)
    made = events_of(app)
    assert set(made.values()) == {1}
    assert Counter(key.split()[0] for key in made) == {"follow": enqueued, "hear": sent}
    assert {each.name: each.made for each in app.subscriptions.list()} == {"follow": enqueued, "hear": sent}
    check_ledger(store)

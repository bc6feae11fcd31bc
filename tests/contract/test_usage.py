"""Usage: counted from the ledger, each event once, and kept after the ledger is purged (HK-5)."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.engine.outcome import Failed, Snoozed, Succeeded
from holdfast.errors import InvalidSetting
from holdfast.features.assembly import Store, open_store
from holdfast.features.retention.model import Usage, check_cost, check_day, check_groups
from holdfast.stores.requests import Reschedule
from tests.support.features import keep, share, sweep
from tests.support.ledger import read_events
from tests.support.steps import asking
from tests.support.stores import (
    FINAL,
    claim,
    forward,
    open_lease,
    put,
    put_one,
    settle,
    spec,
    take,
    tries,
    work,
)

pytestmark = pytest.mark.req("HK-5")

EVENING = datetime(2026, 11, 20, 23, 0, tzinfo=UTC)


def total(store: Store, tenant: str = "*") -> Usage:
    (result,) = store.run(store.usage.list((), tenant))
    return result


def count(store: Store, page: int = 2000) -> int:
    counted = 0
    while some := store.run(store.usage.count(page, True)):
        counted += some
    return counted


def some_of_everything(store: Store) -> None:
    """Successes, retries, a dead letter, a lost worker, a cancel, an expiry, an approval, two tenants, two days."""
    store.run(store.clock.set(timedelta(0), EVENING))
    put(store, *(spec("mail") for _ in range(4)))
    put(store, spec("mail"), spec("report", retry=tries(2)), tenant="acme")
    forward(store, 60)
    held = claim(store, open_lease(store), 5)
    forward(store, 10)
    settle(store, held, Succeeded(cost=1.25))
    settle(store, take(store), Failed("broken", "it broke", cost=0.1))
    forward(store, 3600)  # past midnight
    store.run(store.leases.promote())
    forward(store, 5)
    settle(store, take(store), FINAL)
    lost = put_one(store, "mail")
    lease = open_lease(store, ttl=10)
    assert claim(store, lease)
    forward(store, 30)
    store.run(store.leases.recover())
    store.run(store.jobs.operate("cancel", [lost], None, "ada", "default"))
    put_one(store, "mail", deadline_at=store.run(store.clock.now()) + timedelta(seconds=1))
    forward(store, 30)
    store.run(store.leases.expire())
    later = put_one(store, "mail", delay=100.0)
    store.run(store.jobs.reschedule([later], Reschedule(delay=200), None, "ada", "default"))
    forward(store, 230)
    store.run(store.leases.promote())
    forward(store, 7)
    settle(store, take(store), Snoozed(0.0, cost=0.3))
    asking(store)


def test_sums_equal_the_ledger(store: Store) -> None:
    share(store)  # the order of the queue, without fair shares between tenants
    some_of_everything(store)
    assert store.run(store.usage.count()) == 0, "counting has not been started"
    events = read_events(store)
    assert count(store, 7) == len(events)
    result = total(store)
    event_types = Counter(event.type for event in events)
    assert (result.enqueued, result.started) == (event_types["enqueue"], event_types["take"] + event_types["start"])
    assert (result.succeeded, result.failed, result.dead) == (5, event_types["fail"], 1)
    assert (result.crashed, result.cancelled, result.expired) == (1, 1, 1)
    assert result.cost == pytest.approx(5 * 1.25 + 0.1 + 0.3, abs=1e-9)
    # Waits: five jobs of a minute, one of 70 seconds, its retry of five seconds after it was due; none for the lost job
    # and the one that waits for approval; 37 seconds for the rescheduled one after its time.
    acme = total(store, "acme")
    assert acme.run_time == 10.0
    assert acme.wait_time == pytest.approx(60 + 70 + 5, abs=0.01)
    everything = store.run(store.usage.list(("tenant", "kind", "day"), "*"))
    assert len(everything) == 6
    assert sum(each.enqueued for each in everything) == result.enqueued
    (mail,) = store.run(store.usage.list(("kind",), "default", since=EVENING.date(), until=EVENING.date(), kind="mail"))
    assert (mail.kind, mail.day, mail.enqueued, mail.run_time, mail.wait_time) == ("mail", None, 4, 40.0, 240.0)
    put_off = total(store, "default").wait_time - 240
    assert put_off == pytest.approx(230 + 7 - 200, abs=0.01)
    assert store.run(store.usage.list((), "nobody")) == []


def test_concurrent_counting_counts_each_event_once(store: Store, store_url: str) -> None:
    put(store, *(spec() for _ in range(60)))
    work(store, want=60)

    def count_some(number: int) -> int:
        with closing(open_store(store_url)) as own:
            return sum(own.run(own.usage.count(5 + number, True)) for _ in range(15))

    with ThreadPoolExecutor(3) as pool:
        counted = sum(pool.map(count_some, range(3)))
    counted += count(store)
    assert counted == len(read_events(store))
    assert (total(store).enqueued, total(store).started, total(store).succeeded) == (60, 60, 60)


def test_sums_survive_the_purge_of_jobs(store: Store) -> None:
    """Purged events were counted before, although no one had read the usage."""
    put(store, *(spec() for _ in range(5)))
    for held in claim(store, open_lease(store), 5):
        settle(store, held, Succeeded(cost=0.1))
    keep(store, None, "1h")
    forward(store, 5000)
    before = sweep(store)
    put_one(store)
    forward(store, 30)
    assert before["purge"] + sweep(store)["purge"] == 5
    count(store)
    result = total(store)
    assert (result.succeeded, result.cost) == (5, 0.5)
    assert replace(result, enqueued=0) == replace(total(store, "default"), enqueued=0)


def test_invalid_groups_days_and_costs_are_refused() -> None:
    assert check_groups(["day", "tenant"]) == ("tenant", "day")
    with pytest.raises(InvalidSetting, match="invalid_usage"):
        check_groups("hour")
    with pytest.raises(InvalidSetting, match="invalid_usage"):
        check_day("yesterday", EVENING)
    assert str(check_day(3, EVENING)) == "2026-11-17"
    for wrong in (-1, float("nan"), "3", True):
        with pytest.raises(InvalidSetting, match="invalid_cost"):
            check_cost(wrong)

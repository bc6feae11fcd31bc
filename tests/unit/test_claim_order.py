"""A worker claims from the head of its queues, unless that has become slow."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.engine.job import Claim, Exchange
from holdfast.worker import claim_order as module
from holdfast.worker.claim_order import Announcements, ClaimOrder, ClaimStart

pytestmark = pytest.mark.req("JF-3")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def taken(position: int, queue: str = "default", priority: int = 0, tenant: str = "default") -> Claim:
    facts: dict[str, Any] = dict.fromkeys(Claim.__slots__)
    return Claim(
        **facts
        | {"queue": queue, "priority": priority, "position": position, "tenant": tenant}
        | {"created_at": datetime(2026, 1, 1, tzinfo=UTC)}
    )


def test_fast_claim_keeps_starting_at_the_head(clock: Clock) -> None:
    search = ClaimOrder(("default",))
    search.learn(Exchange([taken(100)], [], True, 900), want=1, start=search.start())
    assert search.start().after == {}
    assert not search.exhausted


def test_slow_claim_continues_after_the_last_job_for_a_while(clock: Clock) -> None:
    search = ClaimOrder(("default", "mail"))
    search.learn(
        Exchange([taken(100), taken(300), taken(7, "mail", 2)], [], True, 50_000), want=3, start=search.start()
    )
    assert search.start().after == {"default": (0, 300), "mail": (2, 7)}
    search.learn(Exchange([taken(400)], [], True, 100), want=1, start=search.start())
    assert search.start().after == {"default": (0, 400), "mail": (2, 7)}
    clock.now += 0.99  # just less than twenty times fifty milliseconds
    assert search.start().after != {}
    clock.now += 0.02
    assert search.start().after == {}


@pytest.mark.req("DP-8")
def test_one_slow_claim_at_a_time_starts_at_the_head(clock: Clock) -> None:
    search = narrowed(clock, "default")
    clock.now += 11.0  # more than twenty times half a second
    from_head = search.start()
    assert from_head.after == {}
    assert search.start().after == {"default": (0, 100)}  # the other exchange, meanwhile
    search.learn(Exchange([taken(50)], [], True, 100), want=1, start=from_head)
    clock.now += 11.0
    assert search.start().after == search.start().after == {}  # the head is fast again


@pytest.mark.req("JF-12")
def test_shared_queue_is_claimed_from_its_head_more_often(clock: Clock) -> None:
    search = ClaimOrder(("default",))
    both = [taken(100, tenant="a"), taken(900, tenant="b")]
    search.learn(Exchange(both, [], True, 50_000), want=2, start=search.start())
    assert search.start().after == {"default": (0, 100)}
    clock.now += 0.21  # four times fifty milliseconds
    assert search.start().after == {}


def test_time_limit_grows_with_number_of_wanted_jobs(clock: Clock) -> None:
    search = ClaimOrder(("default",))
    many = [taken(n) for n in range(500)]
    search.learn(Exchange(many, [], True, 3_900), want=500, start=search.start())
    assert search.start().after == {}
    search.learn(Exchange(many, [], True, 4_100), want=500, start=search.start())
    assert search.start().after != {}


def test_only_a_claim_from_the_head_proves_that_queue_is_empty(clock: Clock) -> None:
    search = ClaimOrder(("default",))
    search.learn(Exchange([], [], True, 100), want=5, start=ClaimStart({"default": (0, 100)}, {}))
    assert not search.exhausted
    search.learn(Exchange([], [], True, 100), want=5, start=search.start())
    assert search.exhausted


def narrowed(clock: Clock, *queues: str) -> ClaimOrder:
    """An order that claims after the last job of each queue."""
    search = ClaimOrder(queues)
    claims = [taken(100, queue) for queue in queues]
    search.learn(Exchange(claims, [], True, 500_000), want=len(queues), start=search.start())
    assert set(search.start().after) == set(queues)
    return search


@pytest.mark.req("SC-3")
def test_reordered_queue_is_claimed_from_its_head_once(clock: Clock) -> None:
    search = narrowed(clock, "default", "mail")
    search.queue_reordered("mail")
    search.queue_reordered("of another worker")
    start = search.start()
    assert start.after == {"default": (0, 100)}
    search.learn(Exchange([taken(50, "mail")], [], True, 100), want=1, start=start)
    assert search.start().after == {"default": (0, 100), "mail": (0, 50)}


@pytest.mark.req("SC-3")
def test_lost_notifications_reset_every_queue_to_its_head(clock: Clock) -> None:
    search = narrowed(clock, "default", "mail")
    search.all_reordered()
    start = search.start()
    assert start.after == {}
    search.learn(Exchange([], [], True, 100), want=1, start=start)
    assert set(search.start().after) == {"default", "mail"}


@pytest.mark.req("SC-3")
def test_reorder_hint_survives_earlier_claims_and_claims_that_skip_its_queue(clock: Clock) -> None:
    search = narrowed(clock, "default", "mail")
    in_progress = search.start()
    search.queue_reordered("mail")
    search.learn(Exchange([taken(200, "mail")], [], True, 100), want=5, start=in_progress)
    assert "mail" not in search.start().after
    search.learn(
        Exchange([taken(300)], [], True, 100), want=1, start=search.start()
    )  # the first queue filled the claim
    start = search.start()
    assert "mail" not in start.after
    search.queue_reordered("mail")  # again, while a claim is in progress
    search.learn(Exchange([], [], True, 100), want=1, start=start)
    start = search.start()
    assert "mail" not in start.after
    search.learn(Exchange([], [], True, 100), want=1, start=start)
    assert "mail" in search.start().after


class ListeningStore:
    """What ``Announcements`` uses of a store."""

    listening = True

    def __init__(self) -> None:
        self.refreshed = 0

    def refresh_listening(self) -> None:
        self.refreshed += 1


@pytest.mark.req("JF-7")
def test_idle_worker_looks_again_before_it_has_jobs_announced(clock: Clock) -> None:
    announcements = Announcements(store := ListeningStore())  # type: ignore[arg-type]
    assert [announcements.decide(True, empty) for empty in range(3)] == [module.LOOK_EVERY] * 3
    assert (announcements.wanted, store.refreshed) == (False, 0)
    assert announcements.decide(True, 3) is None
    assert (announcements.wanted, store.refreshed) == (True, 1)
    clock.now += 3600
    assert announcements.decide(True, 4) is None
    assert store.refreshed == 1


@pytest.mark.req("JF-7")
def test_busy_worker_has_jobs_announced_no_longer(clock: Clock) -> None:
    announcements = Announcements(store := ListeningStore())  # type: ignore[arg-type]
    announcements.decide(True, 3)
    clock.now += 3600
    assert announcements.decide(False, 0) == pytest.approx(module.BUSY_AFTER)
    clock.now += module.BUSY_AFTER
    assert announcements.wanted
    assert announcements.decide(False, 0) is None
    assert (announcements.wanted, store.refreshed) == (False, 2)


@pytest.mark.req("JF-7")
def test_worker_under_a_steady_flow_looks_by_itself(clock: Clock) -> None:
    announcements = Announcements(store := ListeningStore())  # type: ignore[arg-type]
    announcements.decide(True, 3)
    for _ in range(200):
        clock.now += 0.005
        announcements.announced()
        assert announcements.decide(True, 0) is None, "a few hundred jobs a second are announced"
    decided = []
    for _ in range(3 * module.WAKES):
        clock.now += 0.001
        announcements.announced()
        decided.append(announcements.decide(True, 0))
    assert decided[-1] == module.LOOK_EVERY
    assert (announcements.wanted, store.refreshed) == (False, 2)


def test_worker_that_receives_no_notifications_decides_nothing() -> None:
    store = ListeningStore()
    store.listening = False
    announcements = Announcements(store)  # type: ignore[arg-type]
    assert announcements.decide(True, 100) is None
    assert not announcements.wanted

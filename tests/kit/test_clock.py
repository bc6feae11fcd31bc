"""The clock of the private database: it stands still until it is moved."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest

from holdfast import State
from holdfast.errors import InvalidSetting
from holdfast.testing import Kit
from tests.kit import shop

pytestmark = pytest.mark.req("HF-7")

ODD_DAY = datetime(2024, 2, 29, 12, tzinfo=UTC)


def test_what_is_due_by_then_runs(kit: Kit) -> None:
    soon = shop.send_receipt.using(delay="1h").enqueue("ada@example.com", 1)
    kit.travel("59m")
    assert kit.drain().attempts == 0
    kit.travel(timedelta(minutes=1))
    assert [job.id for job in kit.drain().jobs] == [soon.id]


def test_it_stands_still_and_the_store_with_it(kit: Kit) -> None:
    before = kit.now()
    assert abs(before - datetime.now(UTC)) < timedelta(minutes=1)
    time.sleep(0.002)
    store = shop.app._store
    assert kit.now() == before == store.run(store.clock.now())
    shop.send_receipt.enqueue("ada@example.com", 1)
    (job,) = kit.drain().jobs
    assert job.created_at == job.started_at == job.finished_at == before


def test_an_hour_from_now_is_an_hour_away_by_the_programs_clock_too(kit: Kit) -> None:
    """The program's own clock has gone on since the kit was opened."""
    time.sleep(0.05)
    shop.send_receipt.using(run_at=datetime.now(UTC) + timedelta(hours=1)).enqueue("ada@example.com", 1)
    assert kit.drain().attempts == 0
    kit.travel("1h")
    assert kit.drain().attempts == 1
    shop.send_receipt.using(run_at=datetime.now(UTC) + timedelta(hours=2)).enqueue("ada@example.com", 2)
    kit.travel("59m")
    assert kit.drain().attempts == 0
    kit.travel("1m")
    assert kit.drain().attempts == 1


def test_a_time_of_the_tests_own_is_exact(kit: Kit) -> None:
    assert kit.travel_to(ODD_DAY) == ODD_DAY
    shop.put_off.enqueue(60)
    (job,) = kit.drain().jobs
    assert job.due_at == ODD_DAY + timedelta(seconds=60)
    time.sleep(0.002)
    assert kit.travel("60s") == kit.now() == ODD_DAY + timedelta(seconds=60)
    assert kit.drain().states == {"succeeded": 1}
    kit.travel_to(ODD_DAY.astimezone(timezone(timedelta(hours=9))) + timedelta(days=1))
    assert kit.now() == ODD_DAY + timedelta(days=1)


def test_it_can_be_set_for_a_while(kit: Kit) -> None:
    before = kit.now()
    with kit.frozen(at=ODD_DAY):
        with kit.frozen():
            kit.travel("1d")
            assert kit.now() == ODD_DAY + timedelta(days=1)
        assert kit.now() == ODD_DAY
        shop.send_receipt.using(delay="1d").enqueue("ada@example.com", 1)
        assert kit.drain().attempts == 0
    assert kit.now() == before
    store = shop.app._store
    assert store.run(store.clock.now()) == before
    assert kit.drain().attempts == 1, "which is long ago"
    assert kit.travel("1h") > before + timedelta(hours=1), "it catches up again"


def test_the_machines_clock_is_left_alone(kit: Kit) -> None:
    before = datetime.now(UTC), time.monotonic()
    kit.travel("10d")
    assert datetime.now(UTC) - before[0] < timedelta(minutes=1)
    assert time.monotonic() - before[1] < 60


def test_moments_have_a_zone_and_time_does_not_go_back_by_spans(kit: Kit) -> None:
    with pytest.raises(InvalidSetting, match="time zone"):
        kit.travel_to(datetime(2024, 1, 1))
    with pytest.raises(InvalidSetting, match="time zone"):
        kit.frozen(datetime(2024, 1, 1))
    with pytest.raises(InvalidSetting, match="duration"):
        kit.travel("-1h")


def test_the_next_kit_begins_in_the_present(place: str | None) -> None:
    with Kit(shop.app, place) as kit:
        kit.travel("10d")
        shop.send_receipt.using(delay="1d").enqueue("ada@example.com", 1)
        assert kit.drain().attempts == 0
    with Kit(shop.app, place) as kit:
        assert abs(kit.now() - datetime.now(UTC)) < timedelta(minutes=1)
        shop.send_receipt.using(delay="1d").enqueue("ada@example.com", 1)
        assert kit.drain().attempts == 0
        assert [job.state for job in kit.enqueued()] == [State.QUEUED]

"""The clock of the private database: it stands still until the test moves it."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest

from holdfast import State
from holdfast.app.internals import session_of
from holdfast.errors import InvalidSetting
from holdfast.testing import Kit
from tests.kit import shop

pytestmark = pytest.mark.req("HF-7")

ODD_DAY = datetime(2024, 2, 29, 12, tzinfo=UTC)


def test_travel_makes_delayed_jobs_due(kit: Kit) -> None:
    soon = shop.send_receipt.using(delay="1h").enqueue("ada@example.com", 1)
    kit.travel("59m")
    assert kit.drain().attempts == 0
    kit.travel(timedelta(minutes=1))
    assert [job.id for job in kit.drain().jobs] == [soon.id]


def test_clock_stands_still_for_kit_and_store(kit: Kit) -> None:
    before = kit.now()
    assert abs(before - datetime.now(UTC)) < timedelta(minutes=1)
    time.sleep(0.002)
    store = session_of(shop.app).store
    assert kit.now() == before == store.run(store.clock.now())
    shop.send_receipt.enqueue("ada@example.com", 1)
    (job,) = kit.drain().jobs
    assert job.created_at == job.started_at == job.finished_at == before


def test_run_at_from_the_program_clock_is_due_after_travelling(kit: Kit) -> None:
    """The program's clock has run on since the kit was opened."""
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


def test_travel_to_sets_an_exact_time(kit: Kit) -> None:
    assert kit.travel_to(ODD_DAY) == ODD_DAY
    shop.snooze.enqueue(60)
    (job,) = kit.drain().jobs
    assert job.due_at == ODD_DAY + timedelta(seconds=60)
    time.sleep(0.002)
    assert kit.travel("60s") == kit.now() == ODD_DAY + timedelta(seconds=60)
    assert kit.drain().states == {"succeeded": 1}
    kit.travel_to(ODD_DAY.astimezone(timezone(timedelta(hours=9))) + timedelta(days=1))
    assert kit.now() == ODD_DAY + timedelta(days=1)


def test_frozen_restores_the_clock(kit: Kit) -> None:
    before = kit.now()
    with kit.frozen(at=ODD_DAY):
        with kit.frozen():
            kit.travel("1d")
            assert kit.now() == ODD_DAY + timedelta(days=1)
        assert kit.now() == ODD_DAY
        shop.send_receipt.using(delay="1d").enqueue("ada@example.com", 1)
        assert kit.drain().attempts == 0
    assert kit.now() == before
    store = session_of(shop.app).store
    assert store.run(store.clock.now()) == before
    assert kit.drain().attempts == 1, "the job was due long ago"
    assert kit.travel("1h") > before + timedelta(hours=1), "the clock follows real time again"


def test_system_clock_is_not_changed(kit: Kit) -> None:
    before = datetime.now(UTC), time.monotonic()
    kit.travel("10d")
    assert datetime.now(UTC) - before[0] < timedelta(minutes=1)
    assert time.monotonic() - before[1] < 60


def test_travel_rejects_naive_times_and_negative_durations(kit: Kit) -> None:
    with pytest.raises(InvalidSetting, match="time zone"):
        kit.travel_to(datetime(2024, 1, 1))
    with pytest.raises(InvalidSetting, match="time zone"):
        kit.frozen(datetime(2024, 1, 1))
    with pytest.raises(InvalidSetting, match="duration"):
        kit.travel("-1h")


def test_next_kit_starts_at_the_current_time(kit_url: str | None) -> None:
    with Kit(shop.app, kit_url) as kit:
        kit.travel("10d")
        shop.send_receipt.using(delay="1d").enqueue("ada@example.com", 1)
        assert kit.drain().attempts == 0
    with Kit(shop.app, kit_url) as kit:
        assert abs(kit.now() - datetime.now(UTC)) < timedelta(minutes=1)
        shop.send_receipt.using(delay="1d").enqueue("ada@example.com", 1)
        assert kit.drain().attempts == 0
        assert [job.state for job in kit.enqueued()] == [State.QUEUED]

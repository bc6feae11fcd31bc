"""Timings of schedules: valid and invalid expressions, time zones, and warnings about clock changes."""

from __future__ import annotations

import itertools
import zoneinfo
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.errors import InvalidSetting
from holdfast.features.schedules.recurrence import Timing, preview, zone_of

pytestmark = pytest.mark.req("SC-9")

START = datetime(2027, 1, 1, tzinfo=UTC)


def times(text: str, zone: str, start: datetime, count: int) -> list[str]:
    moments = itertools.islice(Timing.of(text, zone).after(start, start), count)
    return [f"{moment:%Y-%m-%dT%H:%M:%S}" for moment in moments]


@pytest.mark.parametrize(
    ("text", "words", "first"),
    [
        ("0 9 * * MON-FRI", "At 09:00 on Monday through Friday", "2027-01-01T09:00:00"),
        ("30 0 9 1 1 *", "At 09:00:30 on January 1", "2027-01-01T09:00:30"),
        ("@daily", "At 00:00 every day", "2027-01-02T00:00:00"),
        ("@Hourly", "At the start of every hour", "2027-01-01T01:00:00"),
        ("every 90 s", "every 1 min 30 s", "2027-01-01T00:01:30"),
        ("every 1h30m", "every 1 h 30 min", "2027-01-01T01:30:00"),
        ("at 2027-02-01 09:00", "once, on 2027-02-01 at 09:00:00", "2027-02-01T09:00:00"),
        ("at 2027-02-01T09:00:00+02:00", "once, on 2027-02-01 at 07:00:00", "2027-02-01T07:00:00"),
    ],
)
def test_timing_is_described_and_computed(text: str, words: str, first: str) -> None:
    timing = Timing.of(text)
    assert timing.words == words
    assert times(text, "UTC", START, 1) == [first]


@pytest.mark.parametrize(
    "text",
    [
        *("", "   ", "* * *", "* * * * * * *", "61 * * * *", "0 0 30 2 *", "0 0 * * MON#6", "@reboot", "@"),
        *("every 0.5 s", "every 20000d", "at noon", "at 2027-13-01", "0 9 * * *\x00", "*" * 201, "a b c d e"),
    ],
)
def test_invalid_timing_is_rejected(text: str) -> None:
    with pytest.raises(InvalidSetting, match="invalid_schedule"):
        Timing.of(text)


@pytest.mark.parametrize("zone", ["", "Mars/Base", "../../etc/passwd", "Europe", None, 7, "x" * 101])
def test_unknown_time_zone_is_rejected(zone: object) -> None:
    with pytest.raises(InvalidSetting, match="unknown_zone"):
        zone_of(zone)


def test_missing_zone_database_names_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoneinfo, "TZPATH", ())
    monkeypatch.setattr(zoneinfo, "available_timezones", set)
    with pytest.raises(InvalidSetting, match=r"no_zone_database.*pip install tzdata"):
        zone_of("Mars/Base")


def test_last_times_are_computed_from_the_end() -> None:
    """A year has half a million minutes; the search starts from the end."""
    timing, until = Timing.of("* * * * *", "Europe/Paris"), START + timedelta(days=365)
    last = timing.last(START, until, START, 5)
    assert last == [until - timedelta(minutes=n) for n in (4, 3, 2, 1, 0)]
    assert timing.last(START, START, START, 5) == [START]
    rare = Timing.of("0 0 1 1 *")
    assert rare.last(START, START + timedelta(days=800), START, 5) == [
        START,
        datetime(2028, 1, 1, tzinfo=UTC),
        datetime(2029, 1, 1, tzinfo=UTC),
    ]


def test_preview_warns_of_clock_changes() -> None:
    def warnings(text: str, start: datetime) -> list[tuple[str, str | None]]:
        coming = preview(Timing.of(text, "Europe/London"), start, start, 3)
        return [(f"{time.local:%d %H:%M}", time.warning) for time in coming]

    spring, autumn = datetime(2027, 3, 27, 12, tzinfo=UTC), datetime(2027, 10, 30, 12, tzinfo=UTC)
    assert warnings("30 1 * * *", spring) == [
        ("28 02:00", "01:30 on 2027-03-28 is left out by the clock: moved to 02:00"),
        ("29 01:30", None),
        ("30 01:30", None),
    ]
    assert warnings("30 1 * * *", autumn) == [
        ("31 01:30", "01:30 on 2027-10-31 comes twice: fires the first time only"),
        ("01 01:30", None),
        ("02 01:30", None),
    ]
    night = datetime(2027, 10, 30, 23, 45, tzinfo=UTC)  # a quarter to one in London
    assert warnings("*/30 * * * *", night)[:2] == [
        ("31 01:00", "01:00 on 2027-10-31 comes twice: fires both times"),
        ("31 01:30", "01:30 on 2027-10-31 comes twice: fires both times"),
    ]
    gap = datetime(2027, 3, 28, 0, 45, tzinfo=UTC)
    assert warnings("*/30 * * * *", gap)[0] == (
        "28 02:00",
        "01:00 on 2027-03-28 is left out by the clock: skipped; 01:30 on 2027-03-28 is left out by the clock: skipped",
    )
    assert [warning for _, warning in warnings("0 9 * * *", spring)] == [None] * 3

"""Fault 23: cron around daylight saving changes, in five time zones, against a hand-written table.

Each row has a time zone, an expression, and the UTC instants at which it must fire, computed by hand from the published
offsets: London 0/+1, New York -5/-4, Lord Howe +10:30/+11, Apia -10 (until it skipped a day), then +14, São Paulo -3/-2
until 2019 and -3 since.
"""

from __future__ import annotations

import itertools
from datetime import UTC, datetime

import pytest

from holdfast.features.schedules.recurrence import Timing, zone_of

pytestmark = pytest.mark.req("SC-9")

LONDON, NEW_YORK, LORD_HOWE = "Europe/London", "America/New_York", "Australia/Lord_Howe"
APIA, SAO_PAULO = "Pacific/Apia", "America/Sao_Paulo"

# zone, expression, after this instant, then (instant, local time) for each fire
TABLE = [
    # London springs forward on 2027-03-28 at 01:00: local times from 01:00 to 02:00 do not exist.
    (
        *(LONDON, "30 1 * * *", "2027-03-27T02:00"),
        [("2027-03-28T01:00", "28 02:00"), ("2027-03-29T00:30", "29 01:30"), ("2027-03-30T00:30", "30 01:30")],
    ),
    (
        *(LONDON, "*/30 * * * *", "2027-03-28T00:20"),
        [("2027-03-28T00:30", "28 00:30"), ("2027-03-28T01:00", "28 02:00"), ("2027-03-28T01:30", "28 02:30")],
    ),
    # It falls back on 2027-10-31 at 02:00: local times from 01:00 to 02:00 occur twice.
    (
        *(LONDON, "30 1 * * *", "2027-10-30T02:00"),
        [("2027-10-31T00:30", "31 01:30"), ("2027-11-01T01:30", "01 01:30")],
    ),
    (
        *(LONDON, "30 1 * * *", "2027-10-31T00:45"),  # inside the repeated hour, after its first 01:30
        [("2027-11-01T01:30", "01 01:30"), ("2027-11-02T01:30", "02 01:30")],
    ),
    (
        *(LONDON, "*/30 * * * *", "2027-10-30T23:45"),
        [
            *(("2027-10-31T00:00", "31 01:00"), ("2027-10-31T00:30", "31 01:30")),
            *(("2027-10-31T01:00", "31 01:00"), ("2027-10-31T01:30", "31 01:30"), ("2027-10-31T02:00", "31 02:00")),
        ],
    ),
    # The same with seconds.
    (
        *(LONDON, "15 30 1 * * *", "2027-03-27T02:00"),
        [("2027-03-28T01:00", "28 02:00"), ("2027-03-29T00:30:15", "29 01:30")],
    ),
    # New York springs forward on 2027-03-14 at 02:00 and falls back on 2027-11-07 at 02:00.
    (
        *(NEW_YORK, "30 2 * * *", "2027-03-13T08:00"),
        [("2027-03-14T07:00", "14 03:00"), ("2027-03-15T06:30", "15 02:30")],
    ),
    (
        *(NEW_YORK, "0 0 * * *", "2027-11-06T05:00"),
        [("2027-11-07T04:00", "07 00:00"), ("2027-11-08T05:00", "08 00:00")],
    ),
    (
        *(NEW_YORK, "0 1 * * SUN", "2027-11-01T00:00"),
        [("2027-11-07T05:00", "07 01:00"), ("2027-11-14T06:00", "14 01:00")],
    ),
    (
        *(NEW_YORK, "0 * * * *", "2027-11-07T04:30"),
        [("2027-11-07T05:00", "07 01:00"), ("2027-11-07T06:00", "07 01:00"), ("2027-11-07T07:00", "07 02:00")],
    ),
    # Lord Howe's summer is half an hour: 2027-10-03 at 02:00 it is 02:30, 2027-04-04 at 02:00 it is 01:30.
    (
        *(LORD_HOWE, "15 2 * * *", "2027-10-01T16:00"),
        [("2027-10-02T15:30", "03 02:30"), ("2027-10-03T15:15", "04 02:15")],
    ),
    (
        *(LORD_HOWE, "45 1 * * *", "2027-04-02T15:00"),
        [("2027-04-03T14:45", "04 01:45"), ("2027-04-04T15:15", "05 01:45")],
    ),
    (
        *(LORD_HOWE, "*/30 * * * *", "2027-10-02T14:45"),
        [("2027-10-02T15:00", "03 01:30"), ("2027-10-02T15:30", "03 02:30"), ("2027-10-02T16:00", "03 03:00")],
    ),
    (
        *(LORD_HOWE, "*/30 * * * *", "2027-04-03T14:15"),
        [("2027-04-03T14:30", "04 01:30"), ("2027-04-03T15:00", "04 01:30"), ("2027-04-03T15:30", "04 02:00")],
    ),
    # Apia skipped 2011-12-30: its 09:00 fires at the first instant of the 31st.
    (
        *(APIA, "0 9 * * *", "2011-12-29T00:00"),
        [
            *(("2011-12-29T19:00", "29 09:00"), ("2011-12-30T10:00", "31 00:00")),
            *(("2011-12-30T19:00", "31 09:00"), ("2011-12-31T19:00", "01 09:00")),
        ],
    ),
    (
        *(APIA, "0 * * * *", "2011-12-30T08:30"),
        [("2011-12-30T09:00", "29 23:00"), ("2011-12-30T10:00", "31 00:00"), ("2011-12-30T11:00", "31 01:00")],
    ),
    (
        *(APIA, "*/30 * 30 * *", "2011-12-29T12:00"),  # on the 30th of a month: that month has none
        [("2012-01-29T10:00", "30 00:00"), ("2012-01-29T10:30", "30 00:30")],
    ),
    # São Paulo sprang forward at midnight on 2018-11-04 and fell back at midnight on 2019-02-17, for the last time.
    (
        *(SAO_PAULO, "0 0 * * *", "2018-11-03T12:00"),
        [("2018-11-04T03:00", "04 01:00"), ("2018-11-05T02:00", "05 00:00")],
    ),
    (
        *(SAO_PAULO, "30 23 * * *", "2019-02-15T12:00"),
        [("2019-02-16T01:30", "15 23:30"), ("2019-02-17T01:30", "16 23:30"), ("2019-02-18T02:30", "17 23:30")],
    ),
    (
        *(SAO_PAULO, "0 * * * *", "2019-02-17T00:30"),
        [("2019-02-17T01:00", "16 23:00"), ("2019-02-17T02:00", "16 23:00"), ("2019-02-17T03:00", "17 00:00")],
    ),
    (
        *(SAO_PAULO, "0 0 * * *", "2027-11-06T12:00"),  # São Paulo no longer has daylight saving time
        [("2027-11-07T03:00", "07 00:00"), ("2027-11-08T03:00", "08 00:00")],
    ),
    # A single local time that does not exist, and one that occurs twice.
    ((LONDON), "at 2027-03-28 01:30", "2027-01-01T00:00", [("2027-03-28T01:00", "28 02:00")]),
    ((LONDON), "at 2027-10-31 01:30", "2027-01-01T00:00", [("2027-10-31T00:30", "31 01:30")]),
    # An interval ignores daylight saving time.
    (
        *(LONDON, "every 12h", "2027-03-27T18:00"),
        [("2027-03-28T06:00", "28 07:00"), ("2027-03-28T18:00", "28 19:00")],
    ),
]


@pytest.mark.parametrize(("zone", "text", "after", "expected"), TABLE)
def test_fire_times_equal_the_table(zone: str, text: str, after: str, expected: list[tuple[str, str]]) -> None:
    start = datetime.fromisoformat(after).replace(tzinfo=UTC)
    timing = Timing.of(text, zone)
    fires = list(itertools.islice(timing.after(start, start), len(expected)))
    wanted = [datetime.fromisoformat(instant).replace(tzinfo=UTC) for instant, _ in expected]
    assert fires == wanted
    assert [f"{moment.astimezone(zone_of(zone)):%d %H:%M}" for moment in fires] == [local for _, local in expected]
    # Counted back from the end, as after a downtime, they are the same.
    assert timing.last(wanted[0], wanted[-1], start, 100) == wanted
    # Each time leads to the next: none fires twice, none is skipped.
    for earlier, later in itertools.pairwise(wanted):
        assert timing.next(earlier, start) == later

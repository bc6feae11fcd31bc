"""Fault 23: cron around changes of the clock, in five zones, against a table that was written out by hand.

Each row is a clock on a wall, what the expression says, and the instants (UTC) at which it must fire, counted on
fingers from the published offsets: London 0/+1, New York -5/-4, Lord Howe +10:30/+11, Apia -10 (until its day was
left out), then +14, São Paulo -3/-2 until 2019 and -3 since.
"""

from __future__ import annotations

import itertools
from datetime import UTC, datetime

import pytest

from holdfast.features.schedules.recurrence import Timing, zone_of

pytestmark = pytest.mark.req("SC-9")

LONDON, NEW_YORK, LORD_HOWE = "Europe/London", "America/New_York", "Australia/Lord_Howe"
APIA, SAO_PAULO = "Pacific/Apia", "America/Sao_Paulo"

# zone, expression, after this instant, then (instant, what the wall shows) for each fire
TABLE = [
    # London springs forward on 2027-03-28 at 01:00: from 01:00 to 02:00 the wall shows nothing.
    (
        *(LONDON, "30 1 * * *", "2027-03-27T02:00"),
        [("2027-03-28T01:00", "28 02:00"), ("2027-03-29T00:30", "29 01:30"), ("2027-03-30T00:30", "30 01:30")],
    ),
    (
        *(LONDON, "*/30 * * * *", "2027-03-28T00:20"),
        [("2027-03-28T00:30", "28 00:30"), ("2027-03-28T01:00", "28 02:00"), ("2027-03-28T01:30", "28 02:30")],
    ),
    # and falls back on 2027-10-31 at 02:00: from 01:00 to 02:00 it shows everything twice.
    (
        *(LONDON, "30 1 * * *", "2027-10-30T02:00"),
        [("2027-10-31T00:30", "31 01:30"), ("2027-11-01T01:30", "01 01:30")],
    ),
    (
        *(LONDON, "30 1 * * *", "2027-10-31T00:45"),  # inside the hour that comes twice, made after its first half past
        [("2027-11-01T01:30", "01 01:30"), ("2027-11-02T01:30", "02 01:30")],
    ),
    (
        *(LONDON, "*/30 * * * *", "2027-10-30T23:45"),
        [
            *(("2027-10-31T00:00", "31 01:00"), ("2027-10-31T00:30", "31 01:30")),
            *(("2027-10-31T01:00", "31 01:00"), ("2027-10-31T01:30", "31 01:30"), ("2027-10-31T02:00", "31 02:00")),
        ],
    ),
    # With seconds it is the same.
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
    # Apia had no 2011-12-30: the day's nine o'clock is made up for at the first instant of the 31st.
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
        *(APIA, "*/30 * 30 * *", "2011-12-29T12:00"),  # whatever passes on a 30th: in that month nothing does
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
        *(SAO_PAULO, "0 0 * * *", "2027-11-06T12:00"),  # nothing changes there any more
        [("2027-11-07T03:00", "07 00:00"), ("2027-11-08T03:00", "08 00:00")],
    ),
    # A single time that the wall does not show, and one that it shows twice.
    ((LONDON), "at 2027-03-28 01:30", "2027-01-01T00:00", [("2027-03-28T01:00", "28 02:00")]),
    ((LONDON), "at 2027-10-31 01:30", "2027-01-01T00:00", [("2027-10-31T00:30", "31 01:30")]),
    # An interval knows no clock on a wall.
    (
        *(LONDON, "every 12h", "2027-03-27T18:00"),
        [("2027-03-28T06:00", "28 07:00"), ("2027-03-28T18:00", "28 19:00")],
    ),
]


@pytest.mark.parametrize(("zone", "text", "after", "expected"), TABLE)
def test_equals_the_table(zone: str, text: str, after: str, expected: list[tuple[str, str]]) -> None:
    start = datetime.fromisoformat(after).replace(tzinfo=UTC)
    timing = Timing.of(text, zone)
    found = list(itertools.islice(timing.after(start, start), len(expected)))
    wanted = [datetime.fromisoformat(instant).replace(tzinfo=UTC) for instant, _ in expected]
    assert found == wanted
    assert [f"{moment.astimezone(zone_of(zone)):%d %H:%M}" for moment in found] == [wall for _, wall in expected]
    # Seen from the end, as after a time of standstill, they are the same.
    assert timing.last(wanted[0], wanted[-1], start, 100) == wanted
    # And from each of them the next follows: no time is fired twice, none is left out.
    for earlier, later in itertools.pairwise(wanted):
        assert timing.next(earlier, start) == later

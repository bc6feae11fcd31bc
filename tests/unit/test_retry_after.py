"""`holdfast.retry_after` reads a Retry-After header of another service, whatever it contains."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.engine.retry import http_date, retry_after_delay
from holdfast.errors import InvalidSetting
from tests.support.strategies import CHARACTERS

pytestmark = pytest.mark.req("CX-9")

NOW = datetime(2026, 11, 15, 9, 0, tzinfo=UTC)
DAY = 86_400.0


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120.0),
        (" 120 ", 120.0),
        ("0", 0.0),
        ("007", 7.0),
        ("1.5", 1.5),
        (b"30", 30.0),
        (30, 30.0),
        (0, 0.0),
        ("Sun, 15 Nov 2026 09:02:00 GMT", 120.0),
        ("Sunday, 15-Nov-26 09:02:00 GMT", 120.0),  # RFC 850
        ("Sun Nov 15 09:02:00 2026", 120.0),  # asctime
        ("Sun, 15 Nov 2026 11:02:00 +0200", 120.0),
        (b"Sun, 15 Nov 2026 09:02:00 GMT", 120.0),
        ("Sun, 15 Nov 2026 08:00:00 GMT", 0.0),  # past
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
    ],
)
def test_seconds_and_dates_are_read(value: object, seconds: float) -> None:
    assert retry_after_delay(value, NOW, DAY) == seconds


@pytest.mark.parametrize(
    "value", ["99999999999", "9" * 100, "1" + "0" * 60 + ".5", 10**12, "Fri, 31 Dec 9999 23:59:59 GMT"]
)
def test_long_delay_is_capped(value: object) -> None:
    assert retry_after_delay(value, NOW, DAY) == DAY


@pytest.mark.parametrize(
    "value",
    [
        *(None, "", " ", "soon", "-5", "+5", "1e9", "inf", "nan", "0x10", "1_000", "5s", "5,5", "1.", ".5"),
        *("\u0661\u0662", "\uff11", "5\u200b", "1\x00", "12\n13", "9" * 101, "9" * 100_000, -1, 10**60, 1.5, True),
        *(b"\xff", [], {}, object(), "Sun, 99 Nov 2026 09:00:00 GMT", "Sun, 15 Nov 99999 09:00:00 GMT"),
        *("Sun, 15 Nov 2026 25:61:61 GMT", "Sun, 15 Nov 2026 09:00:00 +9999999", "GMT", "Sun,", ", , ,", "0 0 0 0"),
        "Sun, 15 Nov 2026 09:00:00 GMT" * 10,
    ],
)
def test_malformed_value_is_ignored(value: object) -> None:
    assert retry_after_delay(value, NOW, DAY) is None


@given(st.text(CHARACTERS, max_size=120) | st.binary(max_size=120) | st.integers() | st.floats() | st.none())
def test_delay_is_within_bounds_for_any_value(value: object) -> None:
    delay = retry_after_delay(value, NOW, DAY)
    assert delay is None or 0.0 <= delay <= DAY


@pytest.mark.slow
@given(st.from_regex(r"[A-Za-z]{0,9},? ?[0-9]{1,4}[ -][A-Za-z]{3}[ -][0-9]{1,9} [0-9:]{1,12} ?[A-Z0-9+-]{0,9}"))
def test_delay_is_within_bounds_for_date_like_text(value: str) -> None:
    delay = retry_after_delay(value, NOW, DAY)
    assert delay is None or 0.0 <= delay <= DAY


def test_date_is_relative_to_local_clock_or_date_header() -> None:
    then = datetime.now(UTC) + timedelta(minutes=10)
    delay = holdfast.retry_after(format_datetime(then, usegmt=True))
    assert delay is not None
    assert 590 < delay <= 600
    # If the clock of the service is an hour behind, it still means ten minutes.
    behind = format_datetime(then - timedelta(hours=1), usegmt=True)
    own = format_datetime(then - timedelta(hours=1, minutes=10), usegmt=True)
    assert holdfast.retry_after(behind) == 0.0
    assert holdfast.retry_after(behind, date=own) == 600.0
    assert holdfast.retry_after(behind, date="nonsense") == 0.0


def test_default_and_longest_apply() -> None:
    assert holdfast.retry_after(None) is None
    assert holdfast.retry_after("nonsense", default="30s") == 30.0
    assert holdfast.retry_after("5", default="30s") == 5.0
    assert holdfast.retry_after("500", longest="1m") == 60.0
    with pytest.raises(InvalidSetting):
        holdfast.retry_after("5", longest="soon")


def test_retry_later_accepts_result() -> None:
    assert holdfast.RetryLater(after=holdfast.retry_after("120")).after == 120.0
    assert holdfast.RetryLater(after=holdfast.retry_after("nonsense")).after is None, "the job's backoff applies"


def test_http_date_is_parsed() -> None:
    assert http_date("Sun, 15 Nov 2026 09:00:00 GMT") == NOW
    assert http_date("Sun, 15 Nov 2026 09:00:00 -0000") == NOW
    assert http_date(5) is None

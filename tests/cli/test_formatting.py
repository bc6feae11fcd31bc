"""Parsing and formatting of durations, times, names and lines of text."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.cli.demo import without_password
from holdfast.cli.options import queues_of
from holdfast.cli.output import duration, instant, line, plain, since, span
from holdfast.engine.job import Event
from holdfast.engine.states import State
from holdfast.errors import InvalidSetting
from holdfast.features.jobs.timeline import event_details, short_actor, timeline
from holdfast.telemetry.logs import JsonLines, TextLines

pytestmark = pytest.mark.req("CX-4")

NOON = datetime(2027, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.0004, "0 ms"),
        (0.12, "120 ms"),
        (0.9996, "1.0 s"),
        (1.24, "1.2 s"),
        (59.94, "59.9 s"),
        (59.97, "60 s"),
        (60, "1 m"),
        (190, "3 m 10 s"),
        (3600, "1 h"),
        (7500, "2 h 5 m"),
        (273_600, "3 d 4 h"),
        (-1.5, "-1.5 s"),
    ],
)
def test_durations_are_formatted(seconds: float, text: str) -> None:
    assert span(seconds) == text
    assert span(timedelta(seconds=seconds)) == text


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("1.5", 1.5), ("90s", 90), ("1h30m", 5400), ("200ms", 0.2)])
def test_durations_are_parsed(text: str, seconds: float) -> None:
    assert duration(text, "delay") == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1", "nan", "inf", "1e999", "5 parsecs", "1h-"])
def test_invalid_duration_is_rejected(text: str) -> None:
    with pytest.raises(InvalidSetting):
        duration(text, "delay")


def test_times_are_parsed() -> None:
    assert instant("2027-01-31T13:00+01:00", "--at") == NOON
    assert since("90m", "--since", lambda: NOON) == NOON - timedelta(minutes=90)
    assert since("2027-01-31T12:00Z", "--since", lambda: NOON) == NOON
    assert since(None, "--since", lambda: NOON) is None
    for text in ("2027-01-31T12:00", "noon", "0001-01-01T00:00+14:00"):
        with pytest.raises(InvalidSetting):
            instant(text, "--at")


def test_line_escapes_control_characters_and_truncates() -> None:
    assert line("a\r\n\tb\x1b[1m\x00") == "a b\\x1b[1m\\x00"
    assert line("x" * 300, 10) == "x" * 9 + "…"
    assert plain("a\nb\tc\x7f\u202e\udc80") == "a\nb\tc\\x7f\\u202e\\udc80"


def event(event_type: str, target: State, at: datetime = NOON, source: State | None = None, **meta: object) -> Event:
    return Event(1, "id", "t", "k", event_type, source, target, 1, at, "ada", dict(meta))


def test_details_of_a_history_event() -> None:
    failed = event("fail", State.FAILED, error_code="boom", error_message="it broke", traceback="long")
    assert event_details(failed) == "boom: it broke"
    assert event_details(event("dead_letter", State.DEAD_LETTER, error_code="boom", error_message="it broke")) == ""
    assert event_details(event("retry", State.RETRY_WAITING, due_at="2027-01-31T12:00:02.500Z")) == "again in 2.5 s"
    before_midnight = datetime(2027, 1, 31, 23, 59, 30, tzinfo=UTC)
    over_midnight = event("retry", State.RETRY_WAITING, before_midnight, due_at="2027-02-01T00:00:30.000Z")
    assert event_details(over_midnight) == "again in 1 m"
    assert event_details(event("retry", State.RETRY_WAITING, due_at="2027-02-01T12:00:00.000Z")) == (
        "again at 2027-02-01 12:00:00.000"
    )
    assert event_details(event("retry", State.RETRY_WAITING, due_at="whenever")) == "due whenever"
    assert event_details(event("cancel", State.CANCELLED, reason="[b]no[/b]", ticket=7)) == "[b]no[/b]; ticket: 7"


def test_timeline_shows_the_date_once_per_day() -> None:
    assert timeline([]) == []
    rows = timeline([event("enqueue", State.QUEUED, NOON + timedelta(hours=hours)) for hours in (0, 1, 24)])
    assert [str(row[0]).strip() for row in rows] == [
        "2027-01-31 12:00:00.000",
        "13:00:00.000",
        "2027-02-01 12:00:00.000",
    ]
    assert [row[1] for row in rows] == ["", "+1 h", "+23 h"]


def test_worker_names_are_shortened() -> None:
    assert short_actor("worker 031546f3-44da-4901-bb20-dce5afa4fee9 (vm:26531)") == "worker 031546f3 (vm:26531)"


@pytest.mark.parametrize("formatter", [TextLines(), JsonLines()])
def test_job_cannot_forge_a_log_line(formatter: logging.Formatter) -> None:
    record = logging.LogRecord("holdfast", logging.WARNING, "", 1, "job %s", ("a\n12:00 info forged\x1b[1m",), None)
    text = formatter.format(record)
    assert "\n" not in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:////tmp/a.db", "sqlite:////tmp/a.db"),
        ("postgresql://u:geheim@h:5/d", "postgresql://u@h:5/d"),
        ("postgresql://u@h/d", "postgresql://u@h/d"),
        ("postgresql:///d?user=x&password=geheim&sslmode=require", "postgresql:///d?user=x&&sslmode=require"),
    ],
)
def test_password_is_removed_from_url(url: str, shown: str) -> None:
    assert without_password(url) == shown


@pytest.mark.parametrize("text", ["mail=3", "mail:-1", "mail:1.5", "default,mail=30%", "mail: .5"])
def test_malformed_weight_is_not_taken_for_a_queue_name(text: str) -> None:
    """A worker that serves the queue ``mail=3`` would find no jobs and report nothing."""
    with pytest.raises(InvalidSetting) as refused:
        queues_of(text)
    assert refused.value.code == "invalid_weight"


def test_queues_and_weights_are_parsed() -> None:
    assert queues_of("mail:3,default") == (("mail", "default"), {"mail": 3, "default": 1})
    assert queues_of("mail=3:1,a:b") == (("mail=3", "a:b"), {"mail=3": 1, "a:b": 1})

"""Fingerprints group failures: variable parts of the message are left out, the raising function is not."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.engine.redaction import Redactor
from holdfast.engine.settlement import KEPT, fingerprint, shape
from holdfast.telemetry.tracebacks import failure

pytestmark = pytest.mark.req("DP-15")

SHAPES = {
    "order 17 was refused": "order <n> was refused",
    "order ord_8fK2x9 was refused": "order <n> was refused",
    "took 3.25 s, of 1,000": "took <n> s, of <n>",
    "job 01a1de74-eb8c-70f1-843b-cac5f6817387 is gone": "job <id> is gone",
    "at 2027-01-31T09:00:00.123Z and 2027-01-31 09:00+01:00": "at <time> and <time>",
    "for 2027-01-31": "for <time>",
    "no column 'name' in \"people\", nor in `x y`": "no column <text> in <text>, nor in <text>",
    "it doesn't work, it can't": "it doesn't work, it can't",
    "cannot open /var/lib/x/7.csv: denied": "cannot open <path>: denied",
    r"cannot open C:\data\7.csv: denied": "cannot open <path>: denied",
    "and/or": "and/or",
    "GET https://api.example.com/v1/7?x=1 failed": "GET <url> failed",
    "connect to 10.0.0.7:5432 failed": "connect to <n> failed",
    "<Thing object at 0x7f8f2530cd50>": "<Thing object at <n>>",
    "digest deadbeefcafe is wrong": "digest <n> is wrong",
    "the facade is decade old": "the facade is decade old",
    "  two\n\tlines  ": "two lines",
    "straße 7 ñ": "straße <n> ñ",
    "": "",
    "x" * 2000: "x" * KEPT,
}


@pytest.mark.parametrize(("message", "expected"), SHAPES.items(), ids=[text[:20] for text in SHAPES])
def test_shape_replaces_variable_parts_of_message(message: str, expected: str) -> None:
    assert shape(message) == expected
    assert shape(expected) == expected, "a shape is its own shape"


def test_fingerprint_depends_on_kind_code_shape_and_frame() -> None:
    one = fingerprint("pay", "Refused", "order 1", "shop:charge")
    assert one == fingerprint("pay", "Refused", "order 2", "shop:charge")
    others = [("repay", "Refused", "order 1", "shop:charge"), ("pay", "Broken", "order 1", "shop:charge")]
    others += [("pay", "Refused", "item 1", "shop:charge"), ("pay", "Refused", "order 1", "shop:refund")]
    assert len({one, fingerprint("pay", "Refused", "order 1"), *(fingerprint(*other) for other in others)}) == 6
    assert len(one) == 16


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="aF0_'\"/ -:.\\<n>é", max_size=60))
def test_shape_accepts_any_message(message: str) -> None:
    assert len(shape(message)) <= KEPT


def test_shape_takes_linear_time_on_hostile_text() -> None:
    began = time.process_time()
    for unit in ("a", "a-", "'a", "/", "a:", "0-", "<n>.", "A_", "http"):
        shape(unit * 4000)
    assert time.process_time() - began < 2


def _refuse() -> None:
    raise ValueError("refused")


def _through_a_library() -> None:
    json.loads("{")


def _inside() -> None:
    def deeper() -> None:
        _refuse()

    deeper()


@pytest.mark.parametrize(
    ("function", "frame"),
    [
        (_refuse, f"{__name__}:_refuse"),
        (_through_a_library, f"{__name__}:_through_a_library"),
        (_inside, f"{__name__}:_refuse"),
    ],
)
def test_frame_is_last_frame_of_users_code(function: Callable[[], None], frame: str) -> None:
    """Not the library that raised the error, and not the line number, which every edit changes."""
    with pytest.raises(ValueError) as raised:
        function()
    assert failure(raised.value, Redactor()).frame == frame


def test_error_that_was_never_raised_has_no_frame() -> None:
    assert failure(ValueError("x"), Redactor()).frame is None

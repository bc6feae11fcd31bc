"""JSON payloads round-trip; anything else is rejected with a code and a path, at bounded cost."""

from __future__ import annotations

import enum
import json
import random
import sys
import time
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.engine.payload import DEFAULT_LIMIT, MAX_DEPTH, JsonValue, canonical, decode, encode, safe_text
from holdfast.errors import InvalidPayload

pytestmark = [
    pytest.mark.req("DP-3"),
    # Threads of other tests draw random pauses while Hypothesis generates values; no strategy here uses the module.
    pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies"),
]

storable = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]))
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | storable
)
values: st.SearchStrategy[JsonValue] = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(storable, inner), max_leaves=40
)
hostile_text = st.text(st.sampled_from("a\\u0\x00\ud800\udfffé😀\n\"'"), max_size=20)


class Colour(enum.Enum):
    RED = "red"


class Text(str, enum.Enum):  # noqa: UP042 - the older spelling, which is still common
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


Point = namedtuple("Point", "x y")


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def looped(times: int) -> list[Any]:
    """A list that holds itself, and nothing else."""
    value: list[Any] = []
    value.extend([value] * times)
    return value


@contextmanager
def refused(code: str, within: float = 20.0) -> Iterator[pytest.ExceptionInfo[InvalidPayload]]:
    began = time.process_time()
    with pytest.raises(InvalidPayload) as caught:
        yield caught
    assert caught.value.code == code
    assert time.process_time() - began < within
    assert len(str(caught.value).encode()) < 2_000


def exact(value: object) -> str:
    """Tells 1, 1.0 and True apart, which == does not."""
    return json.dumps(value, sort_keys=True)


@pytest.mark.slow
@given(values)
@example("\\u0000")
@example({"\\u0000": "\\\\u0000 \x01 \x7f \u2028"})
@example(-0.0)
@example([10**999, -(10**999), 1.7976931348623157e308, 5e-324])
def test_payload_round_trips(value: JsonValue) -> None:
    for write in (encode, canonical):
        text = write(value)
        assert exact(decode(text)) == exact(decode(text.encode())) == exact(value)


@pytest.mark.slow
@given(values)
def test_size_limit_is_exact_and_in_bytes(value: JsonValue) -> None:
    size = len(encode(value).encode())
    assert encode(value, limit=size) == encode(value)
    with refused("payload_too_large"):
        encode(value, limit=size - 1)


@pytest.mark.slow
@given(values)
def test_text_is_compact_and_not_escaped(value: JsonValue) -> None:
    assert encode(value) == json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@pytest.mark.slow
@given(values)
def test_decoded_text_can_be_encoded(value: JsonValue) -> None:
    assert exact(decode(encode(decode(json.dumps(value, indent=3))))) == exact(value)


def shuffled(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict):
        pairs = [(key, shuffled(item, rng)) for key, item in value.items()]
        rng.shuffle(pairs)
        return dict(pairs)
    return [shuffled(item, rng) for item in value] if isinstance(value, list) else value


@pytest.mark.slow
@given(values, st.randoms(use_true_random=False))
def test_canonical_text_does_not_depend_on_the_order_of_keys(value: JsonValue, rng: random.Random) -> None:
    assert canonical(shuffled(value, rng)) == canonical(value)


def test_canonical_text_is_sorted_and_distinguishes_number_types() -> None:
    assert canonical({"b": [1, 1.0, True], "a": {"é": 1, "z": None}}) == '{"a":{"z":null,"é":1},"b":[1,1.0,true]}'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((1, (2,)), "[1,[2]]"),
        (Point(1, 2), "[1,2]"),
        (OrderedDict(b=1, a=(Text.RED, Number.ONE)), '{"b":1,"a":["red",1]}'),
        ({Text.RED: 1}, '{"red":1}'),
        ([True, None, "é", 0.1], '[true,null,"é",0.1]'),
    ],
)
def test_subclasses_are_encoded_as_their_base_type(value: object, text: str) -> None:
    assert encode(value) == text


@pytest.mark.parametrize(
    ("value", "code", "where"),
    [
        (object(), "payload_not_json", "payload $: object"),
        (
            {"items": [1, 2, 3, {"when": datetime(2026, 1, 1, tzinfo=UTC)}]},
            "payload_not_json",
            "$.items[3].when: datetime",
        ),
        ({"a b": [b"x"]}, "payload_not_json", '$["a b"][0]: bytes'),
        ({"a": {1, 2}}, "payload_not_json", "$.a: set"),
        ([Decimal("1e400")], "payload_not_json", "$[0]: decimal.Decimal"),
        ([Colour.RED], "payload_not_json", "$[0]: "),
        ([mock.Mock(spec=dict)], "payload_not_json", "$[0]: unittest.mock.Mock"),
        (OrderedDict(a=[1j]), "payload_not_json", "$.a[0]: complex"),
        (float("nan"), "payload_not_finite", "payload $: "),
        ({"a": [float("inf")]}, "payload_not_finite", "$.a[0]"),
        ([[-1e400]], "payload_not_finite", "$[0][0]"),
        ("a\x00", "payload_bad_text", "payload $: "),
        ({"a": ["\ud800"]}, "payload_bad_text", "$.a[0]"),
        ({"a": {"\x00": 1}}, "payload_bad_text", "$.a: a key"),
        ({"a": {"x\udfff": 1}}, "payload_bad_text", "$.a: a key"),
        ({"a": ["\\u0000", "\x00"]}, "payload_bad_text", "$.a[1]"),
        ({"n": 10**1000}, "payload_bad_number", "$.n"),
        ({"n": -(10**1000)}, "payload_bad_number", "$.n"),
        ([10**5000], "payload_bad_number", "$[0]"),
        ({1: "a"}, "payload_bad_key", "a key is int"),
        ({"a": {None: 1}}, "payload_bad_key", "$.a: a key is NoneType"),
        ({"a": [{True: 1}]}, "payload_bad_key", "$.a[0]: a key is bool"),
        ({"a": {(1, 2): 1}}, "payload_bad_key", "$.a: a key is tuple"),
        ({"b": 1, 2.5: 1}, "payload_bad_key", "a key is float"),
    ],
)
def test_rejection_has_code_and_path(value: object, code: str, where: str) -> None:
    for write in (encode, canonical):
        with refused(code) as caught:
            write(value)
        assert where in str(caught.value)


def test_rejection_names_field_but_not_value() -> None:
    with refused("payload_bad_text") as caught:
        encode({"password": "hunter2\x00"}, what="result")
    assert str(caught.value).startswith("result $.password: ")
    assert "hunter2" not in str(caught.value)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("value", "code"),
    [
        (nested(20_000), "payload_too_deep"),
        (nested(MAX_DEPTH + 1), "payload_too_deep"),
        ({"a": OrderedDict(b=nested(MAX_DEPTH - 1))}, "payload_too_deep"),
        (looped(1), "payload_too_deep"),
        (looped(2), "payload_too_large"),
        (looped(1_000), "payload_too_large"),
        (["x" * 1_000_000] * 100_000, "payload_too_large"),
        ([{"k" * 1_000_000: 1}] * 100_000, "payload_too_large"),
        ("é" * (DEFAULT_LIMIT // 2), "payload_too_large"),
        ("x" * 50_000_000, "payload_too_large"),
        (range(0), "payload_not_json"),
        ([0] * 5_000_000, "payload_too_large"),
        ({Text.RED: [Text.RED] * 1_000_000}, "payload_too_large"),
    ],
    ids=lambda _: "",
)
def test_expensive_payload_is_rejected_early(value: object, code: str) -> None:
    with refused(code):
        encode(value)


def test_maximum_depth_is_accepted() -> None:
    for value in (nested(MAX_DEPTH), OrderedDict(a=nested(MAX_DEPTH - 1))):
        assert decode(encode(value)) == value


def test_many_string_subclass_keys_take_linear_time() -> None:
    class Key(str):
        __slots__ = ()

    began = time.process_time()
    encode({Key(n): n for n in range(40_000)})
    assert time.process_time() - began < 10.0  # comparing all pairs would take minutes


@given(hostile_text)
def test_text_round_trips_if_it_can_be_stored(text: str) -> None:
    bad = "\x00" in text or any("\ud800" <= letter <= "\udfff" for letter in text)
    for value in (text, [text], {text: 1}, {"a": [text]}):
        if bad:
            with refused("payload_bad_text"):
                encode(value)
        else:
            assert decode(encode(value)) == value


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "payload_not_json"),
        ("[1,]", "payload_not_json"),
        ("{'a': 1}", "payload_not_json"),
        ('{"a": 1} x', "payload_not_json"),
        ('"a\x00b"', "payload_not_json"),
        ("\ufeff1", "payload_not_json"),
        ("NaN", "payload_not_finite"),
        ("[-Infinity]", "payload_not_finite"),
        ("[1e400]", "payload_not_finite"),
        ("9" * 400 + ".5", "payload_not_finite"),
        (r'"\u0000"', "payload_bad_text"),
        (r'{"\ud800": 1}', "payload_bad_text"),
        (r'["\udc00\ud800"]', "payload_bad_text"),
        ('"\ud800"', "payload_bad_text"),
        (b'"\xff"', "payload_bad_text"),
        (b'"\xed\xa0\x80"', "payload_bad_text"),
        ("1" * 1_001, "payload_bad_number"),
        ("-" + "1" * 5_000, "payload_bad_number"),
        ("1" * 1_000_000, "payload_bad_number"),
        ("[" * 20_000 + "]" * 20_000, "payload_too_deep"),
        ("[" * 20_000, "payload_too_deep"),
        ('{"a":' * 20_000 + "1" + "}" * 20_000, "payload_too_deep"),
        ("[" * 101 + "]" * 101, "payload_too_deep"),
    ],
)
def test_json_text_that_cannot_be_stored_is_rejected(text: str | bytes, code: str) -> None:
    with refused(code):
        decode(text)


def test_lower_digit_limit_of_interpreter_rejects_long_numbers() -> None:
    allowed = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        with refused("payload_bad_number"):
            encode([10**900])
        with refused("payload_bad_number"):
            decode("9" * 900)
    finally:
        sys.set_int_max_str_digits(allowed)


def test_json_text_at_limits_is_accepted() -> None:
    assert decode("[" * 100 + "]" * 100) == nested(100)
    assert decode("-" + "9" * 1_000) == -(10**1_000 - 1)
    assert decode(r'"\\u0000 \ud83d\ude00"') == "\\u0000 😀"
    assert decode('"' + "[" * 500 + '"') == "[" * 500
    assert decode('{"a":1,"a":2}') == {"a": 2}


@given(st.text(st.characters()) | hostile_text, st.integers(-5, 80))
def test_safe_text_is_storable_within_limit_and_unchanged_otherwise(text: str, limit: int) -> None:
    safe = safe_text(text, limit)
    assert decode(encode(safe)) == safe
    assert len(safe) <= max(limit, 0)
    if len(text) <= limit:
        assert len(safe) == len(text)
        assert all(a == b or b == "\ufffd" for a, b in zip(text, safe, strict=True))


@pytest.mark.parametrize("size", [41, 99, 100, 101, 999, 1_000, 10_000_000])
def test_safe_text_states_number_of_cut_characters(size: int) -> None:
    safe = safe_text("x" * size, 40)
    kept = safe.count("x")
    assert safe == "x" * kept + f"… [{size - kept} characters cut]"
    assert 39 <= len(safe) <= 40


def test_safe_text_omits_note_if_it_does_not_fit() -> None:
    assert safe_text("abcdefgh\x00", 3) == "abc"
    assert safe_text("\x00\ud800", 10) == "\ufffd\ufffd"

"""Idempotency keys are equal for equal work and differ otherwise; names are readable and typeable."""

from __future__ import annotations

import enum
import hashlib
import random
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from holdfast.engine.names import check_name, content_hash, content_key
from holdfast.engine.payload import JsonValue, canonical, decode
from holdfast.errors import InvalidPayload, InvalidSetting

pytestmark = pytest.mark.req("HK-2")

# Few letters and many colons, to test the separators of a key.
names = st.text(st.sampled_from("ab: "), min_size=1, max_size=5) | st.sampled_from(["global", "{}", "1", '"'])
tenants = st.none() | names
odd: list[JsonValue] = [0.0, 1.0, "", "a", "::", ":a::1", "global"]
leaves: st.SearchStrategy[JsonValue] = st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(odd)
payloads: st.SearchStrategy[JsonValue] = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc:"), inner, max_size=4),
    max_leaves=8,
)


class Queue(enum.StrEnum):
    MAIL = "mail"


def key_or_none(kind: str, tenant: str | None, payload: JsonValue) -> str | None:
    try:
        return content_key(kind, tenant, payload)
    except InvalidSetting:
        return None


def shuffled(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict):
        pairs = [(key, shuffled(item, rng)) for key, item in value.items()]
        rng.shuffle(pairs)
        return dict(pairs)
    return [shuffled(item, rng) for item in value] if isinstance(value, list) else value


def test_content_key_format() -> None:
    assert content_key("mail.send", None, {"b": 1, "a": [True]}) == 'mail.send::global::{"a":[true],"b":1}'
    assert content_key("mail:send", ":acme", "é") == 'mail:send:::acme::"é"'
    assert content_key(Queue.MAIL, Queue.MAIL, 1) == "mail::mail::1"


@given(names, tenants, payloads, st.randoms(use_true_random=False))
def test_content_key_ignores_order_of_payload_keys(
    kind: str, tenant: str | None, payload: JsonValue, rng: random.Random
) -> None:
    assert key_or_none(kind, tenant, payload) == key_or_none(kind, tenant, shuffled(payload, rng))


@pytest.mark.slow
@given(st.tuples(names, tenants, payloads), st.tuples(names, tenants, payloads))
@example(("a:", "b", 1), ("a", ":b", 1))
@example(("a", "b::c", 1), ("a::b", "c", 1))
@example(("a", None, 1), ("a", "global", 1))
@example(("a", "b", "::c"), ("a", "b::", "c"))
@example(("a", "b", 1), ("a", "b", True))
def test_different_work_has_different_keys(
    one: tuple[str, str | None, JsonValue], two: tuple[str, str | None, JsonValue]
) -> None:
    assume((one[0], one[1], canonical(one[2])) != (two[0], two[1], canonical(two[2])))
    first, second = key_or_none(*one), key_or_none(*two)
    assert first is None or first != second


@pytest.mark.slow
@given(names, tenants, payloads)
def test_content_key_can_be_split_into_its_parts(kind: str, tenant: str | None, payload: JsonValue) -> None:
    key = key_or_none(kind, tenant, payload)
    assume(key is not None)
    assert key is not None
    first, second, rest = key.split("::", 2)
    assert (first, second) == (kind, tenant or "global")
    assert decode(rest) == payload


def test_ambiguous_kind_or_tenant_is_rejected() -> None:
    for kind, tenant in [
        ("a::b", None),
        ("a:", None),
        ("a", "b::c"),
        ("a", "b:"),
        ("a", "global"),
        ("", None),
    ]:
        with pytest.raises(InvalidSetting) as caught:
            content_key(kind, tenant, 1)
        assert caught.value.code == "invalid_name"


def test_content_hash_is_sha256_of_content_key() -> None:
    payload: JsonValue = {"b": "ü", "a": 1}
    expected = hashlib.sha256(content_key("k", "t", payload).encode()).hexdigest()
    assert content_hash("k", "t", {"a": 1, "b": "ü"}) == expected


def test_payload_that_is_not_json_has_no_key() -> None:
    with pytest.raises(InvalidPayload):
        content_key("k", None, {"a": float("nan")})
    with pytest.raises(InvalidPayload) as caught:
        content_hash("k", None, "x" * 100, limit=50)
    assert caught.value.code == "payload_too_large"


@pytest.mark.parametrize("name", ["a", "mail.send", "a b", "größe", "邮件", "a:b", "**", "x" * 100, "می\u200cخواهم"])
def test_valid_name_is_returned(name: str) -> None:
    assert check_name(name, "queue") == name


def test_enum_member_becomes_its_text() -> None:
    name = check_name(Queue.MAIL, "queue")
    assert type(name) is str
    assert name == "mail"


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", "\t", "\u3000", " a", "a ", "a\n", "\u00a0a", "*", "x" * 101),
        *(
            "a\x00b",
            "a\rb",
            "a\x1bb",
            "a\x7fb",
            "a\x85b",
            "a\u2028b",
            "a\u202eb",
            "a\u200bb",
            "a\ufeffb",
            "a\ud800b",
        ),
        *(None, 7, b"a", ["a"]),
    ],
)
def test_invalid_name_is_rejected(name: object) -> None:
    with pytest.raises(InvalidSetting) as caught:
        check_name(name, "queue")
    assert caught.value.code == "invalid_name"
    assert caught.value.message.startswith("the queue ")


def test_name_length_limit_can_be_set() -> None:
    assert check_name("abc", "tag", limit=3) == "abc"
    with pytest.raises(InvalidSetting):
        check_name("abcd", "tag", limit=3)


@given(st.text(st.characters(), max_size=120))
def test_accepted_name_can_be_stored_and_printed_on_one_line(text: str) -> None:
    try:
        name = check_name(text, "tag")
    except InvalidSetting:
        return
    name.encode()
    assert name == text.strip()
    assert name.splitlines() == [name]
    assert 1 <= len(name) <= 100

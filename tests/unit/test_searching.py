"""Searching jobs with words: what is understood, and what is refused with which words."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.states import State
from holdfast.errors import InvalidInput, InvalidSetting
from holdfast.features.jobs.search import narrowed, parse
from tests.support.strategies import CHARACTERS

pytestmark = pytest.mark.req("JF-14", "JF-16")

NOW = datetime(2027, 1, 31, 12, tzinfo=UTC)


def test_qualifiers_and_words() -> None:
    found = parse(
        'State:dead-letter kind:"send mail" since:1h until:2027-01-30 Timeout "Connection refused" tag:a:b', NOW
    )
    assert found.given == {
        "state": State.DEAD_LETTER,
        "kind": "send mail",
        "since": NOW - timedelta(hours=1),
        "until": datetime(2027, 1, 30, tzinfo=UTC),
        "tag": "a:b",
    }
    assert found.words == ("timeout", "connection refused")
    wanted = found.filter("acme", limit=5)
    assert (wanted.tenant, wanted.limit, wanted.kind) == ("acme", 5, "send mail")
    assert parse("", NOW).given == {}


def test_what_is_given_besides_must_agree() -> None:
    found = parse("kind:a", NOW)
    assert narrowed(found, kind="a", queue=None, agent="x").given == {"kind": "a", "agent": "x"}
    with pytest.raises(InvalidInput) as refused:
        narrowed(found, kind="b")
    assert refused.value.code == "invalid_search"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("colour:red", "there is no colour:"),
        ("state:happy", "there is no state 'happy'"),
        ("kind:a kind:b", "given twice"),
        ("since:yesterday", "is no time"),
        ('kind:"a', "quotation mark"),
        ('"a"b', "quotation mark"),
        ("a " * 11, "at most 10 words"),
        ("a" * 1_001, "at most 1,000 characters"),
    ],
)
def test_what_is_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says) as refused:
        parse(text, NOW)
    assert refused.value.code == "invalid_search"


@given(st.text(CHARACTERS, max_size=60))
def test_whatever_is_typed_is_understood_or_refused(text: str) -> None:
    try:
        found = parse(text, NOW)
    except (InvalidInput, InvalidSetting):
        return
    assert all(word == word.strip().lower() for word in found.words)
    assert dataclasses.is_dataclass(found.filter("acme"))

"""The search language of jobs: qualifiers, words, and errors."""

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


def test_search_has_qualifiers_and_words() -> None:
    search = parse(
        'State:dead-letter kind:"send mail" since:1h until:2027-01-30 Timeout "Connection refused" tag:a:b', NOW
    )
    assert search.given == {
        "state": State.DEAD_LETTER,
        "kind": "send mail",
        "since": NOW - timedelta(hours=1),
        "until": datetime(2027, 1, 30, tzinfo=UTC),
        "tag": ("a:b",),
    }
    assert search.words == ("timeout", "connection refused")
    wanted = search.filter("acme", limit=5)
    assert (wanted.tenant, wanted.limit, wanted.kind) == ("acme", 5, "send mail")
    assert parse("", NOW).given == {}


def test_conflicting_qualifier_and_argument_are_rejected() -> None:
    search = parse("kind:a", NOW)
    assert narrowed(search, kind="a", queue=None, agent="x").given == {"kind": "a", "agent": "x"}
    with pytest.raises(InvalidInput) as refused:
        narrowed(search, kind="b")
    assert refused.value.code == "invalid_search"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("colour:red", "unknown qualifier colour:"),
        ("state:happy", "unknown state 'happy'"),
        ("kind:a kind:b", "given twice"),
        ("since:yesterday", "is not a time"),
        ('kind:"a', "quotation mark"),
        ('"a"b', "quotation mark"),
        ("a " * 11, "at most 10 words"),
        ("a" * 1_001, "at most 1,000 characters"),
    ],
)
def test_invalid_search_is_rejected(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as refused:
        parse(text, NOW)
    assert refused.value.code == "invalid_search"


@given(st.text(CHARACTERS, max_size=60))
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    try:
        search = parse(text, NOW)
    except (InvalidInput, InvalidSetting):
        return
    assert all(word == word.strip().lower() for word in search.words)
    assert dataclasses.is_dataclass(search.filter("acme"))

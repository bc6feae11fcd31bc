"""Parsing of event streams and of JSON records."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import errors, remote
from holdfast.engine.states import State
from holdfast.remote import events
from holdfast.remote.events import Message, MessageTooLong, Parser
from holdfast.remote.http_requests import Reply
from holdfast.remote.responses import checked, read

pytestmark = pytest.mark.req("JF-14")

STREAM = (
    "\ufeff: following\nretry: 2000\nid: 1\n\n"
    'event: job.enqueue\r\ndata: {"a": "\u2028é"}\r\nid: 2\r\n\r\n'
    ": ping\r\rdata: one\rdata:two\rid\r\r"
    "event: job.cut\ndata: half"
).encode()
MESSAGES = [Message("job.enqueue", '{"a": "\u2028é"}', "2"), Message("message", "one\ntwo", None)]


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=20).map(sorted))
@settings(deadline=None, max_examples=50)
def test_stream_is_parsed_the_same_however_it_is_split(cuts: list[int]) -> None:
    parser = Parser("0")
    offsets = [0, *cuts, len(STREAM)]
    parsed = [m for a, b in pairwise(offsets) for m in parser.feed(STREAM[a:b])]
    assert parsed == MESSAGES  # without the incomplete one
    assert (parser.retry, parser.last_id) == (2.0, None)


def test_last_id_is_that_of_the_last_complete_message() -> None:
    parser = Parser("6")
    parsed = list(parser.feed(b"id: 7\ndata: seven\n\nid: 8\nevent: job.cut\ndata: eig"))
    assert parsed == [Message("message", "seven", "7")]
    assert parser.last_id == "7"  # not 8, of which only the id has arrived
    assert list(parser.feed(b"ht\n\n")) == [Message("job.cut", "eight", "8")]
    assert parser.last_id == "8"


def test_endless_line_or_message_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_LINE", 10_000)
    for piece in (b"x" * 1_000, b"data: " + b"x" * 1_000 + b"\n"):
        parser = Parser()
        with pytest.raises(MessageTooLong):
            _feed(parser, piece, times=12)


def _feed(parser: Parser, piece: bytes, times: int) -> None:
    for _ in range(times):
        list(parser.feed(piece))


@dataclass(frozen=True)
class Inner:
    at: datetime
    state: State | None


@dataclass(frozen=True)
class Outer:
    name: str
    pair: tuple[str, str]
    words: tuple[str, ...]
    inner: list[Inner]
    many: dict[str, int]
    day: date | None
    part: float
    sort: Literal["a", "b"]
    on: bool
    what: Any
    later: int = 7
    more: list[int] = field(default_factory=list)


GOOD: dict[str, Any] = {
    "name": "n",
    "pair": ["a", "b"],
    "words": ["w"],
    "inner": [{"at": "2027-01-31T09:00:00.123456Z", "state": "queued", "unheard": 1}],
    "many": {"x": 1},
    "day": "2027-01-31",
    "part": 1,
    "sort": "c",
    "on": True,
    "what": {"any": [None]},
}


def test_record_is_read_by_its_types() -> None:
    record = read(Outer, GOOD)
    assert record.inner == [Inner(datetime(2027, 1, 31, 9, 0, 0, 123456, tzinfo=UTC), State.QUEUED)]
    assert (record.pair, record.words, record.day) == (("a", "b"), ("w",), date(2027, 1, 31))
    assert (record.part, type(record.part), record.sort, record.later, record.more) == (1.0, float, "c", 7, [])


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"name": 7}, "name is not text"),
        ({"name": None}, "name is not text"),
        ({"pair": ["a"]}, "pair is not a list of 2"),
        ({"words": "w"}, "words is not a list"),
        ({"inner": [{"at": "2027-01-31T09:00:00", "state": None}]}, "inner[0].at is not a time"),
        ({"inner": [{"at": "2027-01-31T09:00:00Z", "state": "asleep"}]}, "inner[0].state"),
        ({"inner": [{"state": None}]}, "inner[0].at is not there"),
        ({"many": {"x": True}}, "many.x is not a whole number"),
        ({"day": 20270131}, "day is not"),
        ({"part": "1"}, "part is not a number"),
        ({"on": 1}, "on is not true or false"),
        ({"sort": 1}, "sort is not"),
    ],
)
def test_invalid_record_is_rejected_with_its_path(change: dict[str, Any], where: str) -> None:
    with pytest.raises(errors.StoreError) as raised:
        read(Outer, GOOD | change)
    assert raised.value.code == "unexpected_answer"
    assert where in str(raised.value)


def test_response_without_a_body_is_none() -> None:
    assert checked(Reply(204, {})) is None


# --- structure of the package ---

PACKAGE = Path(remote.__file__).parent


def test_client_code_has_one_form_and_imports_no_store() -> None:
    """Only the runners, the transport and context managers, which have two forms, may await; everything else is
    written once (ADR 0004)."""
    with_two_forms = {"runners.py", "transport.py", "client.py", "limits.py"}
    for path in PACKAGE.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        awaits = [node for node in ast.walk(tree) if isinstance(node, (ast.AsyncFunctionDef, ast.Await))]
        assert not awaits or path.name in with_two_forms, path.name
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("holdfast."):
                assert not (node.module or "").startswith(("holdfast.stores.s", "holdfast.stores.p", "holdfast.app"))


@pytest.mark.slow
def test_missing_http_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "httpx2.py").write_text("raise ImportError('not here')\n")
    program = (
        "import holdfast, holdfast.remote, sys\n"
        "assert 'httpx2' not in sys.modules\n"
        "try:\n    holdfast.remote.Client('http://127.0.0.1')\n"
        "except holdfast.HoldfastError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert "[missing_extra] pip install 'holdfast[http]'" in done.stdout, done.stderr

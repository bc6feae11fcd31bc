"""The JSON body parser checks size and nesting before it decodes."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from fastapi.exceptions import RequestValidationError

from holdfast.errors import HoldfastError
from holdfast.server import json_body
from holdfast.server.bodies import MAX_ERRORS, read
from holdfast.server.job_bodies import Enqueue

pytestmark = pytest.mark.req("JF-14")

KEYS = b"{" + b",".join(b'"k%d":1' % n for n in range(json_body.MAX_KEYS + 1)) + b"}"
HOSTILE = {
    "keys": (KEYS, "body_too_complex"),
    "values": (b"[" + b"1," * json_body.MAX_VALUES + b"1,1]", "body_too_complex"),
    "containers": (b"[" + b"[]," * json_body.MAX_VALUES + b"1]", "body_too_complex"),
    "deep": (b'{"a":' * 20_000 + b"1" + b"}" * 20_000, "payload_too_deep"),
    "never closed": (b"[" * 1_000_000, "payload_too_deep"),
    "a long number": (b"[" + b"9" * 4_000 + b"]", "payload_bad_number"),
    "numbers": (b"[" + (b"9" * 4_299 + b",") * 1_000 + b"1]", "payload_bad_number"),
}


def reference(value: Any) -> tuple[int, int, int]:
    """The number of keys, of containers plus values beyond the first in each, and the depth."""
    if not isinstance(value, dict | list):
        return 0, 0, 0
    inner = [reference(item) for item in (value.values() if isinstance(value, dict) else value)]
    keys = (len(value) if isinstance(value, dict) else 0) + sum(counts[0] for counts in inner)
    values = 1 + max(len(value) - 1, 0) + sum(counts[1] for counts in inner)
    return keys, values, 1 + max((counts[2] for counts in inner), default=0)


def some_json(at_random: random.Random, depth: int) -> Any:
    text = "".join(at_random.choices(['"', "\\", "[", "{", "]", "}", ":", ",", "a", "é", "\n", "\U0001f40c"], k=6))
    kind = at_random.randrange(4 if depth else 2)
    if kind == 0:
        return at_random.choice([None, True, 1.5, -3, 10**20])
    if kind == 1:
        return text
    inner = [some_json(at_random, depth - 1) for _ in range(at_random.randrange(4))]
    return inner if kind == 2 else {f"{n}{text}": item for n, item in enumerate(inner)}


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1024])
def test_outline_matches_value_for_any_piece_size(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(json_body, "CHUNK", piece)
    at_random = random.Random(53)
    deepest = 0
    for _ in range(300):
        value = some_json(at_random, 6)
        body = json.dumps(value, ensure_ascii=at_random.random() < 0.5, indent=at_random.choice([None, 1])).encode()
        outline = b"".join(json_body._outlines(body))
        depth = peak = 0
        for byte in outline:
            depth += (byte in b"[{") - (byte in b"]}")
            peak = max(peak, depth)
        containers = outline.count(b"[") + outline.count(b"{")
        assert (outline.count(b":"), outline.count(b",") + containers, peak) == reference(value), body
        deepest = max(deepest, peak)
    assert deepest >= 5


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_structure_is_rejected_before_decoding(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body, code = HOSTILE[name]
    with pytest.raises(HoldfastError) as refused:
        json_body.parse(body)
    assert refused.value.code == code
    with pytest.raises(HoldfastError):
        json_body.parse(b'{"kind": "x", "payload": ' + body + b"}")


@pytest.mark.parametrize(
    "value",
    ["9" * 5_000, "[" * 5_000, '\\"' * 5_000 + "{" * 500, {"a": ["}", "]", 'x"'] * 2_000}, [1] * 90_000, "\\" * 999],
    ids=["digits", "brackets", "escapes", "mixed", "many", "backslashes"],
)
def test_brackets_inside_strings_do_not_count(value: Any) -> None:
    assert json_body.parse(json.dumps(value).encode()) == value


def test_only_utf_8_is_decoded() -> None:
    """Another encoding could hide the structure."""
    for encoding in ("utf-16", "utf-32-le"):
        with pytest.raises(ValueError, match=r"decode|Expecting|BOM"):
            json_body.parse('{"a": 1}'.encode(encoding))


@pytest.mark.parametrize(
    "body",
    [
        {f"x{n}": n for n in range(5_000)},
        {"kind": 1, "tags": [None] * 5_000},
        {"kind": "x", "retry": {f"x{n}": n for n in range(5_000)}},
    ],
)
def test_number_of_validation_errors_is_limited(body: dict[str, Any]) -> None:
    with pytest.raises(RequestValidationError) as wrong:
        read(Enqueue, json.dumps(body).encode())
    assert 1 <= len(wrong.value.errors()) <= MAX_ERRORS

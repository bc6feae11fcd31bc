"""docs/reference/errors.md has every stable code, with texts from the source."""

from __future__ import annotations

import inspect
import re
import tomllib

import pytest

from holdfast import errors
from holdfast.errors import HoldfastError
from tools.error_reference import TEXTS, Entry, collect, read_python
from tools.reference import REFERENCE

pytestmark = pytest.mark.req("DP-22")


def test_page_names_every_error_class() -> None:
    text = (REFERENCE / "errors.md").read_text(encoding="utf-8")
    for name in errors.__all__:
        assert re.search(rf"\b{name}\b", text), name
    classes = [value for value in vars(errors).values() if inspect.isclass(value)]
    assert {cls.__name__ for cls in classes if issubclass(cls, HoldfastError)} == set(errors.__all__)


def test_every_code_has_a_text_and_no_other_has_one() -> None:
    codes, written = collect(), tomllib.loads(TEXTS.read_text(encoding="utf-8"))
    assert sorted(set(written) - set(codes)) == []
    assert sorted(code for code, entry in codes.items() if not entry.messages and code not in written) == []
    assert set(errors.FIXES) - set(codes) == set()


@pytest.mark.parametrize(
    ("source", "codes"),
    [
        ('raise Conflict("x", code="a_b")', {"a_b"}),
        ('raise Conflict("x", code="a" if y else "b")', {"a", "b"}),
        ('class E(X):\n    default_code = "own"', {"own"}),
        ('class E(X):\n    default_code: ClassVar[str] = "own"', {"own"}),
        ('def f(*, code: str = "failed"): ...', {"failed"}),
        ('_refusal("payload_x", what, why)', {"payload_x"}),
        ('Failed("timeout", message)', {"timeout"}),
        ('code = "a" if x else "b"', {"a", "b"}),
        ('REASONS = {"a_b": "because"}', {"a_b"}),
        ('print("nothing")', set()),
        ('raise Conflict("x", code=answer.reason)', set()),
    ],
)
def test_collector_finds_codes(source: str, codes: set[str]) -> None:
    found: dict[str, Entry] = {}
    read_python(source, found)
    assert set(found) == codes


def test_texts_come_from_the_call() -> None:
    found: dict[str, Entry] = {}
    read_python('raise Conflict(f"job {id} is busy", code="busy", fix="Wait.")', found)
    assert found["busy"] == Entry({"Conflict": None}, {"job … is busy": None}, {"Wait.": None})

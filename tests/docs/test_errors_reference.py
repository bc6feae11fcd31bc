"""docs/reference/errors.md lists every stable code and no other."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from holdfast import errors
from holdfast.errors import HoldfastError
from tests.docs.error_codes import collect, python_codes

pytestmark = pytest.mark.req("DP-22")

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"
ROW = re.compile(r"^\| (`[^|]+`) \|", re.MULTILINE)


def documented() -> list[str]:
    return [code for cell in ROW.findall(PAGE.read_text(encoding="utf-8")) for code in re.findall(r"`(\w+)`", cell)]


def test_every_code_of_the_source_is_documented() -> None:
    assert collect() - set(documented()) == set()


@pytest.mark.slow
def test_every_documented_code_is_in_the_source() -> None:
    assert set(documented()) - collect() == set()


def test_no_code_is_documented_twice() -> None:
    codes = documented()
    assert sorted(codes) == sorted(set(codes))


def test_page_names_every_error_class() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in errors.__all__:
        assert re.search(rf"\b{name}\b", text), name
    classes = [value for value in vars(errors).values() if inspect.isclass(value)]
    assert {cls.__name__ for cls in classes if issubclass(cls, HoldfastError)} == set(errors.__all__)


def test_class_of_each_documented_code_exists() -> None:
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if ROW.match(line) and line.count(" | ") >= 3:
            for name in re.findall(r"\b[A-Z]\w+", line.split(" | ")[1]):
                assert name in errors.__all__, line


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
    ast.parse(source)
    assert set(python_codes(source)) == codes

"""An error says what to do about it: every class of errors, and every code that a store can fail with."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import errors
from holdfast.errors import FIXES, HoldfastError, StoreError

pytestmark = pytest.mark.req("ARCH")

PACKAGE = Path(holdfast.__file__).parent
CLASSES = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, HoldfastError)]
OF_STORES = {each.__name__ for each in CLASSES if issubclass(each, StoreError)}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_class_has_a_fix(kind: type[HoldfastError]) -> None:
    error = kind("it failed")
    assert error.fix
    assert error.fix in str(error)


def raised() -> Iterator[tuple[str, str | None, bool]]:
    """Where an error of a store is made, its code, and whether it has a fix of its own."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in OF_STORES:
                named = {keyword.arg: keyword.value for keyword in node.keywords}
                code = named.get("code")
                text = str(code.value) if isinstance(code, ast.Constant) else None if code is None else "?"
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", text, "fix" in named


@pytest.mark.slow
def test_every_error_of_a_store_has_a_fix() -> None:
    found = list(raised())
    assert len(found) > 15
    assert [where for where, code, fixed in found if not fixed and code is not None and code not in FIXES] == []


def test_its_own_fix_goes_first() -> None:
    assert StoreError("m", code="disk_full", fix="Buy one.").fix == "Buy one."

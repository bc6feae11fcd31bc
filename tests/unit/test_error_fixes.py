"""Every error class, and every code that a store raises, has a fix."""

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
CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, HoldfastError)]
OF_STORES = {cls.__name__ for cls in CLASSES if issubclass(cls, StoreError)}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_class_has_a_fix(kind: type[HoldfastError]) -> None:
    error = kind("it failed")
    assert error.fix
    assert error.fix in str(error)


def raised() -> Iterator[tuple[str, str | None, bool]]:
    """The location of each store error, its code, and whether it is raised with a fix."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in OF_STORES:
                named = {keyword.arg: keyword.value for keyword in node.keywords}
                code = named.get("code")
                text = str(code.value) if isinstance(code, ast.Constant) else None if code is None else "?"
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", text, "fix" in named


@pytest.mark.slow
def test_every_store_error_code_has_a_fix() -> None:
    errors_raised = list(raised())
    assert len(errors_raised) > 15
    assert [where for where, code, fixed in errors_raised if not fixed and code is not None and code not in FIXES] == []


def test_fix_given_to_an_error_overrides_default() -> None:
    assert StoreError("m", code="disk_full", fix="Buy one.").fix == "Buy one."

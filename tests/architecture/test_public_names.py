"""`holdfast.__all__` is the public API: complete, sorted, importable, and nothing besides."""

from __future__ import annotations

from types import ModuleType

import pytest

import holdfast

pytestmark = pytest.mark.req("ARCH")


def test_public_names_are_sorted() -> None:
    assert list(holdfast.__all__) == sorted(holdfast.__all__)


def test_public_names_exist() -> None:
    assert [name for name in holdfast.__all__ if not hasattr(holdfast, name)] == []


def test_nothing_public_is_left_out() -> None:
    visible = {
        name for name, value in vars(holdfast).items() if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert visible - {"annotations", "TYPE_CHECKING"} - set(holdfast.__all__) == set()

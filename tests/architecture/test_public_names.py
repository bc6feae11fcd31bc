"""`holdfast.__all__` is the public API: complete, sorted, importable, and nothing besides."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import pytest

import holdfast
from holdfast import HoldfastError, errors, testing

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


def test_every_error_is_in_errors() -> None:
    """Those of the test kit are in `holdfast.testing`, which has them."""
    for found in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    kit = {name for name in testing.__all__ if _is_error(getattr(testing, name))}
    assert {each.__name__ for each in _errors()} == set(errors.__all__) | kit


def _is_error(one: object) -> bool:
    return isinstance(one, type) and issubclass(one, HoldfastError)


def _errors() -> Iterator[type[HoldfastError]]:
    waiting: list[type[HoldfastError]] = [HoldfastError]
    while waiting:
        found = waiting.pop()
        if found.__module__.startswith("holdfast.") and found.__name__[0] != "_":
            yield found
        waiting += found.__subclasses__()

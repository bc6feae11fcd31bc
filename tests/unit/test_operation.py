"""Operations are written once: the sync and async form run the same program, and errors are raised at its ``yield``."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, assert_type

import pytest

from holdfast.engine.operation import Emit, Items, Namespace, Program, awaited, awaited_stream, operation, stream

pytestmark = pytest.mark.req("DP-22")


class Sums(Namespace):
    """Programs yield numbers. Performing one doubles it; a negative number is an error."""

    def __init__(self) -> None:
        self.forms: list[str] = []

    def _perform(self, item: Any) -> Any:
        self.forms.append("sync")
        return self._double(item)

    async def _aperform(self, item: Any) -> Any:
        await asyncio.sleep(0)
        self.forms.append("async")
        return self._double(item)

    def _double(self, item: int) -> int:
        if item < 0:
            raise ValueError(item)
        return 2 * item

    @operation
    def add(self, first: int, *, second: int = 1) -> Program[int]:
        """Add both, doubled."""
        one = yield first
        other = yield second
        return int(one + other)

    aadd = awaited(add)

    @operation
    def at_least_zero(self, number: int) -> Program[int]:
        try:
            return int((yield number))
        except ValueError:
            return int((yield 0))

    aat_least_zero = awaited(at_least_zero)

    @stream
    def count(self, limit: int) -> Items[int]:
        for number in range(limit):
            yield Emit(int((yield number)))

    acount = awaited_stream(count)


def test_both_forms_run_the_same_program() -> None:
    sums = Sums()
    assert sums.add(1, second=2) == 6
    assert asyncio.run(sums.aadd(1, second=2)) == 6
    assert sums.forms == ["sync", "sync", "async", "async"]
    assert_type(sums.add(1), int)
    assert_type(asyncio.run(sums.aadd(1)), int)


def test_an_error_is_raised_at_the_yield() -> None:
    sums = Sums()
    assert sums.at_least_zero(-1) == 0
    assert asyncio.run(sums.aat_least_zero(-1)) == 0
    with pytest.raises(ValueError, match="-1"):
        sums.add(-1)
    with pytest.raises(ValueError, match="-1"):
        asyncio.run(sums.aadd(-1))


def test_stream_emits_items_one_by_one() -> None:
    sums = Sums()
    numbers = sums.count(3)
    assert next(numbers) == 0
    assert sums.forms == ["sync"]
    assert list(numbers) == [2, 4]

    async def collect() -> list[int]:
        return [number async for number in sums.acount(3)]

    assert asyncio.run(collect()) == [0, 2, 4]


def test_help_shows_the_signature_and_the_docstring() -> None:
    sums = Sums()
    for call in (sums.add, sums.aadd):
        assert inspect.getdoc(call) == "Add both, doubled."
        assert "second: 'int' = 1" in str(inspect.signature(call))
    assert inspect.iscoroutinefunction(sums.aadd)


def test_unknown_argument_raises_type_error() -> None:
    with pytest.raises(TypeError, match="quue"):
        Sums().add(1, quue=2)  # type: ignore[call-arg]

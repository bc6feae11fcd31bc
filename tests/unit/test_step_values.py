"""The signature of a step's function is cached by its code, without keeping the function alive."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from datetime import date
from typing import Annotated, Any

import pytest

from holdfast.steps.values import Value

pytestmark = pytest.mark.req("HF-6")


class Held:
    """Something large."""


def step(held: object = None, promised: Any = int) -> Callable[[], Any]:
    def inner() -> Any:
        return held

    inner.__annotations__["return"] = promised
    return inner


def test_functions_with_same_code_share_a_signature() -> None:
    first, second = Value.of("a", step()), Value.of("a", step())
    assert first.signature is not None
    assert first.signature is second.signature


def test_cache_does_not_keep_closure_alive() -> None:
    held = Held()
    gone = weakref.ref(held)
    Value.of("a", step(held))
    del held
    gc.collect()
    assert gone() is None


def test_same_code_with_other_annotation_has_other_signature() -> None:
    day = Value.of("a", step(promised=date))
    text = Value.of("a", step(promised=str))
    assert day.restore('"2026-11-15"') == date(2026, 11, 15)
    assert text.restore('"2026-11-15"') == "2026-11-15"


def test_unhashable_annotation_is_not_cached() -> None:
    value_type = Value.of("a", step(promised=Annotated[date, []]))
    assert value_type.pack(date(2026, 11, 15)) == '"2026-11-15"'


@pytest.mark.parametrize("value", [7, "text", True, 1.5, None])
def test_plain_value_round_trips(value: object) -> None:
    value_type = Value.of("a", step(promised=type(value)))
    assert value_type.restore(value_type.pack(value)) == value
    assert type(value_type.restore(value_type.pack(value))) is type(value)


def test_value_is_converted_to_annotated_type() -> None:
    assert Value.of("a", step(promised=float)).restore("7") == 7.0
    assert type(Value.of("a", step(promised=float)).restore("7")) is float

"""What a step's function promises is looked up once for all functions of the same code, and none of them is kept."""

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


def test_functions_of_the_same_code_are_looked_at_once() -> None:
    first, second = Value.of("a", step()), Value.of("a", step())
    assert first.signature is not None
    assert first.signature is second.signature


def test_what_a_function_holds_on_to_is_let_go() -> None:
    held = Held()
    gone = weakref.ref(held)
    Value.of("a", step(held))
    del held
    gc.collect()
    assert gone() is None


def test_the_same_code_may_promise_something_else() -> None:
    day = Value.of("a", step(promised=date))
    text = Value.of("a", step(promised=str))
    assert day.restore('"2026-11-15"') == date(2026, 11, 15)
    assert text.restore('"2026-11-15"') == "2026-11-15"


def test_what_cannot_be_looked_up_is_looked_at_each_time() -> None:
    found = Value.of("a", step(promised=Annotated[date, []]))
    assert found.pack(date(2026, 11, 15)) == '"2026-11-15"'


@pytest.mark.parametrize("value", [7, "text", True, 1.5, None])
def test_a_plain_value_comes_back_as_it_was(value: object) -> None:
    found = Value.of("a", step(promised=type(value)))
    assert found.restore(found.pack(value)) == value
    assert type(found.restore(found.pack(value))) is type(value)


def test_a_value_of_another_type_than_promised_is_put_right() -> None:
    assert Value.of("a", step(promised=float)).restore("7") == 7.0
    assert type(Value.of("a", step(promised=float)).restore("7")) is float

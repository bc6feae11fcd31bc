"""Text that cannot be stored, and values that cannot be encoded, are refused with a code: in every operation of the
app, generated from their signatures, and in the arguments of every type of handler."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from holdfast import App
from holdfast.errors import HoldfastError

pytestmark = pytest.mark.req("DP-3", "JF-1")

LONE = "\ud800"


def operations(app: App) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in dir(app):
        space = None if name.startswith("_") else getattr(app, name)
        if type(space).__module__.startswith("holdfast.features."):
            for each in dir(space):
                twin = each.startswith("a") and hasattr(space, each[1:])
                if not each.startswith("_") and not twin and callable(getattr(space, each)):
                    yield f"{name}.{each}", getattr(space, each)


def call(operation: Callable[..., Any], target: inspect.Parameter, bad: object, some_id: str) -> Any:
    """Call the operation with ``bad`` for one parameter, and something for those without a default."""
    args, named = [], dict[str, Any]()
    for each in inspect.signature(operation).parameters.values():
        value: Any = some_id if "id" in each.name else 1 if "int" in str(each.annotation) else "x"
        value = bad if each is target or each.name == target.name else value
        if each.name != target.name and each.default is not each.empty:
            continue
        if each.kind is each.VAR_KEYWORD:
            named |= value if isinstance(value, dict) else {}
        elif each.kind is each.KEYWORD_ONLY:
            named[each.name] = value
        else:
            args.append(value)
    return operation(*args, **named)


@pytest.mark.filterwarnings("ignore:coroutine")
def test_no_operation_raises_an_encoding_error(app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some operations write to a path
    some_id, calls = app.enqueue("a").id, 0
    for name, operation in operations(app):
        for parameter in inspect.signature(operation).parameters.values():
            if (name, parameter.name) == ("audit.export", "to"):  # a path of the file system
                continue
            for bad in (LONE, {LONE: LONE, "kind": LONE, "tenant": LONE}, [LONE]):
                try:
                    result = call(operation, parameter, bad, some_id)
                except (HoldfastError, TypeError):
                    pass
                except Exception as error:
                    pytest.fail(f"{name}({parameter.name}={bad!r}) raises {error!r}")
                else:
                    if inspect.iscoroutine(result):
                        result.close()
                calls += 1
    assert calls > 300


class Model(BaseModel):
    a: Any = None


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def circular() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.every_case
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("type_", [object, dict[str, Any], list[Any], str, Model, None])
def test_arguments_that_cannot_be_stored_are_refused(app: App, type_: Any) -> None:
    def handler(value: Any) -> None: ...

    if type_ is not None:
        handler.__annotations__["value"] = type_
    kind = app.job("take")(handler)
    for bad in (LONE, {LONE: 1}, nested(300), nested(5000), circular(), b"\xff", 10**6000, "\0"):
        for value in (bad, {"a": bad}, [bad], Model(a=bad)):
            if type_ is Model and value == {LONE: 1}:  # an unknown field, which the model drops
                continue
            with pytest.raises(HoldfastError):
                kind.enqueue(value)
    assert app.jobs.list() == []
    good = "\ufffd" if type_ in (str, object, None) else ["\ufffd"] if type_ == list[Any] else {"a": "\ufffd"}
    assert kind.enqueue(good).created

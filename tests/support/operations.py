"""Store operations by name (`namespace.operation`)."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from holdfast.features.assembly import Store
from holdfast.stores.flow import Flow

WRAPPERS = {"fire_schedules": "schedules.fire"}
"""Flows that wrap an operation, by function name."""


def operation(store: Store, name: str) -> Callable[..., Flow[Any]]:
    namespace, _, method = name.partition(".")
    function: Callable[..., Flow[Any]] = getattr(getattr(store, namespace), method)
    return function


def operations() -> set[str]:
    """The names of all operations that both stores have."""
    from holdfast.features.postgres import PostgresStore
    from holdfast.features.sqlite import SqliteStore

    sqlite, postgres = SqliteStore("sqlite:///:memory:"), PostgresStore("postgresql://nobody@localhost/none")
    result = set()
    for namespace in (
        name for name, part in vars(sqlite).items() if name[0] != "_" and type(part).__name__.startswith("Sqlite")
    ):
        parts = type(getattr(sqlite, namespace)), type(getattr(postgres, namespace))
        names = set(dir(parts[0])) & set(dir(parts[1])) - {"dialect"}
        result |= {f"{namespace}.{name}" for name in names if not name.startswith("_")}
    return result


def name_of(flow: Flow[Any]) -> tuple[str, list[Any]]:
    """The operation that made the flow, and its arguments."""
    function: Any = flow.start
    arguments: list[Any] = []
    while isinstance(function, functools.partial):
        arguments += [*function.args, *function.keywords.values()]
        function = function.func
    if getattr(function, "__name__", "") in WRAPPERS:
        return WRAPPERS[function.__name__], arguments
    part, name = type(arguments[0]).__name__ if arguments else "", str(getattr(function, "__name__", ""))
    if not arguments:  # a function inside the operation
        part, _, rest = str(getattr(function, "__qualname__", "")).partition(".")
        name = rest.partition(".")[0]
    words = re.fullmatch(r"(?:Sqlite|Postgres)(\w+)", part)
    if words is None:
        return "", arguments
    return re.sub(r"(?<!^)(?=[A-Z])", "_", words[1]).lower() + "." + name, arguments

"""Operations of a store by their names, `namespace.operation`."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from holdfast.features.assembly import Store
from holdfast.stores.flow import Flow

AROUND = {"fire_schedules": "schedules.fire"}
"""Flows around an operation, which is a part of them."""

NAMESPACES = tuple(name for name, value in vars(Store).items() if isinstance(value, property))


def operation(store: Store, name: str) -> Callable[..., Flow[Any]]:
    namespace, _, one = name.partition(".")
    found: Callable[..., Flow[Any]] = getattr(getattr(store, namespace), one)
    return found


def operations() -> set[str]:
    """All of them: what the parts of both stores have."""
    from holdfast.features.postgres import PostgresStore
    from holdfast.features.sqlite import SqliteStore

    one, other = SqliteStore("sqlite:///:memory:"), PostgresStore("postgresql://nobody@localhost/none")
    found = set()
    for namespace in NAMESPACES:
        parts = type(getattr(one, namespace)), type(getattr(other, namespace))
        names = set(dir(parts[0])) & set(dir(parts[1])) - {"dialect"}
        found |= {f"{namespace}.{name}" for name in names if not name.startswith("_")}
    return found


def name_of(flow: Flow[Any]) -> tuple[str, list[Any]]:
    """The operation that made it, and what it was given."""
    made: Any = flow.start
    given: list[Any] = []
    while isinstance(made, functools.partial):
        given += [*made.args, *made.keywords.values()]
        made = made.func
    if getattr(made, "__name__", "") in AROUND:
        return AROUND[made.__name__], given
    part, name = type(given[0]).__name__ if given else "", str(getattr(made, "__name__", ""))
    if not given:  # a function inside of the operation
        part, _, rest = str(getattr(made, "__qualname__", "")).partition(".")
        name = rest.partition(".")[0]
    words = re.fullmatch(r"(?:Sqlite|Postgres)(\w+)", part)
    if words is None:
        return "", given
    return re.sub(r"(?<!^)(?=[A-Z])", "_", words[1]).lower() + "." + name, given

"""``Dialect``: the differences between the stores that shared reads need, and conditions that many reads share."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.names import PagePosition
from holdfast.stores.codecs import Codec
from holdfast.stores.flow import Statement

_PARAMETER = re.compile(r"(?<![:\w]):([a-z_][a-z0-9_]*)")


@dataclass(frozen=True)
class Dialect:
    """``percent`` rewrites ``:name`` as ``%(name)s``; ``schema`` is written before each ``{table}``."""

    codec: Codec
    schema: str
    percent: bool
    bind: Callable[[str], Statement | None]
    """The statement that binds the transaction to a tenant, where the database itself separates tenants."""
    has: Callable[[str, str], str]
    """The condition that a list column contains a parameter."""
    nobody: str
    """The value of an empty list column."""
    never: object
    """The due time of a parked job."""
    minute: Callable[[str], str]
    """The expression for the minute since 1970 of a time column."""
    comparable: Callable[[str], str] = lambda column: column
    """The expression of a JSON column in which equal values are equal."""
    listed: Callable[[Sequence[str]], object] = list
    """A list as one parameter, for ``has``."""
    by_index: Callable[[str], str] = lambda name: ""
    """An index hint for a table, where the planner's statistics are not enough."""

    def read(self, text: str, **params: object) -> Statement:
        return Statement(_rendered(text, self.schema, self.percent), {"never": self.never, **params}, reads=True)


@lru_cache(maxsize=512)
def _rendered(text: str, schema: str, percent: bool) -> str:
    qualified = re.sub(r"\{(\w+)\}", lambda match: schema + match.group(1), text)
    return _PARAMETER.sub(r"%(\1)s", qualified.replace("%", "%%")) if percent else qualified


def beyond(tenant: str, after: PagePosition | None, whose: str, name: str) -> tuple[str, dict[str, str]]:
    """The condition that a page starts after ``after`` in the order of tenant and name, with its parameters. ``whose``
    and ``name`` are the columns."""
    if after is None:
        return "1 = 1", {}
    if tenant == EVERY_TENANT:
        return f"({whose}, {name}) > (:after_tenant, :after_name)", {
            "after_tenant": after.tenant,
            "after_name": after.name,
        }
    return f"{name} > :after_name", {"after_name": after.name}


def at_most(limit: int | None) -> str:
    return "" if limit is None else f" limit {max(0, limit):d}"


def within(tenant: str, column: str) -> str:
    """The condition that restricts a read to its tenant, also where row-level security does not apply."""
    return "1 = 1" if tenant == EVERY_TENANT else f"{column} = :tenant"

"""What a shared read must know about the store it is running on."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.names import Place
from holdfast.stores.codecs import Codec
from holdfast.stores.flow import Statement

_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")


@dataclass(frozen=True)
class Dialect:
    """``percent`` writes ``:name`` as ``%(name)s``; ``schema`` is put before each ``{table}``."""

    codec: Codec
    schema: str
    percent: bool
    bind: Callable[[str], Statement | None]
    """Binds the transaction to a tenant, where the database itself keeps tenants apart."""
    has: Callable[[str, str], str]
    """The condition that a list column holds a parameter."""
    nobody: str
    """A list column's value without anything in it."""
    never: object
    """The time at which a parked job is due."""
    minute: Callable[[str], str]
    """Which minute since 1970 a time is in."""
    listed: Callable[[Sequence[str]], object] = list
    """A list as one parameter, for ``has``."""
    by_index: Callable[[str], str] = lambda name: ""
    """Names the index to read a table by, where the planner would have to know more than it does."""

    def read(self, text: str, **params: object) -> Statement:
        return Statement(_written(text, self.schema, self.percent), {"never": self.never, **params}, reads=True)


@lru_cache(maxsize=512)
def _written(text: str, schema: str, percent: bool) -> str:
    named = re.sub(r"\{(\w+)\}", lambda match: schema + match.group(1), text)
    return _PARAMETER.sub(r"%(\1)s", named.replace("%", "%%")) if percent else named


def beyond(tenant: str, after: Place | None, whose: str, name: str) -> tuple[str, dict[str, str]]:
    """The condition that a page begins after a place in the order of tenants and names, and what goes with it."""
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
    """The condition that keeps a read inside its tenant, also where nothing else does."""
    return "1 = 1" if tenant == EVERY_TENANT else f"{column} = :tenant"

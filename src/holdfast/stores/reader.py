"""``Dialect``: the differences between the stores that shared reads need, and conditions that many reads share."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.names import PagePosition
from holdfast.stores.codecs import Codec
from holdfast.stores.flow import Statement, read_budget

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
    document: str = "{}"
    """A JSON text as a value of a document column."""
    size: str = "octet_length(cast({} as text))"
    """The bytes of a document."""
    key: str = ""
    """The document under a key of ``{above}``, or null. ``:{key}`` is the key, ``{index}`` its number in an array."""
    scalar: str = ""
    """The JSON text of a document that is a short scalar, else null."""
    texts: str = ""
    """A JSON array of texts."""
    searchable: str = ""
    """A payload that a search may read, else null: not one that is sealed, stored elsewhere, or not JSON."""

    def read(self, text: str, **params: object) -> Statement:
        return Statement(_rendered(text, self.schema, self.percent), {"never": self.never, **params}, reads=True)

    def bounded(self, columns: str, order: str, *documents: str) -> str:
        """The columns of a read that returns at most ``read_budget`` bytes of these documents: those of the first rows,
        in this order. The others are replaced by a note of their size."""
        most = read_budget.get()
        if most is None:
            return columns
        size = " + ".join(f"coalesce({self.size.format(document)}, 0)" for document in documents)

        def choice(match: re.Match[str]) -> str:
            column = match[0]
            note = self.document.format(f"""'{{"$holdfast":{{"omitted":' || {self.size.format(column)} || '}}}}'""")
            within = f"{column} is null or sum({size}) over (order by {order}) <= {most:d}"
            return f"case when {within} then {column} else {note} end"

        return re.sub("|".join(rf"{re.escape(document)}\b" for document in documents), choice, columns)

    def under(self, path: Sequence[str], document: str, prefix: str) -> tuple[str, dict[str, str]]:
        """The expression for the scalar at a path of a document, as JSON text, and its parameters."""
        params = {}
        for n, key in enumerate(path):
            name = f"{prefix}_{chr(97 + n)}"
            index = int(key) if key.isascii() and key.isdecimal() and len(key) < 10 else None
            document = self.key.format(above=document, key=name, index="null" if index is None else index)
            params[name] = key
        return self.scalar.format(document), params


LONGEST_TERM = 12_000
"""Characters of the longest scalar that a search can match: twelve as JSON for each of its text."""


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

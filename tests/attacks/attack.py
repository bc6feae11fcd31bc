"""One attack with a SQL shell, as data.

An attack is one or more statements in one transaction; one of them must be refused, and nothing may have changed.
`:queued`, `:leased`, `:running`, … are jobs in those states; `:lease` holds `:running`, `:holding` holds `:leased`,
`:other` is live and holds no job, `:ended` has ended, `:unknown` is the id of no row; `:later` is in the year 2100.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

NOW = "(select now from present)"
EVENT = "(job_id, tenant, kind, type, from_state, to_state, attempt, at, actor)"
# SQLite stores times as microseconds since 1970.
LATER: dict[str, object] = {"sqlite": 4102444800000000, "postgres": "2100-01-01"}
STATE = "(id, tenant, kind, queue, state, priority, position, max_attempts, max_crashes)"


@dataclass(frozen=True)
class Sql:
    """Statements that differ between the stores; empty if a store has no such statement."""

    sqlite: tuple[str, ...]
    postgres: tuple[str, ...]


Table = Mapping[str, tuple[str | Sql, str | tuple[str, str]]]
"""By name, the statements of each attack, separated by semicolons, and a part of its refusal: the same on both stores,
or SQLite's and PostgreSQL's."""


@dataclass(frozen=True)
class Attack:
    name: str
    sqlite: tuple[str, ...]
    postgres: tuple[str, ...]
    says: tuple[str, str]


def attacks(table: Table) -> list[Attack]:
    result = []
    for name, (sql, says) in table.items():
        stores = each(sql, sql) if isinstance(sql, str) else sql
        pair = (says, says) if isinstance(says, str) else says
        result.append(Attack(name, stores.sqlite, stores.postgres, pair))
    return result


def each(sqlite: str, postgres: str) -> Sql:
    return Sql(*(tuple(sql.split("; ")) if sql else () for sql in (sqlite, postgres)))


def on_sqlite(sql: str) -> Sql:
    return each(sql, "")


def on_postgres(sql: str) -> Sql:
    return each("", sql)


def update(table: str, key: str, columns: str, row: str) -> str:
    """Set columns of the row whose key is the parameter `row`."""
    return f"update {table} set {columns} where {key} = :{row}"


def immutable(text: str) -> tuple[str, str]:
    """A refusal with the same text on both stores; SQLite puts its code before it."""
    return f"immutable: {text}", text

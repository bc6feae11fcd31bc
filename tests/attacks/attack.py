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


Table = Mapping[str, tuple[str | tuple[str, str], str | tuple[str | None, str | None]]]
"""By name, the statements of an attack, separated by semicolons, and a part of its refusal. Each is a pair if it
differs between SQLite and PostgreSQL; None is the refusal of a store that has no such statement."""


@dataclass(frozen=True)
class Attack:
    name: str
    sqlite: tuple[str, ...]
    postgres: tuple[str, ...]
    says: tuple[str, str]


def attacks(table: Table) -> list[Attack]:
    result = []
    for name, (sql, says) in table.items():
        texts, refusals = (each if isinstance(each, tuple) else (each, each) for each in (sql, says))
        sqlite, postgres = (
            tuple((text or "").split("; ")) if words else () for text, words in zip(texts, refusals, strict=True)
        )
        result.append(Attack(name, sqlite, postgres, (refusals[0] or "", refusals[1] or "")))
    return result


def same(**columns: str) -> dict[str, tuple[str, str]]:
    """Values of columns that both stores write the same way."""
    return {column: (value, value) for column, value in columns.items()}


def update(table: str, key: str, columns: str, row: str) -> str:
    """Set columns of the row whose key is the parameter `row`."""
    return f"update {table} set {columns} where {key} = :{row}"


def immutable(text: str) -> tuple[str, str]:
    """A refusal with the same text on both stores; SQLite puts its code before it."""
    return f"immutable: {text}", text

"""One attack with a SQL shell, as data.

An attack is one or more statements in one transaction; one of them must be refused, and nothing may have changed.
`:queued`, `:leased`, `:running`, … are jobs in those states; `:lease` holds `:running`, `:holding` holds `:leased`,
`:other` is live and holds no job, `:ended` has ended, `:unknown` is the id of no row; `:later` is in the year 2100.
"""

from __future__ import annotations

from dataclasses import dataclass

NOW = "(select now from present)"
EVENT = "(job_id, tenant, kind, type, from_state, to_state, attempt, at, actor)"
# SQLite stores times as microseconds since 1970.
LATER: dict[str, object] = {"sqlite": 4102444800000000, "postgres": "2100-01-01"}
STATE = "(id, tenant, kind, queue, state, priority, position, max_attempts, max_crashes)"


@dataclass(frozen=True)
class Attack:
    """`sqlite` or `postgres` is empty if the store has no such statement; `says` is a part of each refusal."""

    name: str
    sqlite: tuple[str, ...]
    postgres: tuple[str, ...]
    says: tuple[str, str]


def both(name: str, *sql: str, says: str | tuple[str, str]) -> Attack:
    return Attack(name, sql, sql, _pair(says))


def each(name: str, sqlite: str, postgres: str, *, says: str | tuple[str, str]) -> Attack:
    return Attack(name, (sqlite,) if sqlite else (), (postgres,) if postgres else (), _pair(says))


def update(table: str, key: str, name: str, columns: str, row: str, *, says: str | tuple[str, str]) -> Attack:
    """An attack that sets columns of the row whose key is the parameter `row`."""
    return both(name, f"update {table} set {columns} where {key} = :{row}", says=says)


def only_sqlite(name: str, *sql: str, says: str) -> Attack:
    return Attack(name, sql, (), (says, says))


def only_postgres(name: str, *sql: str, says: str) -> Attack:
    return Attack(name, (), sql, (says, says))


def immutable(text: str) -> tuple[str, str]:
    """A refusal with the same text on both stores; SQLite puts its code before it."""
    return f"immutable: {text}", text


def _pair(says: str | tuple[str, str]) -> tuple[str, str]:
    return (says, says) if isinstance(says, str) else says

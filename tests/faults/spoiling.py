"""Nonsense for every column of every table, taken from the catalogue of each store, written with its triggers off.

Constraints stay: what a table refuses is not in it, and such a value is passed over.
"""

from __future__ import annotations

import sqlite3
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import psycopg
from psycopg import sql
from typing_extensions import override

DEEP = "[" * 5_000 + "]" * 5_000
HUGE = "x" * 100_000
Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    table: str
    name: str
    type: str
    key: bool
    nullable: bool


class Spoiler(ABC):
    """A connection of somebody who may do everything."""

    values: ClassVar[dict[str, tuple[Any, ...]]]
    """Nonsense that fits a type."""

    @abstractmethod
    def columns(self) -> list[Column]: ...

    @abstractmethod
    def rows(self, table: str) -> list[Row]: ...

    @abstractmethod
    def insert(self, table: str, row: Row) -> bool:
        """Whether the table has taken it."""

    @abstractmethod
    def update(self, column: Column, value: Any, key: str, of: Any) -> bool: ...

    @abstractmethod
    @contextmanager
    def unguarded(self) -> Iterator[None]:
        """Without triggers, which are all there again afterwards."""

    @abstractmethod
    def close(self) -> None: ...

    def nonsense(self, column: Column) -> tuple[Any, ...]:
        return (*((None,) if column.nullable else ()), *self.values.get(column.type, ()))

    def fresh(self, column: Column, value: Any, number: int) -> Any:
        """Another key like this one."""
        if column.name == "hash":
            return f"{number:064x}"
        if column.type == "uuid" or (isinstance(value, str) and len(value) == 36 and value.count("-") == 4):
            return str(uuid.UUID(int=uuid.UUID(str(value)).int + number))
        if isinstance(value, int) and not isinstance(value, bool):
            return 1_000_000 + number
        return f"{value} {number}" if isinstance(value, str) else value


class SqliteSpoiler(Spoiler):
    values: ClassVar = {
        "INTEGER": (2**63 - 1, -(2**63)),
        "TEXT": ("", "{", "[null]", "7", DEEP, HUGE, b"\xff\xfe"),
        "REAL": (1e308, -1e308, float("inf")),
        "BLOB": (b"",),
    }

    def __init__(self, url: str) -> None:
        self._connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        self._connection.row_factory = sqlite3.Row
        self._connection.text_factory = lambda data: data.decode(errors="replace")

    @override
    def columns(self) -> list[Column]:
        tables = self._connection.execute("select name from sqlite_schema where type = 'table' order by name")
        return [
            Column(table, row["name"], row["type"], bool(row["pk"]), not row["notnull"] and not row["pk"])
            for (table,) in tables.fetchall()
            for row in self._connection.execute(f"pragma table_info({table})")
        ]

    @override
    def rows(self, table: str) -> list[Row]:
        return [dict(row) for row in self._connection.execute(f"select * from {table}")]

    def _try(self, text: str, values: list[Any]) -> bool:
        # Bytes stand for text that is not UTF-8.
        marks = ["cast(? as text)" if isinstance(value, bytes) and value else "?" for value in values]
        try:
            return self._connection.execute(text.format(*marks), values).rowcount > 0
        except (sqlite3.IntegrityError, sqlite3.OperationalError):
            return False

    @override
    def insert(self, table: str, row: Row) -> bool:
        return self._try(
            f"insert into {table} ({', '.join(row)}) values ({', '.join('{}' for _ in row)})", [*row.values()]
        )

    @override
    def update(self, column: Column, value: Any, key: str, of: Any) -> bool:
        return self._try(f"update {column.table} set {column.name} = {{}} where {key} = {{}}", [value, of])

    @override
    @contextmanager
    def unguarded(self) -> Iterator[None]:
        triggers = self._connection.execute("select name, sql from sqlite_schema where type = 'trigger'").fetchall()
        self._connection.execute("begin immediate")
        for name, _ in triggers:
            self._connection.execute(f'drop trigger "{name}"')
        yield
        for _, text in triggers:
            self._connection.execute(text)
        self._connection.execute("commit")

    @override
    def close(self) -> None:
        self._connection.close()


class PostgresSpoiler(Spoiler):
    values: ClassVar = {
        "timestamptz": ("infinity", "-infinity", "4713-01-01 00:00:00 BC", "294276-12-31 00:00:00Z"),
        "int2": (32767, -32768),
        "int4": (2**31 - 1, -(2**31)),
        "int8": (2**63 - 1, -(2**63)),
        "float8": ("NaN", "Infinity", -1e308),
        "text": ("", "{", HUGE),
        "state": (),
        "json": ("null", "7", "[null]", '"\\ud800"', DEEP),
        "jsonb": ("null", "7", "[null]", '{"a": "x"}', DEEP),
        "_text": ("{}", "{NULL}", "{{a,b},{c,d}}"),
        "uuid": ("00000000-0000-0000-0000-000000000000",),
        "bytea": (b"",),
        "interval": ("-1000 years", "178000000 years"),
        "date": ("infinity", "4713-01-01 BC"),
    }

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True, row_factory=psycopg.rows.dict_row)
        for name in ("timestamptz", "uuid", "json", "jsonb", "interval", "date"):
            self._connection.adapters.register_loader(name, psycopg.types.string.TextLoader)
        self._connection.execute("select set_config('holdfast.tenant', '*', false)")
        self._connection.execute("set search_path = holdfast, pg_catalog")

    @override
    def columns(self) -> list[Column]:
        rows = self._connection.execute(
            "select c.relname as table, a.attname as name, t.typname as type, not a.attnotnull as nullable,"
            " exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary and a.attnum = any (i.indkey))"
            " as key"
            " from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_type t on t.oid = a.atttypid"
            " where c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'p') and a.attnum > 0"
            " and not a.attisdropped order by 1, a.attnum"
        )
        return [Column(**row) for row in rows]

    @override
    def rows(self, table: str) -> list[Row]:
        return self._connection.execute(sql.SQL("select * from {}").format(sql.Identifier(table))).fetchall()

    def _try(self, text: sql.Composed, values: list[Any]) -> bool:
        try:
            with self._connection.transaction():
                return self._connection.execute(text, values).rowcount > 0
        except (psycopg.IntegrityError, psycopg.DataError, psycopg.NotSupportedError, psycopg.OperationalError):
            return False

    @override
    def insert(self, table: str, row: Row) -> bool:
        names = sql.SQL(", ").join(map(sql.Identifier, row))
        marks = sql.SQL(", ").join(sql.Placeholder() for _ in row)
        text = sql.SQL("insert into {} ({}) values ({})").format(sql.Identifier(table), names, marks)
        return self._try(text, [*row.values()])

    @override
    def update(self, column: Column, value: Any, key: str, of: Any) -> bool:
        text = sql.SQL("update {} set {} = %s where {} = %s")
        names = map(sql.Identifier, (column.table, column.name, key))
        return self._try(text.format(*names), [value, of])

    @override
    @contextmanager
    def unguarded(self) -> Iterator[None]:
        self._connection.execute("set session_replication_role = replica")
        self._connection.execute("alter table job_state disable trigger record_transition")  # it fires always
        yield
        self._connection.execute("alter table job_state enable always trigger record_transition")
        self._connection.execute("set session_replication_role = origin")

    @override
    def close(self) -> None:
        self._connection.close()


# Of a key with several columns this is not the one to change: it has a few words, or says to whom the row belongs.
_FIXED = {"tenant", "job_id", "state", "scope", "type", "action", "manual", "attempt", "child"}
_UNIQUE = {"hash", "seq", "key", "number", "name", "fingerprint"}


def spoil(spoiler: Spoiler, table: str, columns: list[Column]) -> set[str]:
    """For each column and each nonsense a copy of the first row, with a key of its own; the columns that were."""
    spoilt: set[str] = set()
    rows = spoiler.rows(table)
    keys = [column for column in columns if column.key]
    changed = [column for column in keys if column.name not in _FIXED] or keys[-1:]
    changed += [column for column in columns if column.name in _UNIQUE and column not in changed]
    number = 0
    # The largest number there is leaves none for the next row: that is no bad row but the end of the table.
    numbered = {column.name for column in keys if column.type in ("INTEGER", "int8")}
    for column in (each for each in columns if rows and each.name not in numbered):
        for value in spoiler.nonsense(column):
            number += 1
            row = dict(rows[0])
            for each in changed:
                row[each.name] = spoiler.fresh(each, row[each.name], number)
            row[column.name] = value
            if spoiler.insert(table, row):
                spoilt.add(column.name)
    return spoilt


def open_spoiler(url: str) -> Spoiler:
    return SqliteSpoiler(url) if url.startswith("sqlite:") else PostgresSpoiler(url)

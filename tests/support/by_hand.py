"""A plain connection to a store's database, as somebody with a SQL shell has one.

The same text serves both databases: parameters are written `:name`, tables are named without a schema, and
`(select now from present)` is the time in the database's own form.
"""

from __future__ import annotations

import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.types.datetime import TimestamptzLoader
from psycopg.types.string import TextLoader
from typing_extensions import override

from holdfast.engine.job import EVERY_TENANT

Rows = list[tuple[Any, ...]]
NOTHING: Mapping[str, Any] = {}

_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")


class InfinityLoader(TimestamptzLoader):
    """Python has no time that never comes."""

    @override
    def load(self, data: Any) -> Any:
        return "infinity" if bytes(data) == b"infinity" else super().load(data)


class ByHand(ABC):
    """Every statement is its own transaction, unless `begin` was called."""

    name: str

    @abstractmethod
    def execute(self, sql: str, params: Mapping[str, Any] = NOTHING) -> Rows:
        """Run one statement; the database's own errors come through."""

    @abstractmethod
    def tables(self) -> list[str]: ...

    @abstractmethod
    def close(self) -> None: ...

    def refusal(self, sql: str, params: Mapping[str, Any] = NOTHING) -> str | None:
        """What the database says against the statement; None when it was done."""
        try:
            self.execute(sql, params)
        except (sqlite3.Error, psycopg.Error) as error:
            return str(error)
        return None

    def contents(self) -> dict[str, Rows]:
        """Every row of every table."""
        return {table: sorted(self.execute(f"select * from {table}"), key=repr) for table in self.tables()}

    @abstractmethod
    def picture(self) -> object:
        """What `contents` says, in whatever form is had soonest: two of one database are the same or they are not."""

    def begin(self) -> None:
        self.execute("begin")

    def rollback(self) -> None:
        self.execute("rollback")

    def commit(self) -> None:
        self.execute("commit")


class SqliteByHand(ByHand):
    name = "sqlite"

    def __init__(self, url: str) -> None:
        path = url.removeprefix("sqlite:///")
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)

    @override
    def execute(self, sql: str, params: Mapping[str, Any] = NOTHING) -> Rows:
        return self._connection.execute(sql, dict(params)).fetchall()

    @override
    def rollback(self) -> None:
        if self._connection.in_transaction:  # a refusal may have ended it already
            self.execute("rollback")

    @override
    def tables(self) -> list[str]:
        return [row[0] for row in self.execute("select name from sqlite_schema where type = 'table'")]

    @override
    def picture(self) -> object:
        """As the rows lie in the file: nothing has to be sorted."""
        return [(table, self.execute(f"select * from {table}")) for table in self.tables()]

    @override
    def close(self) -> None:
        self._connection.close()


class PostgresByHand(ByHand):
    """Bound to every tenant (or the given one) and to the schema, for as long as it is open."""

    name = "postgres"

    def __init__(self, url: str, *, tenant: str | None = EVERY_TENANT, schema: str = "holdfast") -> None:
        self.connection = psycopg.connect(url, autocommit=True)
        self.connection.adapters.register_loader("uuid", TextLoader)
        self.connection.adapters.register_loader("timestamptz", InfinityLoader)
        self.schema = schema
        self.execute(f'set search_path = "{schema}", pg_catalog, pg_temp')
        if tenant is not None:
            self.bind(tenant)

    def bind(self, tenant: str) -> None:
        self.connection.execute("select set_config('holdfast.tenant', %s, false)", (tenant,))

    @override
    def execute(self, sql: str, params: Mapping[str, Any] = NOTHING) -> Rows:
        text = _PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%"))
        cursor = self.connection.execute(text, dict(params))
        return cursor.fetchall() if cursor.description else []

    @override
    def tables(self) -> list[str]:
        rows = self.connection.execute(
            "select relname from pg_class where relnamespace = %s::regnamespace and relkind in ('r', 'p')"
            " and not relispartition"
            " order by relname",
            (self.schema,),
        )
        return [row[0] for row in rows]

    @override
    def picture(self) -> object:
        """In one statement: of fifty, each would cost more to send and to wait for than to answer."""
        each = (f"select '{table}', r::text from {table} r" for table in self.tables())
        return sorted(self.execute(" union all ".join(each)))

    @override
    def close(self) -> None:
        self.connection.close()


def open_by_hand(url: str) -> ByHand:
    return SqliteByHand(url) if url.startswith("sqlite:") else PostgresByHand(url)

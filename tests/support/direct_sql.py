"""A direct SQL connection to a store's database, as an operator with a SQL shell has.

The same statement runs on both databases: parameters are written `:name`, tables have no schema, and
`(select now from present)` is the time of the store.
"""

from __future__ import annotations

import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.types.datetime import TimestamptzLoader
from psycopg.types.string import TextLoader
from typing_extensions import override

from holdfast.engine.job import EVERY_TENANT
from tests.support.sqlite_names import PREFIX, on_sqlite

Rows = list[tuple[Any, ...]]
NOTHING: Mapping[str, Any] = {}

# The server processes of the connections that listen for notifications.
LISTENERS = (
    "select pid from pg_stat_activity where datname = current_database() and application_name = 'holdfast'"
    " and query ~ '^listen|advisory_|pg_snapshot_xip'"
)

_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")


class InfinityLoader(TimestamptzLoader):
    """Loads `infinity`, which a Python datetime cannot hold, as text."""

    @override
    def load(self, data: Any) -> Any:
        return "infinity" if bytes(data) == b"infinity" else super().load(data)


class ByHand(ABC):
    """Each statement is a transaction, unless `begin` was called."""

    name: str

    @abstractmethod
    def execute(self, sql: str, params: Mapping[str, Any] = NOTHING) -> Rows:
        """Run one statement. Errors of the database are raised unchanged."""

    @abstractmethod
    def tables(self) -> list[str]: ...

    @abstractmethod
    def close(self) -> None: ...

    def refusal(self, sql: str, params: Mapping[str, Any] = NOTHING) -> str | None:
        """The database's error message, or None if the statement succeeds."""
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
        """The same as `contents` in the cheapest form that two reads of one database can be compared by."""

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
        return self._connection.execute(on_sqlite(sql), dict(params)).fetchall()

    @override
    def rollback(self) -> None:
        if self._connection.in_transaction:  # an error may have ended it already
            self.execute("rollback")

    @override
    def tables(self) -> list[str]:
        rows = self.execute("select name from sqlite_schema where type = 'table'")
        return [row[0].removeprefix(PREFIX) for row in rows]

    @override
    def picture(self) -> object:
        """Rows in the order of the file, unsorted."""
        return [(table, self.execute(f"select * from {table}")) for table in self.tables()]

    @override
    def close(self) -> None:
        self._connection.close()


class PostgresByHand(ByHand):
    """A connection bound to every tenant (or the given one) and to the schema."""

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
        """One statement for all tables: with fifty, the round trips would cost more than the queries."""
        selects = (f"select '{table}', r::text from {table} r" for table in self.tables())
        return sorted(self.execute(" union all ".join(selects)))

    @override
    def close(self) -> None:
        self.connection.close()


def open_by_hand(url: str) -> ByHand:
    return SqliteByHand(url) if url.startswith("sqlite:") else PostgresByHand(url)


@contextmanager
def unguarded(by_hand: ByHand, *tables: str) -> Iterator[None]:
    """Without the triggers of these tables, as the owner of the database can do; they are restored afterwards."""
    if by_hand.name == "sqlite":
        names = ", ".join(f"'{PREFIX}{table}'" for table in tables)
        triggers = by_hand.execute(
            f"select name, sql from sqlite_master where type = 'trigger' and tbl_name in ({names})"
        )
        for name, _ in triggers:
            by_hand.execute(f"drop trigger {name}")
        yield
        for _, text in triggers:
            by_hand.execute(text)
        return
    for table in tables:
        by_hand.execute(f"alter table {table} disable trigger user")
    yield
    for table in tables:
        by_hand.execute(f"alter table {table} enable trigger user")

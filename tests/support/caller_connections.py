"""Connections of the caller, one class per database library: begin, write, enqueue, and commit or roll back.

All classes have the same operations, so that one test covers every library. Async libraries run on an event loop of the
class.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

import aiosqlite
import asyncpg
import psycopg
import psycopg2
import sqlalchemy as sa
from django.db import transaction
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from holdfast import App, Kind
from holdfast.kind import Prepared
from tests.support.django_setup import django_connection

T = TypeVar("T")


class Borrower(ABC):
    """A library with sync connections. ``connection`` is passed to Holdfast."""

    connection: Any

    def __init__(self, url: str) -> None:
        self.url = url
        self.open()

    @abstractmethod
    def open(self) -> None: ...
    @abstractmethod
    def execute(self, statement: str) -> list[Any]:
        """Run a statement of the caller; return its rows as tuples."""

    def begin(self) -> None:  # noqa: B027 - most libraries begin implicitly
        pass

    def do(self, result: Any) -> Any:
        """The result of a call of the library."""
        return result

    def commit(self) -> None:
        self.do(self.connection.commit())

    def rollback(self) -> None:
        self.do(self.connection.rollback())

    def close(self) -> None:
        self.do(self.connection.close())

    def enqueue(self, kind: Kind[..., Any], *args: Any, **options: Any) -> Any:
        return self._enqueue(kind.using(connection=self.connection, **options), "enqueue", *args)

    def enqueue_by_name(self, app: App, kind: str, payload: Any) -> Any:
        return self._enqueue(app, "enqueue", kind, payload, connection=self.connection)

    def enqueue_many(self, app: App, calls: Iterable[Prepared[Any]]) -> Any:
        return self._enqueue(app, "enqueue_many", calls, connection=self.connection)

    def _enqueue(self, target: Any, name: str, *args: Any, **options: Any) -> Any:
        return getattr(target, name)(*args, **options)


class AsyncBorrower(Borrower):
    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        super().__init__(url)

    def do(self, result: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(result)

    def close(self) -> None:
        super().close()
        self._runner.close()

    def _enqueue(self, target: Any, name: str, *args: Any, **options: Any) -> Any:
        return self.do(getattr(target, f"a{name}")(*args, **options))


async def _opened(connecting: Awaitable[Any]) -> Any:
    return await connecting


# --- drivers ---


class Psycopg(Borrower):
    def open(self) -> None:
        self.connection = psycopg.connect(self.url)

    def execute(self, statement: str) -> list[Any]:
        cursor = self.connection.execute(statement)
        return list(cursor.fetchall()) if cursor.description else []


class AsyncPsycopg(AsyncBorrower):
    def open(self) -> None:
        self.connection = self.do(psycopg.AsyncConnection.connect(self.url))

    def execute(self, statement: str) -> list[Any]:
        async def run() -> list[Any]:
            cursor = await self.connection.execute(statement)
            return list(await cursor.fetchall()) if cursor.description else []

        return self.do(run())


class WithCursor(Borrower):
    """A library whose statements run on a cursor."""

    def execute(self, statement: str) -> list[Any]:
        with self.connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []


class Psycopg2(WithCursor):
    def open(self) -> None:
        self.connection = psycopg2.connect(self.url)


class Asyncpg(AsyncBorrower):
    def open(self) -> None:
        self.connection = self.do(asyncpg.connect(self.url))
        self._block: Any = None

    def begin(self) -> None:
        self._block = self.connection.transaction()
        self.do(self._block.start())

    def execute(self, statement: str) -> list[Any]:
        return [tuple(row.values()) for row in self.do(self.connection.fetch(statement))]

    def commit(self) -> None:
        self.do(self._block.commit())

    def rollback(self) -> None:
        self.do(self._block.rollback())


class AsyncpgPool(Asyncpg):
    """A connection from a pool is a proxy."""

    def open(self) -> None:
        async def lend() -> Any:
            self._pool = await asyncpg.create_pool(self.url, min_size=1, max_size=1)
            return await self._pool.acquire()

        self.connection = self.do(lend())
        self._block = None

    def close(self) -> None:
        self.do(self._pool.release(self.connection))
        self.do(self._pool.close())
        self._runner.close()


class Sqlite(Borrower):
    """Python's legacy mode: it begins a transaction only before an INSERT, UPDATE or DELETE."""

    def open(self) -> None:
        self.connection = sqlite3.connect(path_of(self.url))

    def execute(self, statement: str) -> list[Any]:
        return self.connection.execute(statement).fetchall()  # type: ignore[no-any-return]


class SqliteByHand(Sqlite):
    """Autocommit, with an explicit BEGIN."""

    def open(self) -> None:
        self.connection = sqlite3.connect(path_of(self.url), isolation_level=None)

    def begin(self) -> None:
        self.connection.execute("BEGIN")


class SqliteAlwaysOpen(Sqlite):
    """Since Python 3.12: a transaction is always open."""

    def open(self) -> None:
        self.connection = sqlite3.connect(path_of(self.url), autocommit=False)  # type: ignore[call-overload,unused-ignore]


class Aiosqlite(AsyncBorrower):
    def open(self) -> None:
        self.connection = self.do(_opened(aiosqlite.connect(path_of(self.url))))

    def execute(self, statement: str) -> list[Any]:
        return list(self.do(self.connection.execute_fetchall(statement)))


# --- SQLAlchemy ---


class SqlalchemyConnection(Borrower):
    driver = "psycopg"
    create: Callable[..., Any] = staticmethod(sa.create_engine)

    def open(self) -> None:
        self._engine = self.create(sqlalchemy_url(self.url, self.driver), poolclass=NullPool)
        self.connection = self._connect()

    def _connect(self) -> Any:
        return self._engine.connect()

    def execute(self, statement: str) -> list[Any]:
        result = self.do(self.connection.execute(sa.text(statement)))
        return [tuple(row) for row in result] if result.returns_rows else []

    def close(self) -> None:
        self.do(self.connection.close())
        self.do(self._engine.dispose())


class SqlalchemyPsycopg2(SqlalchemyConnection):
    driver = "psycopg2"


class SqlalchemySession(SqlalchemyConnection):
    def _connect(self) -> Any:
        return Session(self._engine)


class SqlalchemySqlite(SqlalchemyConnection):
    driver = "pysqlite"


class SqlalchemySqliteSession(SqlalchemySession):
    driver = "pysqlite"


class SqlalchemyAsync(AsyncBorrower, SqlalchemyConnection):
    driver = "asyncpg"
    create = staticmethod(create_async_engine)

    def _connect(self) -> Any:
        return self.do(_opened(self._engine.connect()))


class SqlalchemyAsyncPsycopg(SqlalchemyAsync):
    driver = "psycopg"


class SqlalchemyAsyncSession(SqlalchemyAsync):
    def _connect(self) -> Any:
        return AsyncSession(self._engine)


class SqlalchemyAiosqlite(SqlalchemyAsync):
    driver = "aiosqlite"


# --- Django ---


class Django(WithCursor):
    """``connections["alias"]``, in a block of ``transaction.atomic``."""

    proxied = False

    def open(self) -> None:
        self.connection = django_connection(self.url, proxied=self.proxied)

    def begin(self) -> None:
        self._atomic = transaction.atomic(using=self.connection.alias)
        self._atomic.__enter__()

    def commit(self) -> None:
        self._atomic.__exit__(None, None, None)

    def rollback(self) -> None:
        self._atomic.__exit__(ArithmeticError, ArithmeticError("on purpose"), None)


class DjangoProxy(Django):
    """``django.db.connection`` is a proxy."""

    proxied = True


def path_of(url: str) -> str:
    return url.removeprefix("sqlite:///")


def sqlalchemy_url(url: str, driver: str) -> sa.URL:
    if url.startswith("sqlite"):
        return sa.make_url(url).set(drivername=f"sqlite+{driver}")
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    return sa.URL.create(
        f"postgresql+{driver}",
        username=parts.username,
        password=parts.password,
        host=query.pop("host", None) or parts.hostname,
        port=int(query.pop("port", 0)) or parts.port,
        database=parts.path.lstrip("/"),
        query=query,
    )


ON_POSTGRES: list[Callable[[str], Borrower]] = [
    *(Psycopg, AsyncPsycopg, Psycopg2, Asyncpg, AsyncpgPool),
    *(SqlalchemyConnection, SqlalchemyPsycopg2, SqlalchemySession),
    *(SqlalchemyAsync, SqlalchemyAsyncPsycopg, SqlalchemyAsyncSession),
    *(Django, DjangoProxy),
]
ON_SQLITE: list[Callable[[str], Borrower]] = [
    *(Sqlite, SqliteByHand, Aiosqlite),
    *(SqlalchemySqlite, SqlalchemySqliteSession, SqlalchemyAiosqlite),
    *(Django, DjangoProxy),
]
if sys.version_info >= (3, 12):
    ON_SQLITE.append(SqliteAlwaysOpen)

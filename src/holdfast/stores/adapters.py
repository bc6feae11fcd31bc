"""Adapters for connections of the caller: one class per database library, sync or async as the library is.

A store wraps each operation in a *frame*: a function from the state of the connection to the statements to run,
including the savepoint around them. The adapter reads the state and runs the statements with its library.

Statements for PostgreSQL are written with ``$1``, ``$2``, … and have only text values. Every driver sends text in the
same way, whatever adapters or codecs the application has registered.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from holdfast.errors import Conflict, InvalidSetting
from holdfast.stores.flow import Row, Rows, Statement, Steps, adrive_steps, drive_steps

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection

T = TypeVar("T")

POSTGRESQL, SQLITE = "postgresql", "sqlite"


@dataclass(frozen=True, slots=True)
class TransactionState:
    """The state of a caller's connection before our first statement. ``database`` is the kind of its database.

    ``in_transaction``: a later COMMIT or ROLLBACK of the caller decides about our statements. ``begin``: the statement
    that the driver itself would send before a write, where it opens transactions only before statements it recognises.
    """

    database: str
    in_transaction: bool
    begin: str | None = None


OWN_DATABASE = "Pass a connection to the app's own database; in a test with a kit that is kit.url."


def transaction_ended() -> Conflict:
    """The error for an operation that must be part of a transaction and finds none open."""
    return Conflict(
        "the transaction ended inside its block",
        code="transaction_ended",
        fix="Do not call COMMIT or ROLLBACK inside the block.",
    )


FlowFrame = Callable[[TransactionState], Steps[T]]


class ConnectionAdapter(Protocol):
    """A caller's sync connection."""

    def run(self, frame: FlowFrame[T]) -> T: ...


class AsyncConnectionAdapter(Protocol):
    """A caller's async connection."""

    async def arun(self, frame: FlowFrame[T]) -> T: ...


SUPPORTED = (
    "psycopg.Connection and AsyncConnection, psycopg2's connection, asyncpg.Connection, SQLAlchemy's Connection,"
    " Session, AsyncConnection and AsyncSession, django.db.connection, sqlite3.Connection and aiosqlite.Connection"
)


def adapt(connection: object) -> ConnectionAdapter:
    """Return the adapter of a sync connection."""
    adapter = _adapter_of(connection)
    if not hasattr(adapter, "run"):
        raise InvalidSetting(
            f"{_type_name(connection)} is an async connection",
            code="async_connection",
            fix="Await the async form: aenqueue, aenqueue_many or acomplete.",
        )
    sync: ConnectionAdapter = adapter
    return sync


def adapt_async(connection: object) -> AsyncConnectionAdapter:
    """Return the adapter of an async connection."""
    adapter = _adapter_of(connection)
    if not hasattr(adapter, "arun"):
        raise InvalidSetting(
            f"{_type_name(connection)} is a sync connection and would block the event loop",
            code="sync_connection",
            fix="Call the sync form: enqueue, enqueue_many or complete.",
        )
    awaited: AsyncConnectionAdapter = adapter
    return awaited


def _adapter_of(connection: object) -> Any:
    for cls in type(connection).__mro__:
        adapter = _ADAPTERS.get((cls.__module__.partition(".")[0], cls.__name__))
        if adapter is not None:
            return adapter(connection)
    raise InvalidSetting(
        f"{_type_name(connection)} is not a supported connection",
        code="unsupported_connection",
        fix=f"Use a connection of {SUPPORTED}.",
    )


def _type_name(connection: object) -> str:
    cls = type(connection)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


# --- SQLite ---

LEGACY = -1  # sqlite3.LEGACY_TRANSACTION_CONTROL, from Python 3.12 on


class _Sqlite:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def run(self, frame: FlowFrame[T]) -> T:
        return drive_steps(frame(_sqlite_state(self._connection)), self._execute, BaseException)

    def _execute(self, statement: Statement) -> Rows:
        cursor = self._connection.cursor(sqlite3.Cursor)
        cursor.row_factory = None  # not the one of the connection
        try:
            if statement.many:
                cursor.executemany(statement.sql, statement.params)
                return []
            cursor.execute(statement.sql, statement.params)
            return _decoded(cursor.fetchall())
        finally:
            cursor.close()


class _Aiosqlite:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def arun(self, frame: FlowFrame[T]) -> T:
        return await adrive_steps(frame(_sqlite_state(self._connection)), self._execute, BaseException)

    async def _execute(self, statement: Statement) -> Rows:
        cursor = await self._connection.cursor()
        cursor.row_factory = None
        try:
            if statement.many:
                await cursor.executemany(statement.sql, statement.params)
                return []
            await cursor.execute(statement.sql, statement.params)
            return _decoded(await cursor.fetchall())
        finally:
            await cursor.close()


def _sqlite_state(connection: Any) -> TransactionState:
    """The state of a ``sqlite3`` connection, or of one with the same attributes.

    In legacy mode Python sends BEGIN before an INSERT, UPDATE or DELETE when no transaction is open, and a later
    ``commit()`` ends it. Our savepoint would come before that BEGIN, and its release would commit. So ``begin`` is the
    statement that Python would send.
    """
    if connection.in_transaction:
        return TransactionState(SQLITE, in_transaction=True)
    level = connection.isolation_level
    legacy = getattr(connection, "autocommit", LEGACY) == LEGACY
    if not legacy or level is None:
        return TransactionState(SQLITE, in_transaction=False)
    return TransactionState(SQLITE, in_transaction=False, begin=f"BEGIN {level}".rstrip())


def _decoded(rows: list[Row]) -> Rows:
    """Rows with text for bytes: the ``text_factory`` of a connection may return bytes, and our tables have no blobs."""
    return [tuple(value.decode() if isinstance(value, bytes) else value for value in row) for row in rows]


# --- PostgreSQL ---


class _Psycopg:
    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection

    def run(self, frame: FlowFrame[T]) -> T:
        return drive_steps(frame(_psycopg_state(self._connection)), self._execute, BaseException)

    def _execute(self, statement: Statement) -> Rows:
        from psycopg import Cursor
        from psycopg.rows import tuple_row

        # A plain cursor: the connection may be configured with another cursor class or row factory.
        with Cursor(self._connection, row_factory=tuple_row) as cursor:
            cursor.execute(*_with_percent(statement.sql, statement.params))  # type: ignore[arg-type]
            return list(cursor.fetchall()) if cursor.description else []


class _AsyncPsycopg:
    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self._connection = connection

    async def arun(self, frame: FlowFrame[T]) -> T:
        return await adrive_steps(frame(_psycopg_state(self._connection)), self._execute, BaseException)

    async def _execute(self, statement: Statement) -> Rows:
        from psycopg import AsyncCursor
        from psycopg.rows import tuple_row

        async with AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
            await cursor.execute(*_with_percent(statement.sql, statement.params))  # type: ignore[arg-type]
            return list(await cursor.fetchall()) if cursor.description else []


def _psycopg_state(connection: Connection[Any] | AsyncConnection[Any]) -> TransactionState:
    """Without autocommit the first statement opens a transaction, ours included."""
    from psycopg.pq import TransactionStatus

    idle = connection.info.transaction_status == TransactionStatus.IDLE
    return TransactionState(POSTGRESQL, in_transaction=not (connection.autocommit and idle))


PSYCOPG2_IDLE = 0  # psycopg2.extensions.TRANSACTION_STATUS_IDLE


class _Psycopg2:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def run(self, frame: FlowFrame[T]) -> T:
        idle = self._connection.get_transaction_status() == PSYCOPG2_IDLE
        state = TransactionState(POSTGRESQL, in_transaction=not (self._connection.autocommit and idle))
        return drive_steps(frame(state), self._execute, BaseException)

    def _execute(self, statement: Statement) -> Rows:
        from psycopg2.extensions import cursor as plain

        # A plain cursor: the connection may be configured with another cursor class.
        with self._connection.cursor(cursor_factory=plain) as cursor:
            cursor.execute(*_with_percent(statement.sql, statement.params))  # type: ignore[arg-type]
            return list(cursor.fetchall()) if cursor.description else []


class _Asyncpg:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def arun(self, frame: FlowFrame[T]) -> T:
        state = TransactionState(POSTGRESQL, in_transaction=self._connection.is_in_transaction())
        return await adrive_steps(frame(state), self._execute, BaseException)

    async def _execute(self, statement: Statement) -> Rows:
        if not statement.params:
            await self._connection.execute(statement.sql)  # savepoints: nothing to prepare, no rows
            return []
        return [tuple(record.values()) for record in await self._connection.fetch(statement.sql, *statement.params)]


# --- SQLAlchemy and Django, over any driver ---

# A connection may be configured to stream its results, through cursors that accept only SELECT.
UNSTREAMED = {"stream_results": False}


class _Sqlalchemy:
    """A ``Connection``, or the connection of a ``Session`` or ``scoped_session``.

    Statements go through ``execute`` of SQLAlchemy, so that it knows about the transaction they open.
    """

    def __init__(self, bind: Any) -> None:
        self._bind = bind

    def run(self, frame: FlowFrame[T]) -> T:
        return _run_on_sqlalchemy(self._bind, frame)


class _AsyncSqlalchemy:
    """An ``AsyncConnection`` or ``AsyncSession``. The whole frame runs within one ``run_sync``."""

    def __init__(self, bind: Any) -> None:
        self._bind = bind

    async def arun(self, frame: FlowFrame[T]) -> T:
        result: T = await self._bind.run_sync(_run_on_sqlalchemy, frame)
        return result


def _run_on_sqlalchemy(bind: Any, frame: FlowFrame[T]) -> T:
    connection = bind.connection() if hasattr(bind, "get_bind") else bind
    if connection.dialect.name == SQLITE:

        def execute(statement: Statement) -> Rows:
            if statement.many and not statement.params:
                return []
            return _decoded(_rows(connection.exec_driver_sql(statement.sql, statement.params, UNSTREAMED)))

        return drive_steps(frame(_sqlite_state(connection.connection.driver_connection)), execute, BaseException)

    from sqlalchemy import text

    def execute_text(statement: Statement) -> Rows:
        sql, values = _with_colons(statement.sql, statement.params)  # type: ignore[arg-type]
        return _rows(connection.execute(text(sql), values, execution_options=UNSTREAMED))

    autocommit = getattr(connection.connection.dbapi_connection, "autocommit", False)
    state = TransactionState(connection.dialect.name, in_transaction=not autocommit)
    return drive_steps(frame(state), execute_text, BaseException)


def _rows(result: Any) -> Rows:
    return [tuple(row) for row in result] if result.returns_rows else []


class _Django:
    """``django.db.connection`` or ``connections["alias"]``.

    Django's cursors rewrite parameters, so statements run on the driver's connection, which has the same transaction.
    """

    def __init__(self, wrapper: Any) -> None:
        self._wrapper = wrapper

    def run(self, frame: FlowFrame[T]) -> T:
        with driver_connection(self._wrapper) as connection:
            return adapt(connection).run(frame)


@contextmanager
def driver_connection(wrapper: Any) -> Iterator[Any]:
    """The driver's connection of a Django connection, with what Django does around its own queries.

    Before: its checks of the thread, of the connection's health and of the transaction. After an error: a note to test
    the connection at the end of the request, without which Django keeps one that the server has closed.
    """
    wrapper.validate_thread_sharing()
    wrapper.close_if_health_check_failed()
    wrapper.ensure_connection()
    wrapper.validate_no_broken_transaction()
    try:
        yield wrapper.connection
    except Exception:
        wrapper.errors_occurred = True
        raise


# By package and name of a connection's class: the libraries themselves are imported only when a connection is used.
_ADAPTERS: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("psycopg", "Connection"): _Psycopg,
    ("psycopg", "AsyncConnection"): _AsyncPsycopg,
    ("psycopg2", "connection"): _Psycopg2,
    ("asyncpg", "Connection"): _Asyncpg,
    ("asyncpg", "PoolConnectionProxy"): _Asyncpg,
    ("sqlalchemy", "Connection"): _Sqlalchemy,
    ("sqlalchemy", "Session"): _Sqlalchemy,
    ("sqlalchemy", "scoped_session"): _Sqlalchemy,
    ("sqlalchemy", "AsyncConnection"): _AsyncSqlalchemy,
    ("sqlalchemy", "AsyncSession"): _AsyncSqlalchemy,
    ("sqlalchemy", "async_scoped_session"): _AsyncSqlalchemy,
    ("django", "BaseDatabaseWrapper"): _Django,
    ("django", "ConnectionProxy"): _Django,
    ("sqlite3", "Connection"): _Sqlite,
    ("aiosqlite", "Connection"): _Aiosqlite,
}


# --- parameter styles ---

# Literals and quoted names are matched first, so that parameters are never replaced inside them.
_TOKEN = re.compile(r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | \$(\d+)""", re.VERBOSE)


def _with_percent(sql: str, values: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    """Rewrite ``$1`` as ``%s``, with one value per occurrence."""
    text, indexes = _percent_text(sql)
    return text, tuple(values[index] for index in indexes)


@lru_cache(maxsize=64)
def _percent_text(sql: str) -> tuple[str, tuple[int, ...]]:
    indexes: list[int] = []

    def write(number: int) -> str:
        indexes.append(number - 1)
        return "%s"

    return _rewritten(sql, write, lambda text: text.replace("%", "%%")), tuple(indexes)


def _with_colons(sql: str, values: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    """Rewrite ``$1`` as ``:p1`` for ``text()`` of SQLAlchemy. Other colons are escaped: it also parses literals."""
    return _colon_text(sql), {f"p{number}": value for number, value in enumerate(values, start=1)}


@lru_cache(maxsize=64)
def _colon_text(sql: str) -> str:
    return _rewritten(sql, lambda number: f":p{number}", lambda text: text.replace(":", "\\:"))


def _rewritten(sql: str, parameter: Callable[[int], str], other: Callable[[str], str]) -> str:
    parts, end = [], 0
    for match in _TOKEN.finditer(sql):
        parts.append(other(sql[end : match.start()]))
        parts.append(parameter(int(match[1])) if match[1] else other(match[0]))
        end = match.end()
    return "".join([*parts, other(sql[end:])])

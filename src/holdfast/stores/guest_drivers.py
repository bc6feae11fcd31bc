"""Psycopg, psycopg2, asyncpg, SQLAlchemy, Django, sqlite3, aiosqlite adapters.

SQLAlchemy: connections and sessions, sync and async, over whatever driver is beneath.

Statements go through SQLAlchemy's own ``execute``, so that it knows of the transaction they open.

Django: ``django.db.connection`` and ``connections["alias"]``.

Django's own cursors rewrite parameters; the driver's connection beneath has the very same transaction, so that one
is used. Its rules come first: the right thread, and no statement in a block that is to be rolled back anyway.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.stores.flow import Row, Rows, Statement
from holdfast.stores.guests import (
    POSTGRESQL,
    SQLITE,
    BorrowedConnection,
    FlowFrame,
    TransactionState,
    adrive,
    colon,
    drive,
    percent,
)

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection


T = TypeVar("T")

LEGACY = -1  # sqlite3.LEGACY_TRANSACTION_CONTROL, from Python 3.12 on


class SqliteGuest:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def run(self, frame: FlowFrame[T]) -> T:
        return drive(frame(standing(self._connection)), self._execute)

    def _execute(self, statement: Statement) -> Rows:
        cursor = self._connection.cursor(sqlite3.Cursor)
        cursor.row_factory = None  # whatever the connection's is
        try:
            if statement.many:
                cursor.executemany(statement.sql, statement.params)
                return []
            cursor.execute(statement.sql, statement.params)
            return in_text(cursor.fetchall())
        finally:
            cursor.close()


class AiosqliteGuest:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def arun(self, frame: FlowFrame[T]) -> T:
        return await adrive(frame(standing(self._connection)), self._execute)

    async def _execute(self, statement: Statement) -> Rows:
        cursor = await self._connection.cursor()
        cursor.row_factory = None
        try:
            if statement.many:
                await cursor.executemany(statement.sql, statement.params)
                return []
            await cursor.execute(statement.sql, statement.params)
            return in_text(await cursor.fetchall())
        finally:
            await cursor.close()


def standing(connection: Any) -> TransactionState:
    """Of a ``sqlite3`` connection, or one that looks like it.

    In its legacy mode Python says BEGIN before an INSERT, UPDATE or DELETE when nothing is open, and a later
    ``commit()`` ends that. A savepoint of ours would come before, and its release would be the commit: so the BEGIN
    that Python would say is said first.
    """
    if connection.in_transaction:
        return TransactionState(SQLITE, in_transaction=True)
    level = connection.isolation_level
    legacy = getattr(connection, "autocommit", LEGACY) == LEGACY
    if not legacy or level is None:
        return TransactionState(SQLITE, in_transaction=False)
    return TransactionState(SQLITE, in_transaction=False, begin=f"BEGIN {level}".rstrip())


def in_text(rows: list[Row]) -> Rows:
    """``text_factory`` is the connection's, and may give bytes; our tables hold no others."""
    return [tuple(value.decode() if isinstance(value, bytes) else value for value in row) for row in rows]


# A connection may be set to read its results piece by piece, through cursors that take nothing but a SELECT.
WHOLE = {"stream_results": False}


class SqlalchemyGuest:
    """A ``Connection``, or a ``Session`` (also a scoped one), whose connection is used then."""

    def __init__(self, given: Any) -> None:
        self._given = given

    def run(self, frame: FlowFrame[T]) -> T:
        return run_on(self._given, frame)


class AsyncSqlalchemyGuest:
    """An ``AsyncConnection`` or an ``AsyncSession``: what is async about them goes around the whole frame."""

    def __init__(self, given: Any) -> None:
        self._given = given

    async def arun(self, frame: FlowFrame[T]) -> T:
        result: T = await self._given.run_sync(run_on, frame)
        return result


def run_on(given: Any, frame: FlowFrame[T]) -> T:
    connection = given.connection() if hasattr(given, "get_bind") else given
    if connection.dialect.name == SQLITE:

        def execute(statement: Statement) -> Rows:
            if statement.many and not statement.params:
                return []
            return in_text(_rows(connection.exec_driver_sql(statement.sql, statement.params, WHOLE)))

        return drive(frame(standing(connection.connection.driver_connection)), execute)

    from sqlalchemy import text

    def execute_text(statement: Statement) -> Rows:
        sql, values = colon(statement.sql, statement.params)  # type: ignore[arg-type]
        return _rows(connection.execute(text(sql), values, execution_options=WHOLE))

    autocommit = getattr(connection.connection.dbapi_connection, "autocommit", False)
    return drive(frame(TransactionState(connection.dialect.name, in_transaction=not autocommit)), execute_text)


def _rows(result: Any) -> Rows:
    return [tuple(row) for row in result] if result.returns_rows else []


class PsycopgGuest:
    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection

    def run(self, frame: FlowFrame[T]) -> T:
        return drive(frame(_standing(self._connection)), self._execute)

    def _execute(self, statement: Statement) -> Rows:
        from psycopg import Cursor
        from psycopg.rows import tuple_row

        # A plain cursor of our own: the connection may be set up to make others, with rows of another shape.
        with Cursor(self._connection, row_factory=tuple_row) as cursor:
            cursor.execute(*percent(statement.sql, statement.params))  # type: ignore[arg-type]
            return list(cursor.fetchall()) if cursor.description else []


class AsyncPsycopgGuest:
    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self._connection = connection

    async def arun(self, frame: FlowFrame[T]) -> T:
        return await adrive(frame(_standing(self._connection)), self._execute)

    async def _execute(self, statement: Statement) -> Rows:
        from psycopg import AsyncCursor
        from psycopg.rows import tuple_row

        async with AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
            await cursor.execute(*percent(statement.sql, statement.params))  # type: ignore[arg-type]
            return list(await cursor.fetchall()) if cursor.description else []


def _standing(connection: Connection[Any] | AsyncConnection[Any]) -> TransactionState:
    """Without autocommit the first statement opens a transaction, ours as well as any other."""
    from psycopg.pq import TransactionStatus

    idle = connection.info.transaction_status == TransactionStatus.IDLE
    return TransactionState(POSTGRESQL, in_transaction=not (connection.autocommit and idle))


IDLE = 0


class Psycopg2Guest:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def run(self, frame: FlowFrame[T]) -> T:
        idle = self._connection.get_transaction_status() == IDLE
        standing = TransactionState(POSTGRESQL, in_transaction=not (self._connection.autocommit and idle))
        return drive(frame(standing), self._execute)

    def _execute(self, statement: Statement) -> Rows:
        from psycopg2.extensions import cursor as plain

        # The connection may be set up to make other cursors, with rows of another shape.
        with self._connection.cursor(cursor_factory=plain) as cursor:
            cursor.execute(*percent(statement.sql, statement.params))  # type: ignore[arg-type]
            return list(cursor.fetchall()) if cursor.description else []


class AsyncpgGuest:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def arun(self, frame: FlowFrame[T]) -> T:
        return await adrive(
            frame(TransactionState(POSTGRESQL, in_transaction=self._connection.is_in_transaction())), self._execute
        )

    async def _execute(self, statement: Statement) -> Rows:
        if not statement.params:
            await self._connection.execute(statement.sql)  # savepoints: nothing to prepare, no rows
            return []
        return [tuple(record.values()) for record in await self._connection.fetch(statement.sql, *statement.params)]


class DjangoGuest:
    def __init__(self, wrapper: Any, recognise: Callable[[object], BorrowedConnection]) -> None:
        self._wrapper = wrapper
        self._recognise = recognise

    def run(self, frame: FlowFrame[T]) -> T:
        self._wrapper.validate_thread_sharing()
        self._wrapper.ensure_connection()
        self._wrapper.validate_no_broken_transaction()
        return self._recognise(self._wrapper.connection).run(frame)

"""The standard library's ``sqlite3``, and aiosqlite, which runs one in a thread."""

from __future__ import annotations

import sqlite3
from typing import Any, TypeVar

from holdfast.stores.borrowed.guest import SQLITE, Frame, Standing, adrive, drive
from holdfast.stores.flow import Row, Rows, Statement

T = TypeVar("T")

LEGACY = -1  # sqlite3.LEGACY_TRANSACTION_CONTROL, from Python 3.12 on


class SqliteGuest:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def run(self, frame: Frame[T]) -> T:
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

    async def arun(self, frame: Frame[T]) -> T:
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


def standing(connection: Any) -> Standing:
    """Of a ``sqlite3`` connection, or one that looks like it.

    In its legacy mode Python says BEGIN before an INSERT, UPDATE or DELETE when nothing is open, and a later
    ``commit()`` ends that. A savepoint of ours would come before, and its release would be the commit: so the BEGIN
    that Python would say is said first.
    """
    if connection.in_transaction:
        return Standing(SQLITE, in_transaction=True)
    level = connection.isolation_level
    legacy = getattr(connection, "autocommit", LEGACY) == LEGACY
    if not legacy or level is None:
        return Standing(SQLITE, in_transaction=False)
    return Standing(SQLITE, in_transaction=False, begin=f"BEGIN {level}".rstrip())


def in_text(rows: list[Row]) -> Rows:
    """``text_factory`` is the connection's, and may give bytes; our tables hold no others."""
    return [tuple(value.decode() if isinstance(value, bytes) else value for value in row) for row in rows]

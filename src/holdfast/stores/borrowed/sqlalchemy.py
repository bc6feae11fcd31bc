"""SQLAlchemy: connections and sessions, sync and async, over whatever driver is beneath.

Statements go through SQLAlchemy's own ``execute``, so that it knows of the transaction they open.
"""

from __future__ import annotations

from typing import Any, TypeVar

from holdfast.stores.borrowed.guest import SQLITE, Frame, Standing, drive
from holdfast.stores.borrowed.parameters import colon
from holdfast.stores.borrowed.sqlite import in_text, standing
from holdfast.stores.flow import Rows, Statement

T = TypeVar("T")

# A connection may be set to read its results piece by piece, through cursors that take nothing but a SELECT.
WHOLE = {"stream_results": False}


class SqlalchemyGuest:
    """A ``Connection``, or a ``Session`` (also a scoped one), whose connection is used then."""

    def __init__(self, given: Any) -> None:
        self._given = given

    def run(self, frame: Frame[T]) -> T:
        return run_on(self._given, frame)


class AsyncSqlalchemyGuest:
    """An ``AsyncConnection`` or an ``AsyncSession``: what is async about them goes around the whole frame."""

    def __init__(self, given: Any) -> None:
        self._given = given

    async def arun(self, frame: Frame[T]) -> T:
        result: T = await self._given.run_sync(run_on, frame)
        return result


def run_on(given: Any, frame: Frame[T]) -> T:
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
    return drive(frame(Standing(connection.dialect.name, in_transaction=not autocommit)), execute_text)


def _rows(result: Any) -> Rows:
    return [tuple(row) for row in result] if result.returns_rows else []

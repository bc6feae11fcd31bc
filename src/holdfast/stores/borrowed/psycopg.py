"""psycopg 3, sync and async."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.stores.borrowed.guest import POSTGRESQL, Frame, Standing, adrive, drive
from holdfast.stores.borrowed.parameters import percent
from holdfast.stores.flow import Rows, Statement

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection

T = TypeVar("T")


class PsycopgGuest:
    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection

    def run(self, frame: Frame[T]) -> T:
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

    async def arun(self, frame: Frame[T]) -> T:
        return await adrive(frame(_standing(self._connection)), self._execute)

    async def _execute(self, statement: Statement) -> Rows:
        from psycopg import AsyncCursor
        from psycopg.rows import tuple_row

        async with AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
            await cursor.execute(*percent(statement.sql, statement.params))  # type: ignore[arg-type]
            return list(await cursor.fetchall()) if cursor.description else []


def _standing(connection: Connection[Any] | AsyncConnection[Any]) -> Standing:
    """Without autocommit the first statement opens a transaction, ours as well as any other."""
    from psycopg.pq import TransactionStatus

    idle = connection.info.transaction_status == TransactionStatus.IDLE
    return Standing(POSTGRESQL, in_transaction=not (connection.autocommit and idle))

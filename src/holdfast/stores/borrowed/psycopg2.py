"""psycopg2, which many programs still run."""

from __future__ import annotations

from typing import Any, TypeVar

from holdfast.stores.borrowed.guest import POSTGRESQL, Frame, Standing, drive
from holdfast.stores.borrowed.parameters import percent
from holdfast.stores.flow import Rows, Statement

T = TypeVar("T")

IDLE = 0


class Psycopg2Guest:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def run(self, frame: Frame[T]) -> T:
        idle = self._connection.get_transaction_status() == IDLE
        standing = Standing(POSTGRESQL, in_transaction=not (self._connection.autocommit and idle))
        return drive(frame(standing), self._execute)

    def _execute(self, statement: Statement) -> Rows:
        from psycopg2.extensions import cursor as plain

        # The connection may be set up to make other cursors, with rows of another shape.
        with self._connection.cursor(cursor_factory=plain) as cursor:
            cursor.execute(*percent(statement.sql, statement.params))  # type: ignore[arg-type]
            return list(cursor.fetchall()) if cursor.description else []

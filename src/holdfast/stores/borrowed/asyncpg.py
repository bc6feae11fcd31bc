"""asyncpg: its connections, and what its pool lends."""

from __future__ import annotations

from typing import Any, TypeVar

from holdfast.stores.borrowed.guest import POSTGRESQL, Frame, Standing, adrive
from holdfast.stores.flow import Rows, Statement

T = TypeVar("T")


class AsyncpgGuest:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def arun(self, frame: Frame[T]) -> T:
        return await adrive(
            frame(Standing(POSTGRESQL, in_transaction=self._connection.is_in_transaction())), self._execute
        )

    async def _execute(self, statement: Statement) -> Rows:
        if not statement.params:
            await self._connection.execute(statement.sql)  # savepoints: nothing to prepare, no rows
            return []
        return [tuple(record.values()) for record in await self._connection.fetch(statement.sql, *statement.params)]

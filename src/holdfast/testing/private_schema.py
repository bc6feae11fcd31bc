"""The PostgreSQL store of the test kit. A separate module, because it needs psycopg."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from psycopg import sql
from typing_extensions import override

from holdfast.features.postgres import PostgresStore
from holdfast.stores.flow import Flow

T = TypeVar("T")

DROP_TIMEOUT = "10s"


class PrivateSchema(PostgresStore):
    """A store in a schema that is dropped at the end of a test."""

    @override
    async def arun(self, flow: Flow[T]) -> T:
        """Run the flow in a thread. A pool per event loop would outlive the loop, as each test may have its own."""
        return await asyncio.to_thread(self.run, flow)

    def drop(self) -> None:
        """Drop the schema. With a timeout: a transaction that a test left open is an error instead of a hang."""
        with self._connected() as connection:
            connection.execute(sql.SQL("set lock_timeout = {}").format(DROP_TIMEOUT))
            connection.execute(sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(self.schema_name)))

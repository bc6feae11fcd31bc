"""A schema of a PostgreSQL database that belongs to one test."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from psycopg import sql
from typing_extensions import override

from holdfast.stores.flow import Flow
from holdfast.stores.postgres.store import PostgresStore

T = TypeVar("T")

LONGEST_WAIT = "10s"


class PrivateSchema(PostgresStore):
    @override
    async def arun(self, flow: Flow[T]) -> T:
        """In a thread: a pool of the loop's own would outlive it, as each test may have a loop of its own."""
        return await asyncio.to_thread(self.run, flow)

    def drop(self) -> None:
        """A transaction that somebody left open on its tables is an error soon, instead of a test that hangs."""
        with self._connected() as connection:
            connection.execute(sql.SQL("set lock_timeout = {}").format(LONGEST_WAIT))
            connection.execute(sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(self.schema_name)))

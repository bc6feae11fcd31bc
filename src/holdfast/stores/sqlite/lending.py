"""A connection for a handler's own statements, in one transaction that also ends its job.

The write lock is taken at the beginning: a handler that has read what it is about to change must not find, when it
writes, that somebody was quicker. So blocks are to be short.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from holdfast.stores.sqlite.connection import Connections
from holdfast.stores.sqlite.failures import translate


class SqliteLending:
    _connections: Connections

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with self._connections.lend() as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.Error as error:
                raise translate(error) from error
            try:
                yield connection
                _commit(connection)
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @asynccontextmanager
    async def atransaction(self) -> AsyncIterator[sqlite3.Connection]:
        """The same connection: what waits for the lock and for the disk is done in a thread."""
        block = self.transaction()
        opening = asyncio.ensure_future(asyncio.to_thread(block.__enter__))

        def abandon(opened: asyncio.Future[sqlite3.Connection]) -> None:
            if not opened.cancelled() and opened.exception() is None:
                block.__exit__(asyncio.CancelledError, asyncio.CancelledError(), None)

        try:
            connection = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(abandon)  # the thread goes on, and must not keep the lock it gets
            raise
        try:
            yield connection
        except BaseException as error:
            block.__exit__(type(error), error, error.__traceback__)
            raise
        await asyncio.to_thread(block.__exit__, None, None, None)


def _commit(connection: sqlite3.Connection) -> None:
    """What a handler's own statement fails with is its driver's; this one is ours."""
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise translate(error) from error

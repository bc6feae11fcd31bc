"""Whether a pooler (PgBouncer and the like) is between us and the server, and what that means for a connection.

Whoever connects is told the number of the server process that serves him. A pooler makes that number up, since with
each transaction it may be another process; so the server itself is asked, and if it names another, somebody is between.

What is prepared on one server process is not there on the next, or is another statement of the same name that somebody
else prepared. So nothing is, unless the connection is known to be direct.
"""

from __future__ import annotations

import contextlib
import secrets
import select
import time
from typing import TYPE_CHECKING, Any

import psycopg

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection

PREPARE_AFTER = 5  # as is the driver's custom
# A notice takes milliseconds. One that has not come by then goes to whoever has the connection now.
HEARD_WITHIN = 5.0

_SERVED_BY = "select pg_backend_pid()"


def is_direct(connection: Connection[Any]) -> bool:
    return connection.execute(_SERVED_BY).fetchone() == (connection.info.backend_pid,)


def prepare_if_direct(connection: Connection[Any]) -> None:
    if is_direct(connection):
        connection.prepare_threshold = PREPARE_AFTER


async def aprepare_if_direct(connection: AsyncConnection[Any]) -> None:
    answer = await connection.execute(_SERVED_BY)
    if await answer.fetchone() == (connection.info.backend_pid,):
        connection.prepare_threshold = PREPARE_AFTER


def brings_notices(connection: Connection[Any], settings: dict[str, Any], cut: int | None = None) -> bool:
    """Whether it is told what another says while it rests. There is no other way to tell a pooler that keeps a server
    process for each client from one that does not. ``settings`` are those for
    another connection, and ``cut`` is a socket that ends the wait when something comes there.

    On a channel that nobody else speaks on: a LISTEN that was in vain stays behind on some connection of the pooler.
    """
    channel = f"holdfast probe {secrets.token_hex(8)}"
    connection.execute(f'listen "{channel}"')
    try:
        with contextlib.closing(psycopg.connect(**settings)) as other:
            # The answer is not waited for: in a pool that is full it would not come.
            other.pgconn.send_query(f'notify "{channel}"'.encode())
            return _hears(connection, channel, time.monotonic() + HEARD_WITHIN, cut)
    finally:
        connection.execute(f'unlisten "{channel}"')


def _hears(connection: Connection[Any], channel: str, until: float, cut: int | None) -> bool:
    pgconn = connection.pgconn
    watched = [pgconn.socket] if cut is None else [pgconn.socket, cut]
    while (left := until - time.monotonic()) > 0:
        ready, _, _ = select.select(watched, [], [], left)
        if cut in ready:
            return False
        pgconn.consume_input()
        while (notice := pgconn.notifies()) is not None:
            if notice.relname.decode() == channel:
                return True
    return False

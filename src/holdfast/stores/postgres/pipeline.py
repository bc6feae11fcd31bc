"""Statements sent together in one transaction; pooler detection.

Statements that are sent at once and answered at once, in a transaction that begins and ends with them.

A read of ours was four questions: begin, bind to the tenant, ask, commit. On a busy machine each of them waits for a
processor on the server and for its turn in the process that asked, so what a short page takes there is how often it
asks. Sent together they wait once, and neither begin nor commit is a statement of its own (docs/adr/0037).

Only over a connection that is known to be direct: what is prepared on it must still be there.

Whether a pooler (PgBouncer and the like) is between us and the server, and what that means for a connection.

Whoever connects is told the number of the server process that serves him. A pooler makes that number up, since with
each transaction it may be another process; so the server itself is asked, and if it names another, somebody is between.

What is prepared on one server process is not there on the next, or is another statement of the same name that somebody
else prepared. So nothing is, unless the connection is known to be direct.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import select
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors, generators
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ExecStatus, PipelineStatus

from holdfast.stores.flow import Params, Rows, Statement

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection
    from psycopg.abc import PQGen
    from psycopg.abc import Transformer as Values
    from psycopg.pq.abc import PGresult

    from holdfast.stores.postgres.connections import OurAsyncConnection, OurConnection


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


MOST_PREPARED = 100
"""Of one connection. Those that come later are sent whole each time; a connection does not live longer than an hour."""
MOST_KNOWN = 500
_PLACE = re.compile(r"%(?:\((\w+)\)s|(s)|%)")


@dataclass(slots=True)
class PreparedNames:
    """What a connection has found out about one text: how its values are sent, and its name on the server by their
    types, once it was asked often enough to have one."""

    text: bytes
    names: tuple[str, ...] | None
    values: Values
    formats: list[PyFormat]
    asked: int = 0
    prepared: dict[tuple[int, ...], bytes] = field(default_factory=dict)

    def ordered(self, params: Params | Sequence[Params]) -> Sequence[Any]:
        if self.names is None:
            return params if isinstance(params, Sequence) else ()
        return [params[name] for name in self.names] if isinstance(params, Mapping) else ()


class PipelinedReads:
    """Of one connection, which nobody else uses meanwhile."""

    def __init__(self, connection: OurConnection | OurAsyncConnection) -> None:
        self._connection = connection
        self._known: dict[str, PreparedNames] = {}
        self._prepared = self._number = 0

    def forget(self) -> None:
        """What was prepared is gone: the driver lets go of everything on its connection when it rolls back."""
        self._prepared = 0
        for known in self._known.values():
            known.prepared.clear()

    def ask(self, statements: Sequence[Statement]) -> PQGen[list[Rows]]:
        """For the connection's ``wait``. The first error is raised when all answers have been read."""
        pgconn = self._connection.pgconn
        pgconn.enter_pipeline_mode()
        try:
            sent = [self._send(statement) for statement in statements]
            pgconn.pipeline_sync()
            yield from generators.send(pgconn)
            answers, wrong = [], None
            for known, types, name in sent:
                if name is not None:
                    wrong = wrong or _wrong((yield from generators.fetch_many(pgconn)))
                results = yield from generators.fetch_many(pgconn)
                wrong = wrong or _wrong(results)
                if wrong is None:
                    if name is not None:
                        known.prepared[types] = name
                    answers.append(_rows(known.values, results[-1]))
            yield from generators.fetch_many(pgconn)
            pgconn.exit_pipeline_mode()
        finally:
            if pgconn.pipeline_status != PipelineStatus.OFF:
                # Left in the middle: the next one must not read the answers to this one.
                with contextlib.suppress(psycopg.Error):
                    pgconn.finish()
        if wrong is not None:
            raise wrong
        return answers

    def _send(self, statement: Statement) -> tuple[PreparedNames, tuple[int, ...], bytes | None]:
        """Answers the name under which it is being prepared, if it is."""
        pgconn = self._connection.pgconn
        known = self._known.get(statement.sql) or self._meet(statement.sql)
        values = known.values.dump_sequence(known.ordered(statement.params), known.formats)
        types, formats = known.values.types or (), known.values.formats
        name, new = known.prepared.get(types), None
        known.asked += 1
        if name is None and known.asked > PREPARE_AFTER and self._prepared < MOST_PREPARED:
            self._prepared, self._number = self._prepared + 1, self._number + 1
            name = new = f"holdfast_{self._number}".encode()
            pgconn.send_prepare(name, known.text, types)
        if name is None:
            pgconn.send_query_params(known.text, values, param_types=types, param_formats=formats)
        else:
            pgconn.send_query_prepared(name, values, param_formats=formats)
        return known, types, new

    def _meet(self, sql: str) -> PreparedNames:
        if len(self._known) >= MOST_KNOWN:
            self._known = {text: known for text, known in self._known.items() if known.prepared}
        text, names, count = _numbered(sql)
        known = PreparedNames(text, names, Transformer(self._connection), [PyFormat.AUTO] * count)
        self._known[sql] = known
        return known


@lru_cache(maxsize=MOST_KNOWN)
def _numbered(sql: str) -> tuple[bytes, tuple[str, ...] | None, int]:
    """With ``$1`` for each value, the names of those that have one, and how many there are."""
    names: list[str] = []
    count = 0

    def place(found: re.Match[str]) -> str:
        nonlocal count
        name, unnamed = found.groups()
        if name is None and unnamed is None:
            return "%"
        if name in names:
            return f"${names.index(name) + 1}"
        count += 1
        if name is not None:
            names.append(name)
        return f"${count}"

    text = _PLACE.sub(place, sql)
    return text.encode(), tuple(names) if names else None, count


def _wrong(results: list[PGresult]) -> psycopg.Error | None:
    if not results:
        return psycopg.OperationalError("the connection was lost")
    for result in results:
        if result.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
            return errors.error_from_result(result)
    return None


def _rows(values: Values, result: PGresult) -> Rows:
    if result.status != ExecStatus.TUPLES_OK:
        return []
    values.set_pgresult(result)
    rows: Rows = list(values.load_rows(0, result.ntuples, tuple))
    values.set_pgresult(None)  # which would be kept until the next time
    return rows

"""Statements sent together in one transaction; whether notifications arrive.

A read would take four round trips: begin, bind to the tenant, query, commit. On a busy machine each of them waits for a
processor on the server and for the client process to be scheduled, so the time of a short page is the number of its
round trips. Statements sent together wait once, and need neither BEGIN nor COMMIT (docs/adr/0023).

This needs prepared statements, and so a direct connection. Behind a pooler such as PgBouncer each transaction may run
in another server process, where a prepared statement does not exist, or is another statement with the same name.
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
from holdfast.stores.postgres.session import PREPARE_AFTER

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.abc import PQGen
    from psycopg.abc import Transformer as Values
    from psycopg.pq.abc import PGresult

    from holdfast.stores.postgres.connections import AsyncStoreConnection, StoreConnection


# Seconds. A notification takes milliseconds; one that has not arrived by then was delivered to another client.
NOTIFIED_WITHIN = 5.0


def receives_notifications(connection: Connection[Any], settings: dict[str, Any], cut: int | None = None) -> bool:
    """Whether an idle connection receives notifications of another one. Only this distinguishes a pooler in session
    mode, which keeps a server process per client, from one in transaction mode. ``settings`` are those of a second
    connection; ``cut`` is a socket that ends the wait when it becomes readable.

    The channel is random: in transaction mode the LISTEN stays behind on some connection of the pooler.
    """
    channel = f"holdfast probe {secrets.token_hex(8)}"
    connection.execute(f'listen "{channel}"')
    try:
        with contextlib.closing(psycopg.connect(**settings)) as other:
            # The response is not awaited: in a full pool it would not arrive.
            other.pgconn.send_query(f'notify "{channel}"'.encode())
            return _wait_for_notification(connection, channel, time.monotonic() + NOTIFIED_WITHIN, cut)
    finally:
        connection.execute(f'unlisten "{channel}"')


def readable(files: Sequence[int], within: float) -> Sequence[int]:
    """Wait until one of the files can be read. ``select`` fails for numbers above 1023, which a service may reach."""
    if not hasattr(select, "poll"):
        return select.select(files, [], [], within)[0]
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    return [file for file, _ in poll.poll(1000 * within)]


def _wait_for_notification(connection: Connection[Any], channel: str, until: float, cut: int | None) -> bool:
    pgconn = connection.pgconn
    watched = [pgconn.socket] if cut is None else [pgconn.socket, cut]
    while (left := until - time.monotonic()) > 0:
        if cut in readable(watched, left):
            return False
        pgconn.consume_input()
        while (notification := pgconn.notifies()) is not None:
            if notification.relname.decode() == channel:
                return True
    return False


MOST_PREPARED = 100
"""Per connection. Later statements are sent unprepared; a connection lives for an hour at most."""
MOST_KNOWN = 500
_PARAMETER = re.compile(r"%(?:\((\w+)\)s|(s)|%)")


@dataclass(slots=True)
class KnownText:
    """What a connection knows about the text of a statement: how its values are converted, and its names on the server
    by the types of the values, once it was used often enough to be prepared."""

    text: bytes
    names: tuple[str, ...] | None
    values: Values
    formats: list[PyFormat]
    uses: int = 0
    prepared: dict[tuple[int, ...], bytes] = field(default_factory=dict)

    def ordered(self, params: Params | Sequence[Params]) -> Sequence[Any]:
        if self.names is None:
            return params if isinstance(params, Sequence) else ()
        return [params[name] for name in self.names] if isinstance(params, Mapping) else ()


class PipelinedReads:
    """Sends statements together on one connection, which must not be used otherwise meanwhile."""

    def __init__(self, connection: StoreConnection | AsyncStoreConnection) -> None:
        self._connection = connection
        self._known: dict[str, KnownText] = {}
        self._prepared = self._number = 0

    def forget(self) -> None:
        """Forget the prepared statements: the driver deallocates all of them on its connection when it rolls back."""
        self._prepared = 0
        for known in self._known.values():
            known.prepared.clear()

    def fetch(self, statements: Sequence[Statement]) -> PQGen[list[Rows]]:
        """A generator for ``wait`` of the connection. The first error is raised after all results were read."""
        pgconn = self._connection.pgconn
        pgconn.enter_pipeline_mode()
        try:
            sent = [self._send(statement) for statement in statements]
            pgconn.pipeline_sync()
            yield from generators.send(pgconn)
            fetched, error = [], None
            for known, types, name in sent:
                if name is not None:
                    error = error or _error_in((yield from generators.fetch_many(pgconn)))
                results = yield from generators.fetch_many(pgconn)
                error = error or _error_in(results)
                if error is None:
                    if name is not None:
                        known.prepared[types] = name
                    fetched.append(_rows(known.values, results[-1]))
            yield from generators.fetch_many(pgconn)
            pgconn.exit_pipeline_mode()
        finally:
            if pgconn.pipeline_status != PipelineStatus.OFF:
                # Interrupted: the next caller must not read the results of this one.
                with contextlib.suppress(psycopg.Error):
                    pgconn.finish()
        if error is not None:
            raise error
        return fetched

    def _send(self, statement: Statement) -> tuple[KnownText, tuple[int, ...], bytes | None]:
        """Send a statement; the last item of the result is the name under which it is being prepared, if it is."""
        pgconn = self._connection.pgconn
        known = self._known.get(statement.sql) or self._learn(statement.sql)
        values = known.values.dump_sequence(known.ordered(statement.params), known.formats)
        types, formats = known.values.types or (), known.values.formats
        name, new = known.prepared.get(types), None
        known.uses += 1
        if name is None and known.uses > PREPARE_AFTER and self._prepared < MOST_PREPARED:
            self._prepared, self._number = self._prepared + 1, self._number + 1
            name = new = f"holdfast_{self._number}".encode()
            pgconn.send_prepare(name, known.text, types)
        if name is None:
            pgconn.send_query_params(known.text, values, param_types=types, param_formats=formats)
        else:
            pgconn.send_query_prepared(name, values, param_formats=formats)
        return known, types, new

    def _learn(self, sql: str) -> KnownText:
        if len(self._known) >= MOST_KNOWN:
            self._known = {text: known for text, known in self._known.items() if known.prepared}
        text, names, count = _numbered(sql)
        known = KnownText(text, names, Transformer(self._connection), [PyFormat.AUTO] * count)
        self._known[sql] = known
        return known


@lru_cache(maxsize=MOST_KNOWN)
def _numbered(sql: str) -> tuple[bytes, tuple[str, ...] | None, int]:
    """The text with ``$1`` for each parameter, the names of named parameters, and the number of parameters."""
    names: list[str] = []
    count = 0

    def number(match: re.Match[str]) -> str:
        nonlocal count
        name, unnamed = match.groups()
        if name is None and unnamed is None:
            return "%"
        if name in names:
            return f"${names.index(name) + 1}"
        count += 1
        if name is not None:
            names.append(name)
        return f"${count}"

    text = _PARAMETER.sub(number, sql)
    return text.encode(), tuple(names) if names else None, count


def _error_in(results: list[PGresult]) -> psycopg.Error | None:
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
    values.set_pgresult(None)  # do not keep the result in memory until the next use
    return rows

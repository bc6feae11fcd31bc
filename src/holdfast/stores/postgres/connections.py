"""The connection classes of the pools, their settings, and the conversions registered on them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar

from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor, DataError, Error, Pipeline, adapters
from psycopg.adapt import Dumper, Loader
from psycopg.errors import InvalidSqlStatementName
from psycopg.pq import Format
from psycopg.types.json import set_json_loads
from psycopg.types.string import TextLoader
from psycopg.waiting import Ready, Wait
from typing_extensions import override

from holdfast import config
from holdfast.engine.payload import decode_for_display
from holdfast.engine.times import FIRST, LAST
from holdfast.stores.flow import Rows, Statement
from holdfast.stores.outage import Outage
from holdfast.stores.postgres.codec import TYPES
from holdfast.stores.postgres.pipeline import PipelinedReads, readable
from holdfast.stores.postgres.session import pin

if TYPE_CHECKING:
    from psycopg.abc import AdaptContext, Buffer, PQGen
    from psycopg.errors import Diagnostic


log = logging.getLogger("holdfast.store")

T = TypeVar("T")


class TimeLoader(Loader):
    """Reads times that Python cannot represent as the first or the last possible one."""

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        default = adapters.get_loader(oid, Format.TEXT)
        assert default is not None
        self._load = default(oid, context).load

    def load(self, data: Buffer) -> datetime:
        try:
            time: datetime = self._load(data)
            return time
        except DataError:
            text = bytes(data)
            return FIRST if text.startswith(b"-") or text.endswith(b"BC") else LAST


CONNECTION: dict[str, Any] = {
    "autocommit": True,
    "connect_timeout": 10,
    "application_name": "holdfast",
    "client_encoding": "UTF8",
    "keepalives": 1,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "prepare_threshold": None,  # until the connection is known to be direct (session.py)
}
# A cursor keeps its last rows in memory until the next statement, so one with more rows than this is not reused.
REUSE_ROWS = 100
MOST_READS = 64
# libpq 14 and newer. pipeline.py drives psycopg's generators; HOLDFAST_DISABLE=pipeline sends statements one by one.
BATCHES = Pipeline.is_supported() and not config.is_disabled("pipeline")


POOL = "holdfast"


class _PoolWarningFilter(logging.Filter):
    """Suppresses warnings of our pools: psycopg logs each failed attempt to connect and each dead connection, several
    lines per second. The store logs one outage instead (stores/outage.py), and errors name the reason."""

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        args = record.args if isinstance(record.args, tuple) else ()
        ours = any(each == POOL or isinstance(each, StoreConnection | AsyncStoreConnection) for each in args)
        return not ours or record.levelno < logging.WARNING


logging.getLogger("psycopg.pool").addFilter(_PoolWarningFilter())


class BinaryDumper(Dumper):
    """Sends bytes that are already in the binary format of the server."""

    format = Format.BINARY

    def dump(self, obj: bytes) -> bytes:
        return obj


# Registered globally, but only for classes of Holdfast: other code is not affected.
DUMPERS = {cls: type(f"{cls.__name__}Dumper", (BinaryDumper,), {"oid": oid}) for cls, (oid, _) in TYPES.items()}
for _cls, _dumper in DUMPERS.items():
    adapters.register_dumper(_cls, _dumper)


@contextlib.contextmanager
def _reported(outage: Outage | None) -> Iterator[None]:
    """Report whether an attempt to connect fails."""
    try:
        yield
    except Error as error:
        if outage is not None:
            outage.connecting = str(error).strip().split("\n")[0]
            outage.failed(error)
        raise
    if outage is not None:
        outage.connecting = ""
        outage.answered()


class StoreConnection(Connection[Any]):
    pins_locally = False
    """Whether each transaction must set what it relies on (session.py)."""
    _reusable_cursor: Cursor[Any] | None = None

    @classmethod
    @override
    def connect(cls, conninfo: str = "", *, outage: Outage | None = None, **settings: Any) -> Self:  # type: ignore[override]
        with _reported(outage):
            return super().connect(conninfo, **settings)

    @cached_property
    def _pipelined_reads(self) -> PipelinedReads:
        return PipelinedReads(self)

    @property
    def direct(self) -> bool:
        """Whether there is no pooler in between (session.py)."""
        return self.prepare_threshold is not None

    @property
    def batches(self) -> bool:
        """Whether statements may be sent together: the connection is direct, and libpq supports it."""
        return BATCHES and self.direct

    def fetch_together(self, statements: Sequence[Statement]) -> list[Rows]:
        """Send reads together. They are sent again if their prepared statements no longer exist."""
        try:
            return self.wait(self._pipelined_reads.fetch(statements))
        except InvalidSqlStatementName:
            self._pipelined_reads.forget()
            return self.wait(self._pipelined_reads.fetch(statements))

    def fetch(self, statement: Statement) -> Rows:
        cursor = self._reusable_cursor or self.cursor()
        self._reusable_cursor = None  # reused only after success
        cursor.execute(statement.sql, statement.params)
        # Not `description`, which creates an object per column.
        rows = [] if cursor.rownumber is None else cursor.fetchall()
        if len(rows) <= REUSE_ROWS:
            self._reusable_cursor = cursor
        return rows


def _read_on(steps: PQGen[T], socket: int) -> PQGen[T]:
    """The same steps, but what has arrived already is read without another turn of the event loop, which costs more
    than the 8 kB that one step reads. After ``MOST_READS`` of them the loop has its turn."""
    ready: Any = None
    try:
        wanted = next(steps)
        while True:
            ready = yield wanted
            for _ in range(MOST_READS):
                wanted = steps.send(ready)
                if wanted != Wait.R or not readable((socket,), 0):
                    break
                ready = Ready.R
    except StopIteration as end:
        result: T = end.value
        return result


class AsyncStoreConnection(AsyncConnection[Any]):
    pins_locally = False
    _reusable_cursor: AsyncCursor[Any] | None = None

    @classmethod
    @override
    async def connect(cls, conninfo: str = "", *, outage: Outage | None = None, **settings: Any) -> Self:  # type: ignore[override]
        with _reported(outage):
            return await super().connect(conninfo, **settings)

    @cached_property
    def _pipelined_reads(self) -> PipelinedReads:
        return PipelinedReads(self)

    @property
    def batches(self) -> bool:
        return BATCHES and self.prepare_threshold is not None

    async def fetch_together(self, statements: Sequence[Statement]) -> list[Rows]:
        try:
            return await self.wait(self._pipelined_reads.fetch(statements))
        except InvalidSqlStatementName:
            self._pipelined_reads.forget()
            return await self.wait(self._pipelined_reads.fetch(statements))

    @override
    async def wait(self, gen: PQGen[T], *args: Any, **kwargs: Any) -> T:
        return await super().wait(_read_on(gen, self.pgconn.socket), *args, **kwargs)

    async def fetch(self, statement: Statement) -> Rows:
        cursor = self._reusable_cursor or self.cursor()
        self._reusable_cursor = None
        await cursor.execute(statement.sql, statement.params)
        rows = [] if cursor.rownumber is None else await cursor.fetchall()
        if len(rows) <= REUSE_ROWS:
            self._reusable_cursor = cursor
        return rows


@contextlib.contextmanager
def connected(url: str) -> Iterator[StoreConnection]:
    """A connection outside the pools, with the settings of session.py, closed at the end."""
    with StoreConnection.connect(url, **CONNECTION) as connection:
        pin(connection)
        yield connection


def prepare_connection(connection: Connection[Any] | AsyncConnection[Any]) -> None:
    """Register the conversions. Ids are read as text: creating UUID objects is most of the cost of a claim."""
    connection.adapters.register_loader("uuid", TextLoader)
    connection.adapters.register_loader("timestamptz", TimeLoader)
    set_json_loads(decode_for_display, connection)
    connection.add_notice_handler(_log_warning)


def _log_warning(notice: Diagnostic) -> None:
    """Log names that are accepted with a warning (features/registry)."""
    if notice.sqlstate == "ZH071":
        log.warning("Accepted: %s", notice.message_primary)

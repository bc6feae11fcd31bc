"""Our connection classes, settings, time loader."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor, DataError, Error, Pipeline, adapters
from psycopg.adapt import Dumper, Loader
from psycopg.errors import InvalidSqlStatementName
from psycopg.pq import Format
from psycopg.types.json import set_json_loads
from psycopg.types.string import TextLoader
from typing_extensions import override

from holdfast import config
from holdfast.engine.payload import look_at
from holdfast.engine.times import FIRST, LAST
from holdfast.stores.flow import Rows, Statement
from holdfast.stores.outage import Outage
from holdfast.stores.postgres.codec import TYPES
from holdfast.stores.postgres.pipeline import PipelinedReads

if TYPE_CHECKING:
    from psycopg.abc import AdaptContext, Buffer
    from psycopg.errors import Diagnostic


log = logging.getLogger("holdfast.store")


class TimeLoader(Loader):
    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        usual = adapters.get_loader(oid, Format.TEXT)
        assert usual is not None
        self._load = usual(oid, context).load

    def load(self, data: Buffer) -> datetime:
        try:
            found: datetime = self._load(data)
            return found
        except DataError:
            text = bytes(data)
            return FIRST if text.startswith(b"-") or text.endswith(b"BC") else LAST


CONNECTION: dict[str, Any] = {
    "autocommit": True,
    "connect_timeout": 10,
    "application_name": "holdfast",
    "keepalives": 1,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "prepare_threshold": None,  # until it is known to be direct
}
# A cursor holds its last rows until the next: many of them are let go with it.
KEPT_ROWS = 100
# libpq 14 and newer. pipeline.py drives psycopg's generators itself: HOLDFAST_DISABLE=pipeline asks one by one instead.
BATCHES = Pipeline.is_supported() and not config.is_disabled("pipeline")


POOL = "holdfast"


class _Quiet(logging.Filter):
    """The pool logs each failed attempt to connect and each connection found dead, several lines a second. Of our pools
    the store logs an outage (stores/outage.py), and an error names the reason."""

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        about = record.args if isinstance(record.args, tuple) else ()
        ours = any(each == POOL or isinstance(each, OurConnection | OurAsyncConnection) for each in about)
        return not ours or record.levelno < logging.WARNING


logging.getLogger("psycopg.pool").addFilter(_Quiet())


class AsItIs(Dumper):
    """For what is in the server's own form already."""

    format = Format.BINARY

    def dump(self, obj: bytes) -> bytes:
        return obj


# For classes of ours: nobody else sends such.
DUMPERS = {kind: type(f"{kind.__name__}AsTheyAre", (AsItIs,), {"oid": oid}) for kind, (oid, _) in TYPES.items()}
for _kind, _dumper in DUMPERS.items():
    adapters.register_dumper(_kind, _dumper)


class OurConnection(Connection[Any]):
    _kept: Cursor[Any] | None = None

    @classmethod
    @override
    def connect(cls, conninfo: str = "", *, outage: Outage | None = None, **settings: Any) -> Self:  # type: ignore[override]
        try:
            made = super().connect(conninfo, **settings)
        except Error as error:
            if outage is not None:
                outage.failed(error)
            raise
        if outage is not None:
            outage.answered()
        return made

    @cached_property
    def _together(self) -> PipelinedReads:
        return PipelinedReads(self)

    @property
    def batches(self) -> bool:
        """Whether statements may be sent together: nobody is between us and the server (pipeline.py), and the library
        knows how."""
        return BATCHES and self.prepare_threshold is not None

    def ask_together(self, statements: Sequence[Statement]) -> list[Rows]:
        """Reads only, which can be asked again where what was prepared is gone."""
        try:
            return self.wait(self._together.ask(statements))
        except InvalidSqlStatementName:
            self._together.forget()
            return self.wait(self._together.ask(statements))

    def ask(self, statement: Statement) -> Rows:
        cursor = self._kept or self.cursor()
        self._kept = None  # unless all goes well
        cursor.execute(statement.sql, statement.params)
        # What `description` would say, which makes an object of every column for it.
        rows = [] if cursor.rownumber is None else cursor.fetchall()
        if len(rows) <= KEPT_ROWS:
            self._kept = cursor
        return rows


class OurAsyncConnection(AsyncConnection[Any]):
    _kept: AsyncCursor[Any] | None = None

    @classmethod
    @override
    async def connect(cls, conninfo: str = "", *, outage: Outage | None = None, **settings: Any) -> Self:  # type: ignore[override]
        try:
            made = await super().connect(conninfo, **settings)
        except Error as error:
            if outage is not None:
                outage.failed(error)
            raise
        if outage is not None:
            outage.answered()
        return made

    @cached_property
    def _together(self) -> PipelinedReads:
        return PipelinedReads(self)

    @property
    def batches(self) -> bool:
        return BATCHES and self.prepare_threshold is not None

    async def ask_together(self, statements: Sequence[Statement]) -> list[Rows]:
        try:
            return await self.wait(self._together.ask(statements))
        except InvalidSqlStatementName:
            self._together.forget()
            return await self.wait(self._together.ask(statements))

    async def ask(self, statement: Statement) -> Rows:
        cursor = self._kept or self.cursor()
        self._kept = None
        await cursor.execute(statement.sql, statement.params)
        rows = [] if cursor.rownumber is None else await cursor.fetchall()
        if len(rows) <= KEPT_ROWS:
            self._kept = cursor
        return rows


def prepare_connection(connection: Connection[Any] | AsyncConnection[Any]) -> None:
    """Ids come as text: making UUID objects of them only to print them again is most of the cost of a claim."""
    connection.adapters.register_loader("uuid", TextLoader)
    connection.adapters.register_loader("timestamptz", TimeLoader)
    set_json_loads(look_at, connection)
    connection.add_notice_handler(_log_warning)


def _log_warning(notice: Diagnostic) -> None:
    """Names that a policy of the deployment warns about (features/registry)."""
    if notice.sqlstate == "ZH071":
        log.warning("Accepted: %s", notice.message_primary)

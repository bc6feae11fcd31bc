"""A caller's own connection: recognise the library, write its parameter style, run a flow on it.

What a borrowed connection is to a store, and how a flow is run on one.

A store gives a *frame*: from where the connection stands to the statements to be run there, with a savepoint or the
like around them. The library's module gives the running, in the one colour the connection has.

Parameters in each driver's own style.

What is run on a borrowed PostgreSQL connection is written with ``$1``, ``$2``, … and has only text for values, since
text is what every driver sends alike, whatever adapters or codecs its owner has registered.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from holdfast.errors import Conflict, InvalidSetting
from holdfast.stores.flow import Rows, Statement, Steps

T = TypeVar("T")

POSTGRESQL, SQLITE = "postgresql", "sqlite"


@dataclass(frozen=True, slots=True)
class TransactionState:
    """Where a borrowed connection stands before our first statement: ``database`` is the kind it is to.

    ``in_transaction``: what we do is kept or undone by somebody's COMMIT or ROLLBACK to come. ``begin``: what the
    driver itself would say first before a write, where it opens transactions only for statements that it knows.
    """

    database: str
    in_transaction: bool
    begin: str | None = None


def ended() -> Conflict:
    """For what must be part of a transaction and finds none."""
    return Conflict(
        "the transaction ended inside its block",
        code="transaction_ended",
        fix="Do not call COMMIT or ROLLBACK inside the block.",
    )


FlowFrame = Callable[[TransactionState], Steps[T]]


class BorrowedConnection(Protocol):
    """A connection of sync code."""

    def run(self, frame: FlowFrame[T]) -> T: ...


class AsyncGuest(Protocol):
    """A connection of async code."""

    async def arun(self, frame: FlowFrame[T]) -> T: ...


def drive(steps: Steps[T], execute: Callable[[Statement], Rows]) -> T:
    """Run a frame to its end. An error is thrown into it, so that it can undo what it began, and comes out again."""
    rows: Rows
    try:
        statement = next(steps)
        while True:
            try:
                if statement.beside:
                    rows = [execute(each) for each in statement.beside]
                else:
                    rows = execute(statement)
            except BaseException as error:
                statement = steps.throw(error)
            else:
                statement = steps.send(rows)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        steps.close()


async def adrive(steps: Steps[T], execute: Callable[[Statement], Awaitable[Rows]]) -> T:
    rows: Rows
    try:
        statement = next(steps)
        while True:
            try:
                if statement.beside:
                    rows = [await execute(each) for each in statement.beside]
                else:
                    rows = await execute(statement)
            except BaseException as error:
                statement = steps.throw(error)
            else:
                statement = steps.send(rows)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        steps.close()


SUPPORTED = (
    "psycopg.Connection and AsyncConnection, psycopg2's connection, asyncpg.Connection, SQLAlchemy's Connection,"
    " Session, AsyncConnection and AsyncSession, django.db.connection, sqlite3.Connection and aiosqlite.Connection"
)


def guest(connection: object) -> BorrowedConnection:
    """For sync code."""
    found = _recognised(connection)
    if not hasattr(found, "run"):
        raise InvalidSetting(
            f"{_name(connection)} is an async connection",
            code="async_connection",
            fix="Await the async form: aenqueue, aenqueue_many or acomplete.",
        )
    known: BorrowedConnection = found
    return known


def async_guest(connection: object) -> AsyncGuest:
    """For async code."""
    found = _recognised(connection)
    if not hasattr(found, "arun"):
        raise InvalidSetting(
            f"{_name(connection)} is a sync connection and would block the event loop",
            code="sync_connection",
            fix="Call the sync form: enqueue, enqueue_many or complete.",
        )
    known: AsyncGuest = found
    return known


def _recognised(connection: object) -> Any:
    for package, name in _ancestry(connection):
        make = _LIBRARIES.get((package, name))
        if make is not None:
            return make(connection)
    raise InvalidSetting(
        f"{_name(connection)} is not a supported connection",
        code="unsupported_connection",
        fix=f"Use a connection of {SUPPORTED}.",
    )


def _ancestry(connection: object) -> Iterator[tuple[str, str]]:
    """The package and name of the type and of all it is derived from, nearest first."""
    for kind in type(connection).__mro__:
        yield kind.__module__.partition(".")[0], kind.__name__


def _name(connection: object) -> str:
    kind = type(connection)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


# Each imports its module only when one of its objects is there: then the library is, too.


def _psycopg(connection: Any) -> Any:
    from holdfast.stores.guest_drivers import PsycopgGuest

    return PsycopgGuest(connection)


def _async_psycopg(connection: Any) -> Any:
    from holdfast.stores.guest_drivers import AsyncPsycopgGuest

    return AsyncPsycopgGuest(connection)


def _psycopg2(connection: Any) -> Any:
    from holdfast.stores.guest_drivers import Psycopg2Guest

    return Psycopg2Guest(connection)


def _asyncpg(connection: Any) -> Any:
    from holdfast.stores.guest_drivers import AsyncpgGuest

    return AsyncpgGuest(connection)


def _sqlalchemy(connection: Any) -> Any:
    from holdfast.stores.guest_drivers import SqlalchemyGuest

    return SqlalchemyGuest(connection)


def _async_sqlalchemy(connection: Any) -> Any:
    from holdfast.stores.guest_drivers import AsyncSqlalchemyGuest

    return AsyncSqlalchemyGuest(connection)


def _django(wrapper: Any) -> Any:
    from holdfast.stores.guest_drivers import DjangoGuest

    return DjangoGuest(wrapper, guest)


def _sqlite(connection: Any) -> Any:
    from holdfast.stores.guest_drivers import SqliteGuest

    return SqliteGuest(connection)


def _aiosqlite(connection: Any) -> Any:
    from holdfast.stores.guest_drivers import AiosqliteGuest

    return AiosqliteGuest(connection)


_LIBRARIES: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("psycopg", "Connection"): _psycopg,
    ("psycopg", "AsyncConnection"): _async_psycopg,
    ("psycopg2", "connection"): _psycopg2,
    ("asyncpg", "Connection"): _asyncpg,
    ("asyncpg", "PoolConnectionProxy"): _asyncpg,
    ("sqlalchemy", "Connection"): _sqlalchemy,
    ("sqlalchemy", "Session"): _sqlalchemy,
    ("sqlalchemy", "scoped_session"): _sqlalchemy,
    ("sqlalchemy", "AsyncConnection"): _async_sqlalchemy,
    ("sqlalchemy", "AsyncSession"): _async_sqlalchemy,
    ("sqlalchemy", "async_scoped_session"): _async_sqlalchemy,
    ("django", "BaseDatabaseWrapper"): _django,
    ("django", "ConnectionProxy"): _django,
    ("sqlite3", "Connection"): _sqlite,
    ("aiosqlite", "Connection"): _aiosqlite,
}


# Literals and quoted names are matched first, and so never looked into.
_TOKEN = re.compile(r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | \$(\d+)""", re.VERBOSE)


def percent(sql: str, values: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    """For drivers that take ``%s`` and a value for each."""
    text, places = _percent(sql)
    return text, tuple(values[place] for place in places)


@lru_cache(maxsize=64)
def _percent(sql: str) -> tuple[str, tuple[int, ...]]:
    places: list[int] = []

    def write(number: int) -> str:
        places.append(number - 1)
        return "%s"

    return _written(sql, write, lambda text: text.replace("%", "%%")), tuple(places)


def colon(sql: str, values: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    """For SQLAlchemy's ``text()``: ``:p1``; any other colon is escaped, as it looks into literals as well."""
    return _colon(sql), {f"p{number}": value for number, value in enumerate(values, start=1)}


@lru_cache(maxsize=64)
def _colon(sql: str) -> str:
    return _written(sql, lambda number: f":p{number}", lambda text: text.replace(":", "\\:"))


def _written(sql: str, parameter: Callable[[int], str], other: Callable[[str], str]) -> str:
    parts, end = [], 0
    for match in _TOKEN.finditer(sql):
        parts.append(other(sql[end : match.start()]))
        parts.append(parameter(int(match[1])) if match[1] else other(match[0]))
        end = match.end()
    return "".join([*parts, other(sql[end:])])

"""Which library a connection is of, told by the name of its type."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from holdfast.errors import InvalidSetting
from holdfast.stores.borrowed.guest import AsyncGuest, Guest

SUPPORTED = (
    "psycopg.Connection and AsyncConnection, psycopg2's connection, asyncpg.Connection, SQLAlchemy's Connection,"
    " Session, AsyncConnection and AsyncSession, django.db.connection, sqlite3.Connection and aiosqlite.Connection"
)


def guest(connection: object) -> Guest:
    """For sync code."""
    found = _recognised(connection)
    if not hasattr(found, "run"):
        raise InvalidSetting(
            f"{_name(connection)} is a connection of async code",
            code="async_connection",
            fix="Await the call that begins with a: aenqueue, aenqueue_many, acomplete.",
        )
    known: Guest = found
    return known


def async_guest(connection: object) -> AsyncGuest:
    """For async code."""
    found = _recognised(connection)
    if not hasattr(found, "arun"):
        raise InvalidSetting(
            f"{_name(connection)} is a connection of sync code, and would block the event loop",
            code="sync_connection",
            fix="Call enqueue, enqueue_many or complete, without await.",
        )
    known: AsyncGuest = found
    return known


def _recognised(connection: object) -> Any:
    for package, name in _ancestry(connection):
        make = _LIBRARIES.get((package, name))
        if make is not None:
            return make(connection)
    raise InvalidSetting(
        f"{_name(connection)} is not a connection that Holdfast knows",
        code="unsupported_connection",
        fix=f"It can use {SUPPORTED}.",
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
    from holdfast.stores.borrowed.psycopg import PsycopgGuest

    return PsycopgGuest(connection)


def _async_psycopg(connection: Any) -> Any:
    from holdfast.stores.borrowed.psycopg import AsyncPsycopgGuest

    return AsyncPsycopgGuest(connection)


def _psycopg2(connection: Any) -> Any:
    from holdfast.stores.borrowed.psycopg2 import Psycopg2Guest

    return Psycopg2Guest(connection)


def _asyncpg(connection: Any) -> Any:
    from holdfast.stores.borrowed.asyncpg import AsyncpgGuest

    return AsyncpgGuest(connection)


def _sqlalchemy(connection: Any) -> Any:
    from holdfast.stores.borrowed.sqlalchemy import SqlalchemyGuest

    return SqlalchemyGuest(connection)


def _async_sqlalchemy(connection: Any) -> Any:
    from holdfast.stores.borrowed.sqlalchemy import AsyncSqlalchemyGuest

    return AsyncSqlalchemyGuest(connection)


def _django(wrapper: Any) -> Any:
    from holdfast.stores.borrowed.django import DjangoGuest

    return DjangoGuest(wrapper, guest)


def _sqlite(connection: Any) -> Any:
    from holdfast.stores.borrowed.sqlite import SqliteGuest

    return SqliteGuest(connection)


def _aiosqlite(connection: Any) -> Any:
    from holdfast.stores.borrowed.sqlite import AiosqliteGuest

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

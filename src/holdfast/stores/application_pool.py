"""The application's own pool or engine, as ``App(pool=…)`` takes it: what kind it is, and the URL of its database."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote, urlencode

from holdfast.errors import InvalidSetting

if TYPE_CHECKING:
    from asyncpg import Pool
    from psycopg_pool import AsyncConnectionPool, ConnectionPool
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    ApplicationPool: TypeAlias = ConnectionPool[Any] | AsyncConnectionPool[Any] | Pool[Any] | Engine | AsyncEngine

PSYCOPG, ASYNC_PSYCOPG, ASYNCPG, ENGINE, ASYNC_ENGINE = "psycopg", "async psycopg", "asyncpg", "engine", "async engine"
# By package and name of the class: the libraries are imported by the application only.
_KINDS: Final = {
    ("psycopg_pool", "ConnectionPool"): PSYCOPG,
    ("psycopg_pool", "AsyncConnectionPool"): ASYNC_PSYCOPG,
    ("asyncpg", "Pool"): ASYNCPG,
    ("sqlalchemy", "Engine"): ENGINE,
    ("sqlalchemy", "AsyncEngine"): ASYNC_ENGINE,
}
# Drivers of SQLAlchemy on which every operation runs. With others, and with psycopg2, a connection can only enqueue.
_DRIVERS: Final = {"psycopg": (ENGINE, ASYNC_ENGINE), "asyncpg": (ASYNC_ENGINE,)}


def kind_of(pool: object) -> str:
    """Return the kind of a pool. Raises ``InvalidSetting`` if it is not supported."""
    cls: type
    for cls in type(pool).__mro__:
        kind = _KINDS.get((cls.__module__.partition(".")[0], cls.__name__))
        if kind is not None:
            return kind
    raise _unsupported(f"{type(pool).__module__}.{type(pool).__qualname__}")


def driver_of(pool: Any) -> str:
    """Return the driver of a pool to PostgreSQL, ``psycopg`` or ``asyncpg``."""
    kind = kind_of(pool)
    if kind not in (ENGINE, ASYNC_ENGINE):
        return ASYNCPG if kind == ASYNCPG else PSYCOPG
    if pool.dialect.name != "postgresql" or kind not in _DRIVERS.get(pool.dialect.driver, ()):
        raise _unsupported(f"an engine of {pool.dialect.name}+{pool.dialect.driver}")
    return str(pool.dialect.driver)


def _unsupported(what: str) -> InvalidSetting:
    return InvalidSetting(
        f"{what} cannot be the pool of an app",
        code="unsupported_pool",
        fix="Pass a pool of psycopg_pool or asyncpg, or an engine of SQLAlchemy over psycopg, asyncpg or SQLite.",
    )


def url_of(pool: Any) -> str | None:
    """Return the URL of a pool's database, or None if the pool does not tell."""
    kind = kind_of(pool)
    if kind in (ENGINE, ASYNC_ENGINE):
        url = pool.url
        if url.get_backend_name() == "sqlite":
            return f"sqlite:///{url.database or ':memory:'}"
        return str(url.set(drivername=url.get_backend_name()).render_as_string(hide_password=False))
    if kind == ASYNCPG or callable(pool.conninfo) or callable(pool.kwargs):
        return None
    from psycopg.conninfo import conninfo_to_dict

    return _joined(conninfo_to_dict(pool.conninfo, **{k: v for k, v in (pool.kwargs or {}).items() if k in _LOCATION}))


_LOCATION: Final = ("host", "port", "dbname", "user", "password", "service", "sslmode", "options")


def _joined(parts: dict[str, Any]) -> str:
    user, password = (quote(str(parts.pop(name, "") or ""), safe="") for name in ("user", "password"))
    login = f"{user}:{password}@" if password else f"{user}@" if user else ""
    database = quote(str(parts.pop("dbname", "") or ""), safe="")
    rest = {name: str(value) for name, value in parts.items() if value is not None}
    return f"postgresql://{login}/{database}{'?' + urlencode(rest, quote_via=quote) if rest else ''}"


def check_sqlite(pool: Any, path: str) -> None:
    """Raise unless the pool is an engine on this SQLite file.

    The store keeps its own connections: what it relies on (the write-ahead log, ``synchronous``, foreign keys, the
    write lock at the beginning) are settings of a connection, and a file has no limit of connections to share.
    """
    kind_of(pool)
    dialect = getattr(pool, "dialect", None)
    database = pool.url.database if dialect is not None and dialect.name == "sqlite" else None
    if database is None or database in ("", ":memory:") or os.path.realpath(database) != os.path.realpath(path):
        raise InvalidSetting(
            "the pool is not an engine on the SQLite file of the app",
            code="other_database",
            fix="Leave the URL out, and use an engine on a file: App(pool=engine).",
        )

"""Use Django's database: its URL for Holdfast, and flows that run on Django's connection.

A flow on Django's connection takes part in the open transaction, as an ORM query does. ``HostedStore`` runs every
operation there. Tests use it, because a ``TestCase`` never commits.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import quote, urlencode

from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from holdfast.errors import SchemaMismatch
from holdfast.stores.adapters import driver_connection
from holdfast.stores.flow import Flow, Rows, Statement, drive_steps

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

T = TypeVar("T")

SQLITE, POSTGRESQL = "sqlite", "postgresql"
# Options of libpq that determine the server and how to reach it. Others are for Django's connections only.
_LIBPQ = (
    *("service", "passfile", "sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "sslnegotiation"),
    *("channel_binding", "target_session_attrs", "gssencmode", "require_auth", "hostaddr", "options"),
)

_CURSOR_ATTRIBUTE = "_holdfast_cursor"


def url_of(alias: str) -> str:
    """Return the URL of a database in ``DATABASES``. Raises ``ImproperlyConfigured`` if it is not supported."""
    wrapper = connections[alias]
    settings = wrapper.settings_dict
    if wrapper.vendor == SQLITE:
        return "sqlite:///:memory:" if is_in_memory(alias) else f"sqlite:///{settings['NAME']}"
    if wrapper.vendor == POSTGRESQL:
        return _postgresql(settings)
    raise ImproperlyConfigured(
        f"Holdfast needs SQLite or PostgreSQL, and the database {alias!r} uses {settings['ENGINE']}. "
        'Name another one: HOLDFAST = {"DATABASE": "alias"}.'
    )


def _postgresql(settings: Mapping[str, Any]) -> str:
    user, password = (quote(str(settings.get(name) or ""), safe="") for name in ("USER", "PASSWORD"))
    host, port = str(settings.get("HOST") or ""), str(settings.get("PORT") or "")
    options = settings.get("OPTIONS") or {}
    query = {name: str(options[name]) for name in _LIBPQ if options.get(name) is not None}
    if "/" in host or "," in host:  # a socket's folder, or several hosts
        query, host, port = {"host": host, **({"port": port} if port else {}), **query}, "", ""
    login = f"{user}:{password}@" if password else f"{user}@" if user else ""
    address = f"{login}{host}{':' + port if port else ''}/{quote(str(settings.get('NAME') or ''), safe='')}"
    return f"postgresql://{address}{'?' + urlencode(query, quote_via=quote) if query else ''}"


def is_in_memory(alias: str) -> bool:
    """Whether the database is in memory, as SQLite's test databases are by default: it has a single connection."""
    wrapper = connections[alias]
    return wrapper.vendor == SQLITE and bool(wrapper.is_in_memory_db())


def close_old_connections() -> None:
    """Like Django's function of this name, but leave connections with an open transaction alone.

    Tests run jobs inside their transaction, and Django would close its connection.
    """
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def can_host(alias: str) -> bool:
    """Whether every operation can run on Django's connection. With psycopg2, only enqueue can."""
    if connections[alias].vendor == SQLITE:
        return True
    return _is_psycopg3()


@lru_cache
def _is_psycopg3() -> bool:
    from django.db.backends.postgresql.psycopg_any import is_psycopg3

    return bool(is_psycopg3)


def run_on_django(wrapper: Any, flow: Flow[T]) -> T:
    """Run a flow on a connection of Django: within the open transaction, or in a new one."""
    try:
        with driver_connection(wrapper) as connection:
            if wrapper.vendor == SQLITE:
                return _run_sqlite(connection, flow)
            return _run_postgresql(wrapper, flow)
    except Exception as error:
        translated = _translate(error)
        if translated is error:
            raise
        raise translated from error


def _run_sqlite(connection: sqlite3.Connection, flow: Flow[T]) -> T:
    inside = connection.in_transaction
    cursor = connection.cursor(sqlite3.Cursor)
    cursor.row_factory = None
    previous, connection.text_factory = connection.text_factory, str

    def execute(statement: Statement) -> Rows:
        if statement.many:
            cursor.executemany(statement.sql, cast(Any, statement.params))
            return []
        return cursor.execute(statement.sql, statement.params).fetchall()

    try:
        # Take the write lock first: SQLite refuses a write after a read if another connection wrote in between.
        cursor.execute("SAVEPOINT holdfast" if inside else "BEGIN IMMEDIATE" if flow.writes else "BEGIN")
        try:
            result = drive_steps(flow.start(), execute)
            cursor.execute("RELEASE holdfast" if inside else "COMMIT")
            return result
        except BaseException:
            if connection.in_transaction:  # some failures make SQLite roll back by itself
                cursor.execute("ROLLBACK TO holdfast" if inside else "ROLLBACK")
                if inside:
                    cursor.execute("RELEASE holdfast")
            raise
    finally:
        connection.text_factory = previous
        cursor.close()


def _run_postgresql(wrapper: Any, flow: Flow[T]) -> T:
    cursor = _cursor_of(wrapper)

    def execute(statement: Statement) -> Rows:
        cursor.execute(statement.sql, statement.params)
        return [] if cursor.rownumber is None else list(cursor.fetchall())

    with nullcontext() if flow.single else wrapper.connection.transaction():
        return drive_steps(flow.start(), execute)


def _cursor_of(wrapper: Any) -> Any:
    """Return a cursor on Django's connection with Holdfast's adapters, which differ from Django's.

    Making one takes longer than most queries, so it is cached on the connection.
    """
    cursor = getattr(wrapper, _CURSOR_ATTRIBUTE, None)
    if cursor is not None and cursor.connection is wrapper.connection and not cursor.closed:
        return cursor
    from psycopg import Cursor
    from psycopg.rows import tuple_row
    from psycopg.types.json import set_json_loads
    from psycopg.types.string import TextLoader

    from holdfast.engine.payload import decode_for_display
    from holdfast.stores.postgres.connections import DUMPERS, TimeLoader

    cursor = Cursor(wrapper.connection, row_factory=tuple_row)
    for kind, dumper in DUMPERS.items():
        cursor.adapters.register_dumper(kind, dumper)
    cursor.adapters.register_loader("uuid", TextLoader)
    cursor.adapters.register_loader("timestamptz", TimeLoader)
    set_json_loads(decode_for_display, cursor)
    setattr(wrapper, _CURSOR_ATTRIBUTE, cursor)
    return cursor


def _translate(error: Exception) -> Exception:
    if isinstance(error, sqlite3.Error):
        from holdfast.stores.sqlite.errors import translate as translate_sqlite

        if "no such table" in str(error):
            return not_migrated()
        return translate_sqlite(error)
    if type(error).__module__.startswith("psycopg"):
        from holdfast.stores.postgres.errors import translate

        translated = translate(error)
        return not_migrated() if isinstance(translated, SchemaMismatch) else translated
    return error


def not_migrated() -> SchemaMismatch:
    return SchemaMismatch(
        "the tables of Holdfast are not in this database, or are older than this release",
        code="not_migrated",
        fix="Create the tables: python manage.py migrate.",
    )


def migrate(store: Store, alias: str) -> None:
    """Create or update the tables of Holdfast. A database in memory is migrated on Django's connection, because it has
    no other."""
    if not is_in_memory(alias):
        store.migrate()
        return
    wrapper = connections[alias]
    wrapper.ensure_connection()
    query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'holdfast_migration'"
    if wrapper.connection.execute(query).fetchone() is None:
        wrapper.connection.executescript(store.migration_sql())


def on_django(store: Store, alias: str) -> Store:
    """The store, with all of its operations on Django's connection."""
    return cast("Store", HostedStore(store, alias))


class HostedStore:
    """A store whose operations all run on Django's connection."""

    embedded = False

    def __init__(self, store: Store, alias: str) -> None:
        self._hosted, self._alias = store, alias

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hosted, name)

    def run(self, flow: Flow[T]) -> T:
        return run_on_django(connections[self._alias], flow)

    async def arun(self, flow: Flow[T]) -> T:
        result: T = await sync_to_async(self.run, thread_sensitive=True)(flow)
        return result

    def close(self) -> None:
        """Do nothing: Django closes its connections."""

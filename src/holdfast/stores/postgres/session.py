"""The settings of a session that our statements rely on, and the detection of poolers (docs/adr/0035).

A role or a database can carry any setting (``alter role … set``), and so can ``PGOPTIONS``. On a direct connection ours
are set once, in the statement that detects poolers, so they cost no round trip. Behind a pooler such as PgBouncer each
transaction may run in another server process: there nothing may be left behind, so transactions name their isolation,
and the other settings are set in each transaction, but only if those of the server differ. ``client_encoding`` is
sent with the connection, which poolers support.

To detect a pooler, the process id that was announced at connect is compared with that of ``pg_backend_pid()``: a pooler
announces an invented one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from psycopg import IsolationLevel

from holdfast.stores.flow import Statement

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection

    from holdfast.stores.postgres.connections import AsyncStoreConnection, StoreConnection

PREPARE_AFTER: Final = 5  # psycopg's default

PINNED: Final = {
    "default_transaction_isolation": "read committed",  # after waiting for a lock, count what its holder committed
    "datestyle": "ISO",  # psycopg reads no other; the order of day and month stays
    "intervalstyle": "postgres",  # the same
    "standard_conforming_strings": "on",
    "extra_float_digits": "1",  # exact
    "bytea_output": "hex",
    "array_nulls": "on",
    "transform_null_equals": "off",
    "quote_all_identifiers": "off",
    "row_security": "on",  # off makes reads of tenants' tables fail
    "exit_on_error": "off",  # on ends the session at every refusal
    "plpgsql.extra_errors": "none",
}
"""Respected instead: timeouts, ``default_transaction_read_only`` (hosting services set it when a disk is full), and
planner settings. ``holdfast doctor`` reports those that do harm."""
# Set on direct connections only: no value changes a result.
_WELCOME: Final = {"timezone": "UTC", "client_min_messages": "notice"}


def _set(values: dict[str, str], local: str) -> str:
    return ", ".join(f"set_config('{name}', '{value}', {local})" for name, value in values.items())


_ANY_DIFFERS = "true = any (array[{}])".format(
    ", ".join(f"split_part(current_setting('{name}', true), ',', 1) <> '{value}'" for name, value in PINNED.items())
)
# One value, not a row per setting: the view pg_settings builds a row for each of four hundred.
_PIN = (
    f"select case when pg_backend_pid() = %s then cardinality(array[{_set(PINNED | _WELCOME, 'false')}]) end,"
    f" {_ANY_DIFFERS}"
)
_BACKEND_PID = "select pg_backend_pid()"
DIFFERS: Final = Statement(f"select {_ANY_DIFFERS}")
PIN_LOCALLY: Final = Statement(f"select {_set(PINNED, 'true')}")


def is_direct(connection: Connection[Any]) -> bool:
    return connection.execute(_BACKEND_PID).fetchone() == (connection.info.backend_pid,)


async def ais_direct(connection: AsyncConnection[Any]) -> bool:
    return await (await connection.execute(_BACKEND_PID)).fetchone() == (connection.info.backend_pid,)


def pin(connection: StoreConnection) -> None:
    """Set the session's settings if the connection is direct; statements may then be prepared."""
    row = connection.execute(_PIN, (connection.info.backend_pid,)).fetchone()
    direct, differs = row or (None, False)
    if direct is not None:
        connection.prepare_threshold = PREPARE_AFTER
        return
    connection.isolation_level = IsolationLevel.READ_COMMITTED
    connection.pins_locally = bool(differs)


async def apin(connection: AsyncStoreConnection) -> None:
    row = await (await connection.execute(_PIN, (connection.info.backend_pid,))).fetchone()
    direct, differs = row or (None, False)
    if direct is not None:
        connection.prepare_threshold = PREPARE_AFTER
        return
    await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
    connection.pins_locally = bool(differs)

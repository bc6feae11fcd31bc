"""``PostgresDatabase``: runs flows over its pools, retries them where that is safe, and translates errors."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import re
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict

from holdfast.engine.redaction import shown_url
from holdfast.errors import InvalidSetting, StoreError, StoreUnavailable
from holdfast.features.health.model import DEFAULT_THRESHOLDS, Concern, Thresholds
from holdfast.stores.flow import Flow, maintaining, wait_limit_of
from holdfast.stores.listener import Names
from holdfast.stores.migrations import Execute
from holdfast.stores.outage import Outage
from holdfast.stores.postgres.borrowed import ApplicationConnections
from holdfast.stores.postgres.connections import CONNECTION, StoreConnection, connected, prepare_connection
from holdfast.stores.postgres.doctor import blockers, conditions, diagnose
from holdfast.stores.postgres.errors import lost, translate
from holdfast.stores.postgres.leases import due_work
from holdfast.stores.postgres.listener import PostgresListener
from holdfast.stores.postgres.migrations import (
    migrate_on,
    migrate_within,
    migration_script,
    plan_with,
    status,
    status_on,
)
from holdfast.stores.postgres.pools import CONNECT_WITHIN, Pools, take_now
from holdfast.stores.postgres.removal import down_on, plan_on, uninstall_on
from holdfast.stores.postgres.replica import ANSWER_WITHIN as REPLICA_ANSWERS_WITHIN
from holdfast.stores.postgres.replica import Replica
from holdfast.stores.postgres.roles import logins
from holdfast.stores.postgres.runner import RETRIES, Watchdog, arun_on, can_retry, only_once, pause, run_on
from holdfast.stores.postgres.transactions import PostgresTransactions
from holdfast.stores.requests import DueWork, Finding, Login, MigrationStep, Removal, SchemaStatus

if TYPE_CHECKING:
    from holdfast.stores.application_pool import ApplicationPool

__all__ = ["ANSWER_WITHIN", "PostgresDatabase", "prepare_connection", "run_on"]

T = TypeVar("T")

# Never a shared schema: migrating puts policies on every table of the schema and revokes all grants from PUBLIC.
SCHEMA_NAME = re.compile(r"(?!pg_|(?:public|information_schema)\Z)[a-z_][a-z0-9_]{0,40}")
# Seconds. No operation takes this long unless the server is unreachable.
ANSWER_WITHIN = 30.0


log = logging.getLogger("holdfast.store")


def _name_blockers(url: str, schema: str) -> None:
    """Log which transactions hold locks that others wait for. Called when a statement takes longer than a second."""
    with contextlib.suppress(psycopg.Error, OSError), connected(url) as connection:
        for description in blockers(connection, schema):
            log.warning("%s. To end it: select pg_terminate_backend(<process>)", description)


def _check_url(url: str) -> None:
    """Check a URL before connecting: libpq's errors about a malformed URL repeat the password, or the part it takes for
    the host or port."""
    rest = url.partition("://")[2]
    credentials = re.match(r"[^@/]*@", rest)
    location = rest[credentials.end() if credentials else 0 :].partition("?")[0]
    try:
        valid = "@" not in location and re.fullmatch(r"[0-9,]*", str(conninfo_to_dict(url).get("port") or ""))
    except psycopg.Error:
        valid = None
    if not valid:
        raise InvalidSetting(
            f"{shown_url(url)} cannot be read as a database URL",
            code="invalid_url",
            fix="Use postgresql://user:password@host:port/database, with %XX for special characters in each part.",
        ) from None


class PostgresDatabase(PostgresTransactions):
    embedded = False
    pipeline_depth = 2  # while the server works on one exchange, the worker runs the jobs that the other one claimed

    def __init__(
        self,
        url: str,
        *,
        schema: str = "holdfast",
        pool_size: int = 8,
        answer_within: float = ANSWER_WITHIN,
        features: tuple[str, ...] = (),
        pool: ApplicationPool | None = None,
    ) -> None:
        """``features`` are the features whose SQL is installed with the engine's. ``pool`` is the application's own."""
        if not SCHEMA_NAME.fullmatch(schema):
            raise InvalidSetting(
                f"{schema!r} cannot be a schema name",
                code="invalid_schema",
                fix="Use lower-case letters, digits and _, and no schema of PostgreSQL itself: jobs, not public.",
            )
        _check_url(url)
        self.url = url
        self.schema_name = schema
        self._plan = plan_with(features)
        self._size = pool_size
        self.outage = Outage()
        self._pools = Pools(url, pool_size, min(self.pipeline_depth, pool_size), self.outage)
        self._answer_within = answer_within
        self._watchdog = Watchdog(functools.partial(_name_blockers, url, schema))
        self._listener = PostgresListener(url, schema, self.outage)
        self._application = None if pool is None else ApplicationConnections(pool, self._watchdog, answer_within)
        self._replica: Replica | None = None

    def read_from(self, url: str) -> None:
        """Let this standby serve requests that only read."""
        self._replica = Replica(
            PostgresDatabase(url, schema=self.schema_name, pool_size=self._size, answer_within=REPLICA_ANSWERS_WITHIN)
        )

    # --- running flows ---

    def run(self, flow: Flow[T]) -> T:
        if self._application is not None and self._application.serves():
            return self._application.run(flow)
        if self._replica is not None and self._replica.serves(self, flow):
            try:
                return self._replica.store.run(flow)
            except StoreError as error:
                self._replica.failed(error)
        timeout, end = self._timeout(flow)
        limit = wait_limit_of.get()
        for attempt in range(RETRIES + self._size):
            try:
                pool = self._pools.thread_pool()
                connection = take_now(
                    pool,
                    min(timeout, CONNECT_WITHIN, limit.left()),
                    self.outage,
                    alive=attempt > 0 or only_once(flow),
                )
                try:
                    number = self._watchdog.begin(connection, timeout, limit)
                    try:
                        return run_on(connection, flow)
                    finally:
                        self._watchdog.end(number)
                except psycopg.errors.ReadOnlySqlTransaction:
                    connection.close()
                    raise
                finally:
                    pool.putconn(connection)
            except Exception as error:
                if time.monotonic() > min(end, limit.until) or not can_retry(error, flow, attempt, self._size):
                    raise translate(error) from error
                flow = flow.again() if lost(error) else flow
            time.sleep(pause(attempt))
        raise AssertionError("unreachable")  # the last attempt returns or raises

    def _timeout(self, flow: Flow[Any]) -> tuple[float, float]:
        """How long to wait for a response, and until when to retry."""
        timeout = flow.response_timeout or self._answer_within
        return timeout, time.monotonic() + 2 * timeout

    async def arun(self, flow: Flow[T]) -> T:
        if self._application is not None and self._application.serves_loop(flow):
            return await self._application.arun(flow)
        if self._replica is not None and await self._replica.aserves(self, flow):
            try:
                return await self._replica.store.arun(flow)
            except StoreError as error:
                self._replica.failed(error)
        timeout, end = self._timeout(flow)
        limit = wait_limit_of.get()
        for attempt in range(RETRIES + self._size):
            try:
                brief = maintaining.get()
                connections = await (self._pools.maintenance_pool() if brief else self._pools.loop_pool(flow.hot))
                connection = await connections.take(
                    min(timeout, CONNECT_WITHIN, limit.left()), alive=attempt > 0 or only_once(flow), brief=brief
                )
                try:
                    number = self._watchdog.begin(connection, timeout, limit)
                    try:
                        return await arun_on(connection, flow)
                    finally:
                        self._watchdog.end(number)
                except psycopg.errors.ReadOnlySqlTransaction:
                    await connection.close()
                    raise
                finally:
                    await connections.give_back(connection)
            except Exception as error:
                if time.monotonic() > min(end, limit.until) or not can_retry(error, flow, attempt, self._size):
                    raise translate(error) from error
                flow = flow.again() if lost(error) else flow
            await asyncio.sleep(pause(attempt))
        raise AssertionError("unreachable")

    @property
    def listening(self) -> bool:
        return self._listener.listening

    async def due_work(self, lease: str | None, tenant: str, ttl: float | None = None) -> DueWork | None:
        return await self.arun(due_work(self.schema_name, lease, tenant, ttl))

    def listen(
        self, notify: Callable[[str], None], names: Names | None = None, awaited: Names | None = None
    ) -> Callable[[], None]:
        return self._listener.add(notify, names, awaited)

    def refresh_listening(self) -> None:
        self._listener.refresh()

    def close(self) -> None:
        self._listener.close()
        self._pools.close()
        if self._replica is not None:
            self._replica.store.close()

    async def leave_loop(self) -> None:
        await self._pools.leave_loop()
        if self._replica is not None:
            await self._replica.store.leave_loop()

    async def aclose(self) -> None:
        await self.leave_loop()
        self.close()

    # --- schema ---

    def schema(self) -> SchemaStatus:
        with self._connected() as connection:
            return status_on(connection, self._plan, self.schema_name)

    async def aschema(self) -> SchemaStatus:
        return await self.arun(status(self._plan, self.schema_name))

    def migrate(self) -> SchemaStatus:
        with self._connected() as connection:
            return migrate_on(connection, self._plan, self.schema_name, self._connected)

    def migrate_within(self, connection: Execute) -> None:
        """Create or update the schema in the transaction that is open on a caller's connection."""
        migrate_within(connection, self._plan, self.schema_name)

    def migration_plan(self) -> list[MigrationStep]:
        with self._connected() as connection:
            return plan_on(connection, self._plan, self.schema_name)

    def migrate_down(self, release: str) -> list[str]:
        with self._connected() as connection:
            return down_on(connection, self._plan, self.schema_name, release)

    def uninstall(self, *, dry: bool, force: bool = False, roles: bool = False) -> Removal:
        with self._connected() as connection:
            return uninstall_on(connection, self._plan, self.schema_name, dry=dry, force=force, roles=roles)

    def check_writable(self) -> None:
        """Checks the settings: a server with a full disk stops, but a standby or a read-only server still reads."""
        with self._connected() as connection:
            row = connection.execute("select current_setting('transaction_read_only'), pg_is_in_recovery()").fetchone()
        if row is not None and (row[0] == "on" or row[1]):
            raise StoreUnavailable(
                "The database is a standby." if row[1] else "The database is read-only.",
                code="store_read_only",
                fix="Connect to the primary, or set default_transaction_read_only off.",
            )

    def migration_sql(self) -> str:
        """The whole schema as one script, for operators who apply migrations themselves."""
        return migration_script(self._plan, self.schema_name)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[StoreConnection]:
        """A connection outside the pools, for rare operations."""
        try:
            with connected(self.url) as connection:
                yield connection
        except psycopg.Error as error:
            raise translate(error) from error

    def diagnose(self) -> list[Finding]:
        with self._connected() as connection:
            settings = CONNECTION | {"conninfo": self.url}
            status = status_on(connection, self._plan, self.schema_name)
            findings = diagnose(connection, settings, self.schema_name, status, self.most_connections)
        return findings if self._replica is None else [*findings, self._replica.finding(self)]

    def logins(self) -> list[Login]:
        with self._connected() as connection:
            return logins(connection, self.schema_name)

    @property
    def most_connections(self) -> int:
        """Maximum connections of a process with one event loop: a pool for threads, one for the loop, one for
        exchanges, and the listener. Connections that handlers open are not included."""
        return 2 * self._size + min(self.pipeline_depth, self._size) + 1

    def conditions(self, when: Thresholds = DEFAULT_THRESHOLDS) -> list[Concern]:
        with self._connected() as connection:
            return run_on(connection, conditions(self.schema_name, when))

    async def aconditions(self, when: Thresholds = DEFAULT_THRESHOLDS) -> list[Concern]:
        return await self.arun(conditions(self.schema_name, when))

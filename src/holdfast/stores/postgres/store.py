"""The PostgreSQL store: two pools (one a colour), errors in our words, migrations."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from holdfast.domain.errors import InvalidInput, InvalidSetting, StoreError, StoreUnavailable
from holdfast.domain.health import USUAL, Concern, Thresholds
from holdfast.domain.payload import look_at
from holdfast.stores.base import Finding, SchemaStatus
from holdfast.stores.flow import Binding, Flow, Rows, Statement, Steps, drive
from holdfast.stores.migrate import CODE, Plan, Script
from holdfast.stores.patience import patience_of
from holdfast.stores.postgres.applied import applied, plan_for, status
from holdfast.stores.postgres.borrowed import PostgresBorrowing
from holdfast.stores.postgres.doctor import ROLES, conditions, diagnose
from holdfast.stores.postgres.failures import refusal
from holdfast.stores.postgres.lending import PostgresLending
from holdfast.stores.postgres.reading import Reading
from holdfast.stores.postgres.verbs import PostgresVerbs
from holdfast.stores.recording import postgres_triggers

try:
    import psycopg
    import psycopg_pool
    from psycopg.types.json import set_json_loads
    from psycopg.types.string import TextLoader

    from holdfast.stores.postgres.connections import OurAsyncConnection, OurConnection
    from holdfast.stores.postgres.ear import PostgresEar
    from holdfast.stores.postgres.keeping import ASK_ANEW, LoopConnections, take_now
    from holdfast.stores.postgres.pooler import aprepare_if_direct, prepare_if_direct
    from holdfast.stores.postgres.times import TimeLoader
    from holdfast.stores.postgres.watchdog import Watchdog
except ImportError as missing:
    raise InvalidSetting(
        "PostgreSQL support is not installed",
        code="missing_extra",
        fix="Install it with: pip install 'holdfast[postgres-binary]'",
    ) from missing

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection

T = TypeVar("T")

Lanes: TypeAlias = "dict[bool, LoopConnections]"

# Never one that others use: migrating puts policies on every table of the schema and takes all grants from PUBLIC.
SCHEMA_NAME = re.compile(r"(?!pg_|(?:public|information_schema)\Z)[a-z_][a-z0-9_]{0,40}")
RETRIES = 6
# Nothing a queue asks for takes this long, unless nobody is there to answer.
ANSWER_WITHIN = 30.0
CONNECT_WITHIN = 15.0
# A pool that is closed waits so long for connections that it has begun to open.
CLOSE_WITHIN = 0.5


class PostgresStore(PostgresBorrowing, PostgresLending):
    embedded = False
    lanes = 2  # while the server works on one turn of a worker, the worker runs what the other brought

    def __init__(
        self, url: str, *, schema: str = "holdfast", pool_size: int = 8, answer_within: float = ANSWER_WITHIN
    ) -> None:
        if not SCHEMA_NAME.fullmatch(schema):
            raise InvalidSetting(
                f"{schema!r} cannot be a schema name",
                code="invalid_schema",
                fix="Use small letters, digits and _, and none of PostgreSQL's own: jobs, not public.",
            )
        self.url = url
        self.schema_name = schema
        self.verbs = PostgresVerbs(schema)
        self._plan = Plan.of(__package__, Script("recording", postgres_triggers()))
        self._size = pool_size
        self._pool: psycopg_pool.ConnectionPool[OurConnection] | None = None
        self._opening = threading.Lock()
        # A pool belongs to the loop it was opened on; a program may have several, one after another.
        self._pools: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Lanes] = weakref.WeakKeyDictionary()
        self._answer_within = answer_within
        self._watchdog = Watchdog()
        self._ear = PostgresEar(url, schema, CONNECTION)
        self._owner = os.getpid()
        self._inherited: object = None

    # --- running flows ---

    def run(self, flow: Flow[T]) -> T:
        patience, end = self._patience(flow)
        whose = patience_of.get()
        for attempt in range(RETRIES + self._size):
            try:
                pool = self._sync_pool()
                connection = take_now(
                    pool, min(patience, CONNECT_WITHIN, whose.left()), quiet=attempt > 0 or _once(flow)
                )
                try:
                    number = self._watchdog.begin(connection, patience, whose)
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
                if time.monotonic() > min(end, whose.until) or not self._again(error, flow, attempt):
                    raise translate(error) from error
                flow = flow.again() if lost(error) else flow
            time.sleep(_pause(attempt))
        raise AssertionError("unreachable")  # the last attempt returns or raises

    def _patience(self, flow: Flow[Any]) -> tuple[float, float]:
        """How long to wait for an answer, and until when to try again."""
        patience = flow.patience or self._answer_within
        return patience, time.monotonic() + 2 * patience

    async def arun(self, flow: Flow[T]) -> T:
        patience, end = self._patience(flow)
        whose = patience_of.get()
        for attempt in range(RETRIES + self._size):
            try:
                connections = await self._connections(flow.hot)
                connection = await connections.take(
                    min(patience, CONNECT_WITHIN, whose.left()), quiet=attempt > 0 or _once(flow)
                )
                try:
                    number = self._watchdog.begin(connection, patience, whose)
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
                if time.monotonic() > min(end, whose.until) or not self._again(error, flow, attempt):
                    raise translate(error) from error
                flow = flow.again() if lost(error) else flow
            await asyncio.sleep(_pause(attempt))
        raise AssertionError("unreachable")

    def _again(self, error: Exception, flow: Flow[Any], attempt: int) -> bool:
        """A transaction that lost a race starts again; a lost connection only where nothing can have been written,
        or where the flow knows how to find out. Its first try may still be on its way: then the ids collide once."""
        if flow.repeat is not None and lost(error):
            return attempt + 1 < RETRIES + self._size  # every connection of the pool may have to be found dead first
        if attempt + 1 >= RETRIES:
            return False
        if isinstance(error, psycopg.errors.SerializationFailure | psycopg.errors.DeadlockDetected):
            return True
        if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
            return attempt < 2  # a primary that is one no more, or not yet: a new connection may find the right one
        if getattr(error, "sqlstate", None) == "ZH020" and attempt == 0:
            return True  # the agent was disabled between the answer and the insert: then the answer is another
        if flow.start is flow.repeat and isinstance(error, psycopg.errors.UniqueViolation):
            return True
        return isinstance(error, psycopg.OperationalError) and not flow.writes and attempt == 0

    def _leave_to_parent(self) -> None:
        """In a forked child the connections are still the parent's: to use or to close them would garble its own."""
        if self._owner != os.getpid():
            self._owner = os.getpid()
            self._inherited = (self._pool, self._pools)  # kept, so that nobody finalizes them
            self._pool, self._pools = None, weakref.WeakKeyDictionary()

    def _sync_pool(self) -> psycopg_pool.ConnectionPool[OurConnection]:
        self._leave_to_parent()
        if self._pool is None:
            with self._opening:  # the first calls may come from many threads at once
                if self._pool is None:
                    self._pool = psycopg_pool.ConnectionPool(
                        self.url,
                        connection_class=OurConnection,
                        min_size=0,
                        max_size=self._size,
                        kwargs=CONNECTION,
                        configure=_ready,
                        open=True,
                        timeout=CONNECT_WITHIN,
                        reconnect_timeout=ASK_ANEW,
                        name="holdfast",
                    )
        return self._pool

    async def _connections(self, hot: bool = False) -> LoopConnections:
        """A pool hands out the connection that has rested longest, so what is hot has one of its own: it would go from
        backend to backend, and each plans it anew (docs/adr/0034)."""
        self._leave_to_parent()
        lanes = self._pools.setdefault(asyncio.get_running_loop(), {})
        found = lanes.get(hot)
        if found is None:
            pool = psycopg_pool.AsyncConnectionPool(
                self.url,
                connection_class=OurAsyncConnection,
                min_size=0,
                max_size=min(self.lanes, self._size) if hot else self._size,
                kwargs=CONNECTION,
                configure=_aready,
                open=False,
                timeout=CONNECT_WITHIN,
                reconnect_timeout=ASK_ANEW,
                name="holdfast",
            )
            found = lanes[hot] = LoopConnections(pool)
            await pool.open()
        return found

    def listen(self, heard: Callable[[str], None]) -> Callable[[], None]:
        return self._ear.add(heard)

    def close(self) -> None:
        self._leave_to_parent()
        self._ear.close()
        if self._pool is not None:
            self._pool.close(CLOSE_WITHIN)
            self._pool = None

    async def leave_loop(self) -> None:
        self._leave_to_parent()
        lanes = self._pools.pop(asyncio.get_running_loop(), {})
        await asyncio.gather(*(pool.close(CLOSE_WITHIN) for pool in lanes.values()))

    async def aclose(self) -> None:
        await self.leave_loop()
        self.close()

    # --- schema ---

    def schema(self) -> SchemaStatus:
        with self._connected() as connection:
            return self._status(connection)

    async def aschema(self) -> SchemaStatus:
        return await self.arun(status(self._plan, self.schema_name))

    def migrate(self) -> SchemaStatus:
        with self._connected() as connection, connection.transaction():
            connection.execute(
                "select pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"holdfast.{self.schema_name}",)
            )
            found = asked(connection, applied(self.schema_name))
            plan = asked(connection, plan_for(self._plan))
            plan.check_not_newer(found)
            for script in plan.pending(found):
                if not found:
                    connection.execute(f'create schema if not exists "{self.schema_name}"')
                    found = {"": ""}
                connection.execute(self._search_path())
                try:
                    connection.execute(script.sql)  # no parameters: several statements in one go
                except psycopg.Error as error:
                    raise script.failure(translate(error), str(error)) from error
                if script.name == CODE:
                    script = asked(connection, plan_for(self._plan)).code
                connection.execute(*self._mark(script))
            return self._status(connection)

    def _status(self, connection: Connection[Any]) -> SchemaStatus:
        return asked(connection, status(self._plan, self.schema_name).start())

    def migration_sql(self) -> str:
        """The whole schema as one script, for those who apply such things themselves."""
        parts = ["begin;", f'create schema if not exists "{self.schema_name}";', self._search_path() + ";"]
        plan = self._plan.for_roles(ROLES)  # which the script itself creates
        for script in (*plan.migrations, plan.code):
            parts.append(f"-- {script.name}\n{script.sql}")
            parts.append(f"insert into migration (name, digest) values ('{script.name}', '{script.digest}');")
        return "\n".join([*parts, "commit;\n"])

    def _search_path(self) -> str:
        return f'set local search_path = "{self.schema_name}", pg_catalog, pg_temp'

    def _mark(self, script: Script) -> tuple[str, tuple[str, str]]:
        return (
            "insert into migration (name, digest) values (%s, %s) on conflict (name)"
            " do update set digest = excluded.digest, applied_at = clock_timestamp()",
            (script.name, script.digest),
        )

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Connection[Any]]:
        """A connection outside of the pools, for what is done once."""
        try:
            with psycopg.connect(self.url, **CONNECTION) as connection:
                yield connection
        except psycopg.Error as error:
            raise translate(error) from error

    def diagnose(self) -> list[Finding]:
        with self._connected() as connection:
            settings = CONNECTION | {"conninfo": self.url}
            return diagnose(connection, settings, self.schema_name, self._status(connection), self.most_connections)

    @property
    def most_connections(self) -> int:
        """Of one process with one event loop, but for what handlers open: for its threads and its loop a pool each, for
        turns one of their own, and the one that listens."""
        return 2 * self._size + min(self.lanes, self._size) + 1

    def conditions(self, when: Thresholds = USUAL) -> list[Concern]:
        with self._connected() as connection:
            return run_on(connection, conditions(self.schema_name, when))

    async def aconditions(self, when: Thresholds = USUAL) -> list[Concern]:
        return await self.arun(conditions(self.schema_name, when))


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


def _ready(connection: OurConnection) -> None:
    prepare_connection(connection)
    prepare_if_direct(connection)


async def _aready(connection: OurAsyncConnection) -> None:
    prepare_connection(connection)
    await aprepare_if_direct(connection)


def prepare_connection(connection: Connection[Any] | AsyncConnection[Any]) -> None:
    """Ids come as text: making UUID objects of them only to print them again is most of the cost of a claim."""
    connection.adapters.register_loader("uuid", TextLoader)
    connection.adapters.register_loader("timestamptz", TimeLoader)
    set_json_loads(look_at, connection)


def run_on(connection: Connection[Any], flow: Flow[T]) -> T:
    """Run a flow on a connection, in a transaction of its own unless the flow is one statement."""

    execute = connection.ask if isinstance(connection, OurConnection) else _asking(connection)
    if flow.single:
        return drive(flow.start(), execute)
    if isinstance(connection, OurConnection) and connection.batches and not flow.writes:
        return _read_on(connection, Reading(flow.start()))
    binding = Binding()
    with connection.transaction():
        return drive(flow.start(), lambda statement: [] if binding.spares(statement) else execute(statement))


def _read_on(connection: OurConnection, reading: Reading[T]) -> T:
    with contextlib.closing(reading):
        while asked := reading.questions():
            reading.answered(connection.ask_together(asked))
        if reading.over:
            return reading.result
        binding = Binding()
        with connection.transaction():
            return drive(reading.rest(), lambda each: [] if binding.spares(each) else connection.ask(each))


def asked(connection: Connection[Any], steps: Steps[T]) -> T:
    """The same for a part of something, which is in a transaction or needs none."""
    return drive(steps, _asking(connection))


def _asking(connection: Connection[Any]) -> Callable[[Statement], Rows]:
    def execute(statement: Statement) -> Rows:
        cursor = connection.execute(statement.sql, statement.params)
        return cursor.fetchall() if cursor.description else []

    return execute


async def arun_on(connection: OurAsyncConnection, flow: Flow[T]) -> T:
    if flow.single:
        return await _adrive(flow.start(), connection)
    if connection.batches and not flow.writes:
        return await _aread_on(connection, Reading(flow.start()))
    async with connection.transaction():
        return await _adrive(flow.start(), connection)


async def _aread_on(connection: OurAsyncConnection, reading: Reading[T]) -> T:
    with contextlib.closing(reading):
        while asked := reading.questions():
            reading.answered(await connection.ask_together(asked))
        if reading.over:
            return reading.result
        async with connection.transaction():
            return await _adrive(reading.rest(), connection)


async def _adrive(steps: Steps[T], connection: OurAsyncConnection) -> T:
    try:
        statement, binding = next(steps), Binding()
        while True:
            if binding.spares(statement):
                statement = steps.send([])
            elif statement.beside:
                statement = steps.send([await connection.ask(each) for each in statement.beside])
            else:
                statement = steps.send(await connection.ask(statement))
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        steps.close()


def _once(flow: Flow[Any]) -> bool:
    """A write that cannot be tried again, and so is not begun where it could be lost. (The worker's turns can: it
    compares what it holds.) What is tried again looks as well: after a restart every connection of the pool is dead."""
    return flow.writes and flow.repeat is None and not flow.hot


def _pause(attempt: int) -> float:
    return random.uniform(0.2, 1.0) * 0.01 * float(2 ** min(attempt, 5))


def lost(error: Exception) -> bool:
    """The connection is gone, or the server is going: whether the last statement was carried out is not known."""
    if not isinstance(error, psycopg.OperationalError) or isinstance(error, psycopg_pool.PoolTimeout):
        return False
    state = error.sqlstate
    return state is None or state.startswith("08") or state in ("57P01", "57P02", "57P03", "57P05")


def translate(error: Exception) -> Exception:
    """A driver's error in our words; anything else stays what it is."""
    if not isinstance(error, psycopg.Error | psycopg_pool.PoolTimeout):
        return error
    state = getattr(error, "sqlstate", None) or ""
    message = str(error).strip().split("\n")[0]
    ours = refusal(state, message)
    if ours is not None:
        return ours
    if isinstance(error, psycopg.DataError):  # refused by the driver already: a character that text cannot have
        return InvalidInput(message, code="invalid_input")
    if state == "25006":
        return StoreUnavailable(f"the server takes no writes: {message}", code="store_read_only")
    if isinstance(error, psycopg.OperationalError | psycopg_pool.PoolTimeout):
        if state == "08P01" and "statement pooling mode" in message:
            return StoreUnavailable(
                f"the pooler does not let transactions through: {message}",
                code="statement_pooling",
                fix="Set pool_mode = transaction (or session) for this database.",
            )
        there = state and not lost(error)  # it has answered: a statement that took too long, no memory, no space
        return StoreUnavailable(f"the database cannot be {'used' if there else 'reached'}: {message}")
    return StoreError(message, code="store_error")

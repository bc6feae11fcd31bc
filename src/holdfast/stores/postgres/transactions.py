"""Operations in a transaction of the caller; transactions for handlers.

On a caller's connection a savepoint surrounds each operation: after a refusal the transaction is as before. Inside is a
single statement with text values only, so that it means the same with every driver. The operation sets the tenant and
the actor for the rest of the transaction, so both settings are restored: the rest belongs to the caller.

A handler's ``transaction()`` block has a new connection, closed afterwards. It has none of our settings, and settings
of the handler (a search path, a role, a row factory) cannot reach the next block; behind a pooler only SET LOCAL is
sure to end. psycopg refuses ``commit()`` and ``rollback()`` inside a transaction block, so that only the block ends it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import cached_property, partial
from typing import Any, TypeVar

from psycopg import AsyncConnection, Connection, IsolationLevel, OperationalError

from holdfast.engine.job import Enqueued, JobSpec
from holdfast.engine.settlement import Settlement
from holdfast.errors import Conflict, InvalidSetting, Refused, StoreUnavailable
from holdfast.features.attempts.model import LogPart, log_parts_json
from holdfast.features.workflows.model import Started, WorkflowSpec
from holdfast.stores.adapters import OWN_DATABASE, POSTGRESQL, TransactionState, adapt, adapt_async, transaction_ended
from holdfast.stores.flow import Flow, Statement, Steps, flow
from holdfast.stores.postgres.codec import enqueue_document, enqueued, is_plain, start_document
from holdfast.stores.postgres.connections import CONNECTION
from holdfast.stores.postgres.errors import refusal, unavailable
from holdfast.stores.postgres.leases import detail_of
from holdfast.stores.postgres.session import PREPARE_AFTER, ais_direct, is_direct

T = TypeVar("T")

# The planner must not change the order: the call has an argument from `was` (in an array, which is not folded), and the
# settings are restored from the result of the call.
_CALL = """with was as materialized (
    select current_setting('holdfast.tenant', true) as tenant, current_setting('holdfast.actor', true) as actor
), done as materialized (
    select {answer} as answer from was cross join lateral {call}
)
select done.answer,
       set_config('holdfast.tenant', case when done.answer is null then '' else coalesce(was.tenant, '') end, true),
       set_config('holdfast.actor', case when done.answer is null then '' else coalesce(was.actor, '') end, true)
  from was cross join done"""


class PostgresCallerOperations:
    def __init__(self, schema: str) -> None:
        self._enqueue = _CALL.format(
            answer="coalesce(json_agg(json_build_array(e.id, e.state, e.created, e.reason, e.detail) order by e.n),"
            " '[]')::text",
            call=f'"{schema}".enqueue_many(cast(cast($1 as text) as json), (array[cast($2 as text), was.tenant])[1],'
            " null, cast(cast($3 as text) as boolean)) with ordinality as e(id, state, created, reason, detail, n)",
        )
        self._settle = _CALL.format(
            answer="cast(count(*) as text)",
            call=f'"{schema}".settle_many(cast(cast($1 as text) as uuid), array[cast(cast($2 as text) as uuid)],'
            " array[cast(cast($3 as text) as integer)], array[cast($4 as text)],"
            " case when cast($5 as text) is not null then array[cast(cast($5 as text) as json)] end,"
            " (array[cast($6 as text), was.tenant])[1]) as stale",
        )
        self._log = _CALL.format(
            answer="cast(count(*) as text)",
            call=f'"{schema}".append_log(cast(cast($1 as text) as uuid), cast(cast($2 as text) as json),'
            " (array[cast($3 as text), was.tenant])[1]) as stale",
        )
        self._start = _CALL.format(
            answer="cast(json_build_array(w.id, w.created, w.reason) as text)",
            call=f'"{schema}".start_workflow(cast(cast($1 as text) as json), (array[cast($2 as text), was.tenant])[1],'
            " cast($3 as text)) as w",
        )

    @flow(single=True)
    def start_workflow(self, spec: WorkflowSpec, tenant: str) -> Steps[Started]:
        rows = yield Statement(self._start, (start_document(spec), tenant, spec.enqueued_by))
        return Started(*json.loads(rows[0][0]))

    @flow(single=True)
    def enqueue(self, specs: Sequence[JobSpec], tenant: str) -> Steps[list[Enqueued]]:
        plain = is_plain(specs)
        rows = yield Statement(self._enqueue, (enqueue_document(specs), tenant, str(plain).lower()))
        if plain:
            return [Enqueued(spec.id, True) for spec in specs]
        return enqueued(json.loads(rows[0][0]))

    @flow(single=True)
    def settle(self, lease: str, settlement: Settlement, tenant: str) -> Steps[bool]:
        attempt = str(settlement.attempt)
        params = (lease, settlement.id, attempt, settlement.ending, detail_of(settlement), tenant)
        rows = yield Statement(self._settle, params)
        return int(rows[0][0]) == 0

    @flow(single=True)
    def append_log(self, lease: str, parts: Sequence[LogPart], tenant: str) -> Steps[None]:
        yield Statement(self._log, (lease, log_parts_json(parts), tenant))


# Autocommit, so that the block's BEGIN and COMMIT are the only ones.
SETTINGS = CONNECTION | {"application_name": "holdfast handler"}


class PostgresTransactions:
    """The part of the store for callers' connections and for handlers' transactions."""

    url: str
    schema_name: str

    @cached_property
    def on_connection(self) -> PostgresCallerOperations:
        return PostgresCallerOperations(self.schema_name)

    def run_on_connection(self, connection: object, flow: Flow[T], *, within: bool = False) -> T:
        adapter = adapt(connection)
        try:
            return adapter.run(partial(_framed, flow, within))
        except Exception as error:
            translated = _translated(error)
            if translated is None:
                raise
            raise translated from error

    async def arun_on_connection(self, connection: object, flow: Flow[T], *, within: bool = False) -> T:
        adapter = adapt_async(connection)
        try:
            return await adapter.arun(partial(_framed, flow, within))
        except Exception as error:
            translated = _translated(error)
            if translated is None:
                raise
            raise translated from error

    @contextmanager
    def transaction(self) -> Iterator[Connection[Any]]:
        try:
            connection = Connection.connect(self.url, **SETTINGS)
        except OperationalError as error:
            raise _unreachable(error) from error
        try:
            if is_direct(connection):
                connection.prepare_threshold = PREPARE_AFTER
            connection.isolation_level = IsolationLevel.READ_COMMITTED
            with connection.transaction():
                yield connection
        finally:
            connection.close()

    @asynccontextmanager
    async def atransaction(self) -> AsyncIterator[AsyncConnection[Any]]:
        try:
            connection = await AsyncConnection.connect(self.url, **SETTINGS)
        except OperationalError as error:
            raise _unreachable(error) from error
        try:
            if await ais_direct(connection):
                connection.prepare_threshold = PREPARE_AFTER
            await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
            async with connection.transaction():
                yield connection
        finally:
            await connection.close()


def _unreachable(error: Exception) -> StoreUnavailable:
    return unavailable(str(error).strip().split("\n")[0])


def _framed(flow: Flow[T], within: bool, state: TransactionState) -> Steps[T]:
    if state.database != POSTGRESQL:
        raise InvalidSetting(
            f"the connection is to {state.database}, but the jobs are in PostgreSQL",
            code="other_database",
            fix=OWN_DATABASE,
        )
    if within and not state.in_transaction:
        raise transaction_ended()
    if not state.in_transaction:  # a single statement is a transaction, and its settings end with it
        return (yield from flow.start())
    yield Statement("savepoint holdfast")
    try:
        result = yield from flow.start()
    except GeneratorExit:
        raise
    except BaseException:
        yield from _undo()
        raise
    yield Statement("release savepoint holdfast")
    return result


def _undo() -> Steps[None]:
    try:
        yield Statement("rollback to savepoint holdfast")
        yield Statement("release savepoint holdfast")
    except Exception:
        return  # the connection and its transaction are lost; the first error is raised


def _translated(error: Exception) -> Exception | None:
    """The Holdfast error for an error of PostgreSQL; None for others. Deadlocks and serialization failures keep the
    driver's error: code that repeats the whole transaction expects it."""
    for each in _chain(error):
        if isinstance(each, UnicodeEncodeError) and each.encoding != "utf-8":
            return Refused(
                f"the connection's client_encoding lacks a character of this job: {each.object[each.start]!r}",
                code="client_encoding",
                fix="Set client_encoding to UTF8 on this connection.",
            )
        state = _state_of(each)
        if state is not None:
            message = str(each).strip().split("\n")[0]
            if state == "25P02":
                return Conflict(
                    "the transaction has already failed and accepts no more statements",
                    code="transaction_aborted",
                    fix="Roll back the transaction, or to a savepoint before the failure, then enqueue.",
                )
            return refusal(state, message)
    return None


def _state_of(error: BaseException) -> str | None:
    """The SQLSTATE of an error of psycopg, asyncpg, psycopg2, or pg8000, which has the fields of the server's
    message."""
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if state is None and error.args and isinstance(error.args[0], dict):
        state = error.args[0].get("C")
    return state if isinstance(state, str) else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and the errors it wraps: SQLAlchemy has the driver's error in ``orig``."""
    current: BaseException | None = error
    for _ in range(8):
        if current is None:
            return
        yield current
        current = getattr(current, "orig", None) or current.__cause__

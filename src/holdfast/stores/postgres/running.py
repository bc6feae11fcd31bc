"""Runs flows on a connection. Which one that is, and what follows when it fails, is the business of the store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.stores.flow import Binding, Flow, Rows, Statement, Steps, drive
from holdfast.stores.postgres.connections import OurAsyncConnection, OurConnection
from holdfast.stores.postgres.reading import Reading

if TYPE_CHECKING:
    from psycopg import Connection

T = TypeVar("T")


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

"""What a borrowed connection is to a store, and how a flow is run on one.

A store gives a *frame*: from where the connection stands to the statements to be run there, with a savepoint or the
like around them. The library's module gives the running, in the one colour the connection has.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from holdfast.errors import Conflict
from holdfast.stores.flow import Rows, Statement, Steps

T = TypeVar("T")

POSTGRESQL, SQLITE = "postgresql", "sqlite"


@dataclass(frozen=True, slots=True)
class Standing:
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
        "the transaction was ended inside its block",
        code="transaction_ended",
        fix="Leave COMMIT and ROLLBACK to the end of the block.",
    )


Frame = Callable[[Standing], Steps[T]]


class Guest(Protocol):
    """A connection of sync code."""

    def run(self, frame: Frame[T]) -> T: ...


class AsyncGuest(Protocol):
    """A connection of async code."""

    async def arun(self, frame: Frame[T]) -> T: ...


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

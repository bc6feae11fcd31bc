"""Store operations as generators: written once, run in either colour.

An operation yields the statements it wants executed and is sent the rows of each. The
runner decides how that happens: in this thread, in another one, or on an event loop.
The body of an operation therefore holds no I/O and no ``await``, and there is one of it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Row = Sequence[Any]
Rows = list[Row]
Params = Mapping[str, Any] | Sequence[Any]


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement for the database. With ``many`` it is run once for each of ``params``. One that ``binds`` binds the
    transaction to a tenant, and one that ``reads`` leaves it bound as it was. One made of several ``beside`` one
    another stands for those: its answer is a list of theirs. ``alone`` is what binds itself to its tenant: it needs
    nothing of its transaction, and nobody needs what it leaves there."""

    sql: str
    params: Params | Sequence[Params] = ()
    many: bool = False
    binds: bool = False
    reads: bool = False
    beside: tuple[Statement, ...] = ()
    alone: bool = False


Steps = Generator[Statement, Rows, T]


@dataclass(frozen=True, slots=True)
class Flow(Generic[T_co]):
    """An operation that can be started as often as needed: a transaction lost to a deadlock starts it again.

    ``writes`` takes the write lock at the beginning where the store has one; ``single`` promises one
    statement, which then needs no explicit transaction. ``peek`` reads first, where the write lock is dear: an
    answer of its own means that there is nothing to write. ``tells`` is for what others in the process wait for.
    ``repeat`` is how to go on when the connection was lost and nobody knows whether ``start`` was carried out: it
    finds out, does what is missing, and answers the same. ``patience`` is how many seconds an answer may take, where
    it is not the store's own. ``hot`` is for what one process asks for again and again: it goes over connections of
    its own, where there are any, which have planned it before.
    """

    start: Callable[[], Steps[T_co]]
    writes: bool = True
    single: bool = False
    peek: Callable[[], Steps[T_co | None]] | None = None
    tells: bool = False
    repeat: Callable[[], Steps[T_co]] | None = None
    patience: float | None = None
    hot: bool = False

    def again(self) -> Flow[T_co]:
        """The flow to run after a lost connection."""
        return self if self.repeat is None else dataclasses.replace(self, start=self.repeat, single=False)


def flow(
    *,
    writes: bool = True,
    single: bool = False,
    peek: Callable[..., Steps[Any]] | None = None,
    tells: bool = False,
    repeat: Callable[..., Steps[Any]] | None = None,
    hot: bool = False,
) -> Callable[[Callable[P, Steps[T]]], Callable[P, Flow[T]]]:
    """Turn a generator function into one that returns a ``Flow``. ``peek`` and ``repeat`` take the same arguments."""

    def wrap(steps: Callable[P, Steps[T]]) -> Callable[P, Flow[T]]:
        @functools.wraps(steps)
        def make(*args: P.args, **kwargs: P.kwargs) -> Flow[T]:
            look = None if peek is None else functools.partial(peek, *args, **kwargs)
            again = None if repeat is None else functools.partial(repeat, *args, **kwargs)
            return Flow(functools.partial(steps, *args, **kwargs), writes, single, look, tells, again, hot=hot)

        return make

    return wrap


class Binding:
    """Which tenant a transaction is bound to. Every read binds it first; one that follows another can spare it."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: Statement | None = None

    def spares(self, statement: Statement) -> bool:
        """Whether it would change nothing."""
        if statement.binds:
            same = statement == self._last
            self._last = statement
            return same
        if not statement.reads:
            self._last = None
        return False


def drive(steps: Steps[T], execute: Callable[[Statement], Rows]) -> T:
    """Run an operation to its end in this thread. An error is raised where the operation has yielded the statement."""
    try:
        statement = next(steps)
        while True:
            try:
                rows: Any = [execute(each) for each in statement.beside] if statement.beside else execute(statement)
            except Exception as error:
                statement = steps.throw(error)
            else:
                statement = steps.send(rows)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        steps.close()

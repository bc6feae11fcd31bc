"""``Statement``, ``Flow``, ``@flow``, ``drive``, reads sent together, time limits, a blocking call beside the loop.

Store operations as generators: written once, run in either colour.

An operation yields the statements it wants executed and is sent the rows of each. The
runner decides how that happens: in this thread, in another one, or on an event loop.
The body of an operation therefore holds no I/O and no ``await``, and there is one of it.

Reads side by side: those that do not need one another's answers are asked in one go, where the store can.

``schedules, rules = yield from side_by_side(schedules.list(…).start(), payload_rules.list(…).start())``

How long somebody who may have to leave waits for a database: as long as the store waits, until he says otherwise.

A worker that is asked to stop has questions under way, some of them on connections that nothing comes through any more.
So all it does is done under a patience of its own, which it ends when its time is over: what is asked for afterwards
fails at once, and what is being waited for then is given up.

A call that blocks, in a thread of its own beside the event loop.

``asyncio.to_thread`` has a handful of threads for the whole program, and handlers use them as well: what hangs there
would keep whoever else needs one, and so a worker from leaving. Whatever a worker itself depends on is done here.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import math
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, ParamSpec, TypeVar, overload

from holdfast.engine.operation import Program

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


def run(flow: Flow[T]) -> Program[T]:
    """Run a flow within an operation of a namespace: ``found = yield from run(self._store.limits.list(tenant))``."""
    result: T = yield flow
    return result


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


A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


@overload
def read_together(first: Steps[A], second: Steps[B], /) -> Steps[tuple[A, B]]: ...
@overload
def read_together(first: Steps[A], second: Steps[B], third: Steps[C], /) -> Steps[tuple[A, B, C]]: ...
@overload
def read_together(*reads: Steps[Any]) -> Steps[tuple[Any, ...]]: ...
def read_together(*reads: Steps[Any]) -> Steps[tuple[Any, ...]]:
    """Answers what each of them does, in their order. Whatever asks something that is no read of ours
    does so last, and from then on by itself: it may count on its transaction."""
    parts = [_Part(steps) for steps in reads]
    try:
        while waiting := [part for part in parts if part.asks is not None]:
            first = next((part for part in waiting if part.asking.reads), waiting[0])
            if first.bound is not None:
                yield first.bound
            if not first.asking.reads:
                yield from first.to_its_end()
                continue
            group = [part for part in waiting if part.bound == first.bound and part.asking.reads]
            asked = [part.asking.beside or (part.asking,) for part in group]
            answers = iter((yield Statement("", reads=True, beside=tuple(each for some in asked for each in some))))
            for part, some in zip(group, asked, strict=True):
                rows = [list(next(answers)) for _ in some]
                part.told([*rows] if part.asking.beside else rows[0])
    finally:
        for part in parts:
            part.steps.close()
    return tuple(part.result for part in parts)


def beside(*flows: Flow[Any]) -> Flow[tuple[Any, ...]]:
    """The same as a flow of its own, for a page that shows several things."""
    return Flow(lambda: read_together(*(each.start() for each in flows)), writes=False)


class _Part:
    """One of them: what it asks next, and which binding it asked for before that."""

    def __init__(self, steps: Steps[Any]) -> None:
        self.steps = steps
        self.bound: Statement | None = None
        self.asks: Statement | None = None
        self.result: Any = None
        self._go_on(None)

    @property
    def asking(self) -> Statement:
        assert self.asks is not None
        return self.asks

    def told(self, rows: Rows) -> None:
        self._go_on(rows)

    def to_its_end(self) -> Steps[None]:
        try:
            while True:
                self.asks = self.steps.send((yield self.asking))
        except StopIteration as end:
            self.asks, self.result = None, end.value

    def _go_on(self, rows: Rows | None) -> None:
        try:
            self.asks = next(self.steps) if rows is None else self.steps.send(rows)
            while self.asks.binds:
                self.bound = self.asks
                self.asks = self.steps.send([])
        except StopIteration as end:
            self.asks, self.result = None, end.value


LET_GO: Final = 1.0
LOOK: Final = 0.5
"""Seconds; it may be ended earlier than was said when somebody began to wait."""


class WaitLimit:
    """``until`` is a moment of the monotonic clock. It is set by one and read by many, in whatever thread."""

    __slots__ = ("until",)

    def __init__(self) -> None:
        self.until = math.inf

    def left(self) -> float:
        return max(0.0, self.until - time.monotonic())

    async def outlast(self, *tasks: asyncio.Task[Any]) -> None:
        """Until they have ended, or it is over: then they are given a moment to give up by themselves, as those do who
        wait for an answer, and are cancelled, who may wait for a connection that was asked for long ago."""
        waiting = {task for task in tasks if not task.done()}
        while waiting and self.until > time.monotonic() - LET_GO:
            _, waiting = await asyncio.wait(waiting, timeout=min(LOOK, self.left() + LET_GO))
        for task in waiting:
            task.cancel()
        if waiting:
            await asyncio.wait(waiting, timeout=LET_GO)


NO_LIMIT = WaitLimit()
patience_of: ContextVar[WaitLimit] = ContextVar("holdfast_patience", default=NO_LIMIT)


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What it answers or raises. Whoever is cancelled here does not wait for it any longer; it goes on."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()
    call = partial(copy_context().run, function, *args, **kwargs)

    def run() -> None:
        tell: partial[Any]
        try:
            tell = partial(_set, answer, answer.set_result, call())
        except BaseException as error:
            tell = partial(_set, answer, answer.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
            loop.call_soon_threadsafe(tell)

    threading.Thread(target=run, name="holdfast-aside", daemon=True).start()
    return await answer


def _set(answer: asyncio.Future[Any], put: Callable[[Any], None], what: object) -> None:
    if not answer.done():
        put(what)

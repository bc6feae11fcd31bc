"""Store operations as generators: written once, run sync or async.

An operation yields the statements to execute and is sent the rows of each. The runner decides where they execute: in
this thread, in another one, or on an event loop. The body of an operation therefore has no I/O and no ``await``.

``read_together`` combines independent reads, which a store can send in one round trip. ``WaitLimit`` bounds how long a
stopping process waits for its database. ``in_thread`` runs a blocking call in a new thread. ``read_budget`` bounds the
reads of the service.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import functools
import math
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, ParamSpec, TypeVar, overload

from holdfast.engine.operation import Program, adrive, drive
from holdfast.stores.locks import ForkSafeExecutor

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Row = Sequence[Any]
Rows = list[Row]
Params = Mapping[str, Any] | Sequence[Any]


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement for the database.

    ``many`` runs it once for each of ``params``. ``binds`` binds the transaction to a tenant; ``reads`` does not change
    that binding. ``batch`` stands for several statements; its result is the list of their rows. ``alone`` is a call
    that binds itself to its tenant: it depends on no earlier statement of its transaction, and no later one depends on
    it.
    """

    sql: str
    params: Params | Sequence[Params] = ()
    many: bool = False
    binds: bool = False
    reads: bool = False
    batch: tuple[Statement, ...] = ()
    alone: bool = False


Steps = Generator[Statement, Rows, T]


@dataclass(frozen=True, slots=True)
class Flow(Generic[T_co]):
    """An operation that can be started any number of times: a transaction lost to a deadlock starts it again.

    ``writes``: take the write lock at the beginning, where the store has one.
    ``single``: exactly one statement, which needs no explicit transaction.
    ``peek``: a read to run first, where the write lock is expensive. A result other than None means that there is
    nothing to write, and is the result of the flow.
    ``tells``: notify listeners in this process after the commit.
    ``repeat``: the steps to run after a lost connection, when it is unknown whether ``start`` committed. They find out,
    do what is missing, and return the same result.
    ``response_timeout``: seconds to wait for a response, instead of the store's default.
    ``hot``: run by one process again and again. Such flows have dedicated connections, where the plans are cached.
    ``short``: a write that may share its commit with other such writes of this process.
    """

    start: Callable[[], Steps[T_co]]
    writes: bool = True
    single: bool = False
    peek: Callable[[], Steps[T_co | None]] | None = None
    notifies: bool = False
    repeat: Callable[[], Steps[T_co]] | None = None
    response_timeout: float | None = None
    hot: bool = False
    short: bool = False

    def again(self) -> Flow[T_co]:
        """The flow to run after a lost connection."""
        return self if self.repeat is None else dataclasses.replace(self, start=self.repeat, single=False)


def flow(
    *,
    writes: bool = True,
    single: bool = False,
    peek: Callable[..., Steps[Any]] | None = None,
    notifies: bool = False,
    repeat: Callable[..., Steps[Any]] | None = None,
    hot: bool = False,
    short: Callable[..., bool] | None = None,
) -> Callable[[Callable[P, Steps[T]]], Callable[P, Flow[T]]]:
    """Make a generator function return a ``Flow``. ``peek``, ``repeat`` and ``short`` take the same arguments."""

    def wrap(steps: Callable[P, Steps[T]]) -> Callable[P, Flow[T]]:
        @functools.wraps(steps)
        def make(*args: P.args, **kwargs: P.kwargs) -> Flow[T]:
            peeking = None if peek is None else functools.partial(peek, *args, **kwargs)
            repeating = None if repeat is None else functools.partial(repeat, *args, **kwargs)
            start, brief = functools.partial(steps, *args, **kwargs), short is not None and short(*args, **kwargs)
            return Flow(start, writes, single, peeking, notifies, repeating, hot=hot, short=brief)

        return make

    return wrap


def run(flow: Flow[T]) -> Program[T]:
    """Run a flow within an operation of a namespace: ``limits = yield from run(self._store.limits.list(tenant))``."""
    result: T = yield flow
    return result


def transaction(
    *, writes: bool = True, notifies: bool = False
) -> Callable[[Callable[P, Steps[T]]], Callable[P, Program[T]]]:
    """An operation of a namespace whose steps are one flow: ``@operation``, ``@http(…)``, ``@transaction()``."""

    def wrap(steps: Callable[P, Steps[T]]) -> Callable[P, Program[T]]:
        make = flow(writes=writes, notifies=notifies)(steps)

        @functools.wraps(steps)
        def program(*args: P.args, **kwargs: P.kwargs) -> Program[T]:
            return (yield from run(make(*args, **kwargs)))

        return program

    return wrap


class Binding:
    """Tracks which tenant a transaction is bound to. Every read binds it first; most bindings repeat the last one."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: Statement | None = None

    def is_redundant(self, statement: Statement) -> bool:
        """Whether the statement only binds the transaction to the tenant it is bound to already."""
        if statement.binds:
            same = statement == self._last
            self._last = statement
            return same
        if not statement.reads:
            self._last = None
        return False


def drive_steps(steps: Steps[T], execute: Callable[[Statement], Any], thrown: type[BaseException] = Exception) -> T:
    """Run the steps of an operation in this thread. Errors of type ``thrown`` are raised at their ``yield``."""
    binding = Binding()

    def perform(statement: Statement) -> Any:
        if binding.is_redundant(statement):
            return []
        return [execute(each) for each in statement.batch] if statement.batch else execute(statement)

    return drive(steps, perform, thrown)


async def adrive_steps(
    steps: Steps[T], execute: Callable[[Statement], Awaitable[Any]], thrown: type[BaseException] = Exception
) -> T:
    binding = Binding()

    async def perform(statement: Statement) -> Any:
        if binding.is_redundant(statement):
            return []
        return [await execute(each) for each in statement.batch] if statement.batch else await execute(statement)

    return await adrive(steps, perform, thrown)


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
    """Run independent reads, with the next statement of each in one batch; return their results in order.

    ``schedules, rules = yield from read_together(schedules.list(…).start(), payload_rules.list(…).start())``

    A part whose next statement is not a plain read runs after the others, alone and to its end: it may depend on its
    transaction.
    """
    parts = [_Part(steps) for steps in reads]
    try:
        while waiting := [part for part in parts if part.pending is not None]:
            first = next((part for part in waiting if part.statement.reads), waiting[0])
            if first.bound is not None:
                yield first.bound
            if not first.statement.reads:
                yield from first.run_to_end()
                continue
            group = [part for part in waiting if part.bound == first.bound and part.statement.reads]
            batches = [part.statement.batch or (part.statement,) for part in group]
            results = iter((yield Statement("", reads=True, batch=tuple(each for batch in batches for each in batch))))
            for part, batch in zip(group, batches, strict=True):
                rows = [list(next(results)) for _ in batch]
                part.advance([*rows] if part.statement.batch else rows[0])
    finally:
        for part in parts:
            part.steps.close()
    return tuple(part.result for part in parts)


def read_flows(*flows: Flow[Any]) -> Flow[tuple[Any, ...]]:
    """``read_together`` as a flow, for a page that shows several lists."""
    return Flow(lambda: read_together(*(each.start() for each in flows)), writes=False)


class _Part:
    """One read of several: its next statement, None at its end, and the last binding before that statement."""

    def __init__(self, steps: Steps[Any]) -> None:
        self.steps = steps
        self.bound: Statement | None = None
        self.pending: Statement | None = None
        self.result: Any = None
        self.advance(None)

    @property
    def statement(self) -> Statement:
        assert self.pending is not None
        return self.pending

    def run_to_end(self) -> Steps[None]:
        try:
            while True:
                self.pending = self.steps.send((yield self.statement))
        except StopIteration as end:
            self.pending, self.result = None, end.value

    def advance(self, rows: Rows | None) -> None:
        try:
            self.pending = next(self.steps) if rows is None else self.steps.send(rows)
            while self.pending.binds:
                self.bound = self.pending
                self.pending = self.steps.send([])
        except StopIteration as end:
            self.pending, self.result = None, end.value


GRACE: Final = 1.0
CHECK_EVERY: Final = 0.5
"""Seconds. The limit may be lowered while a task waits, so it is checked again."""


class WaitLimit:
    """How long a process that may have to stop waits for its database.

    A stopping worker has statements under way, some on connections over which nothing arrives any more. When its time
    is over it sets ``until``, a time of the monotonic clock: later statements fail at once, and current waits end. One
    thread sets it; any thread may read it.
    """

    __slots__ = ("until",)

    def __init__(self) -> None:
        self.until = math.inf

    def left(self) -> float:
        return max(0.0, self.until - time.monotonic())

    async def wait_for(self, *tasks: asyncio.Task[Any]) -> None:
        """Wait until the tasks have ended or the limit has passed. A task that waits for a response then ends within
        the grace period; the others, which may wait for a connection from the pool, are cancelled."""
        waiting = {task for task in tasks if not task.done()}
        while waiting and self.until > time.monotonic() - GRACE:
            _, waiting = await asyncio.wait(waiting, timeout=min(CHECK_EVERY, self.left() + GRACE))
        for task in waiting:
            task.cancel()
        if waiting:
            await asyncio.wait(waiting, timeout=GRACE)


NO_LIMIT = WaitLimit()
wait_limit_of: ContextVar[WaitLimit] = ContextVar("holdfast_wait_limit", default=NO_LIMIT)
maintaining: ContextVar[bool] = ContextVar("holdfast_maintaining", default=False)
"""Whether the current statements are maintenance: they may use the connection of the exchanges while it is idle."""


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a blocking function in a new thread and await its result. Cancelling the wait does not stop the function.

    ``asyncio.to_thread`` shares a few threads with all handlers: calls that hang there would block a worker, and keep
    it from stopping. Everything that a worker itself depends on runs here.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    call = partial(copy_context().run, function, *args, **kwargs)

    def run() -> None:
        complete: partial[Any]
        try:
            complete = partial(_set, future, future.set_result, call())
        except BaseException as error:
            complete = partial(_set, future, future.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed, and no task waits
            loop.call_soon_threadsafe(complete)

    threading.Thread(target=run, name="holdfast-thread", daemon=True).start()
    return await future


def _set(future: asyncio.Future[Any], setter: Callable[[Any], None], value: object) -> None:
    if not future.done():
        setter(value)


class ReadRequest:
    """A request that only reads. ``standby``: whether a standby served its last read; None before the first."""

    standby: bool | None = None


read_request: ContextVar[ReadRequest | None] = ContextVar("holdfast_read_request", default=None)


VALUE: Final = 1_048_576
"""The largest value in the database, in bytes (``engine/payload.py``)."""
PAGE: Final = VALUE // 4
read_budget: ContextVar[int | None] = ContextVar("holdfast_read_budget", default=None)
"""The bytes of documents (payloads, results, step results, …) that one query may return, for callers who share a
process with others. None: all of them. Such reads run in separate threads, because decoding them takes time."""
_reads = ForkSafeExecutor(2, "holdfast-reads")
_large_reads = ForkSafeExecutor(1, "holdfast-large-reads")
_slow_reads = ForkSafeExecutor(2, "holdfast-slow-reads")


@contextlib.contextmanager
def reading_at_most(size: int) -> Iterator[None]:
    token = read_budget.set(size)
    try:
        yield
    finally:
        read_budget.reset(token)


async def read_in_thread(read: Callable[[], T]) -> T:
    """Call a read of bounded size, in one of a few threads."""
    return await asyncio.get_running_loop().run_in_executor(_reads, copy_context().run, read)


async def read_large(read: Callable[[], T]) -> T:
    """Call a read of the largest values in one thread. It must also convert what it has read into a response, so that
    the values of one request are decoded at a time: they take ten times their size in memory, and more."""
    with reading_at_most(VALUE):
        return await asyncio.get_running_loop().run_in_executor(_large_reads, copy_context().run, _trimmed, read)


async def read_slowly(read: Callable[[], T]) -> T:
    """Call a read that may take seconds, such as of a file or a search through many jobs, in one of two threads: other
    reads do not wait for it."""
    return await asyncio.get_running_loop().run_in_executor(_slow_reads, copy_context().run, _trimmed, read)


def _trimmed(read: Callable[[], T]) -> T:
    """Return freed memory to the system afterwards: glibc keeps it for each thread."""
    try:
        return read()
    finally:
        _trim(0)


_trim: Callable[[int], object] = lambda _: None  # noqa: E731
if sys.platform == "linux":
    _trim = getattr(ctypes.CDLL(None), "malloc_trim", _trim)


def return_memory_early() -> None:
    """For a process that only serves: give each large block back to the system when it is freed, and let threads share
    freed memory. Otherwise glibc keeps more with every large read."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_MMAP_THRESHOLD, 128 * 1024)
        libc.mallopt(_ARENA_MAX, 2)


_MMAP_THRESHOLD, _ARENA_MAX = -3, -8  # numbers of malloc.h

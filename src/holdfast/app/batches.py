"""Handlers for many jobs at once. Each job keeps its own claim, attempt and settlement: its handler is a call that
waits until enough jobs of its kind and tenant have come, and returns or raises what the batch gave for it.

A job that crashed before runs alone: one that kills its worker must not take the others to their limit of crashes.
"""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType, UnionType
from typing import Any, Final, Generic, TypeVar, Union, get_args, get_origin

from holdfast.context import current_run, leave
from holdfast.engine.job import Claim
from holdfast.engine.units import Duration, seconds
from holdfast.errors import HoldfastError, InvalidSetting
from holdfast.worker.threads import Threads

T = TypeVar("T")

WITHIN: Final = 1.0
MOST, LONGEST = 10_000, 60.0
_FIX: Final = "Write def index(documents: list[Document]) -> list[Result | Exception]."


@dataclass(frozen=True, slots=True)
class BatchItem(Generic[T]):
    """One job of a batch, for a handler with a parameter ``list[BatchItem[T]]``."""

    value: T
    """The argument of the job."""
    job_id: str
    attempt: int
    """The number of this attempt, from 1."""
    _key: str = field(repr=False)
    _waits: Callable[[], bool] = field(repr=False, compare=False)

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of the job: pass it to services that accept one."""
        return self._key

    @property
    def cancelled(self) -> bool:
        """Whether the job was cancelled, or has exceeded its timeout, while the batch runs. Its result is not used."""
        return not self._waits()


@dataclass(frozen=True, slots=True)
class BatchOptions:
    size: int
    within: float = WITHIN

    @classmethod
    def of(cls, size: object, within: Duration | None) -> BatchOptions:
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= MOST:
            raise InvalidSetting(f"batch must be a number from 1 to {MOST:,}, not {size!r}", code="invalid_setting")
        wait = WITHIN if within is None else seconds(within, "within")
        if wait > LONGEST:
            raise InvalidSetting("within must be at most one minute", code="invalid_duration")
        return cls(size, wait)


def one_job(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function with the signature of one job: the element of the list that the handler takes and returns."""
    parameters = list(inspect.signature(function).parameters.values())
    hints = typing.get_type_hints(function, include_extras=True)
    if len(parameters) != 1 or get_origin(hints.get(parameters[0].name)) not in (list, Sequence):
        raise InvalidSetting(
            f"the batch handler {function.__name__} must take one list of arguments", code="invalid_batch", fix=_FIX
        )
    name = parameters[0].name
    element = get_args(hints[name])[0]
    taken = get_args(element)[0] if get_origin(element) is BatchItem else element
    returned = _result_type(hints.get("return"))

    async def one(*_: Any, **__: Any) -> None: ...

    parameter = inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=taken)
    one.__signature__ = inspect.Signature([parameter], return_annotation=returned)  # type: ignore[attr-defined]
    one.__annotations__ = {name: taken, "return": returned}
    one.__name__, one.__doc__ = function.__name__, function.__doc__
    return one


def _result_type(hint: Any) -> Any:
    """The type of one result: ``list[R | Exception] | None`` gives ``R``."""
    for each in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
        if get_origin(each) in (list, Sequence):
            (inner,) = get_args(each)
            parts = get_args(inner) if get_origin(inner) in (Union, UnionType) else (inner,)
            rest = [part for part in parts if not (isinstance(part, type) and issubclass(part, BaseException))]
            return Union[tuple(rest)] if rest else None  # noqa: UP007  # of a tuple
    return Any


@dataclass(slots=True, eq=False)
class Item:
    claim: Claim
    value: Any
    future: asyncio.Future[Any]

    def waits(self) -> bool:
        return not self.future.done()

    def wrapped(self) -> BatchItem[Any]:
        claim = self.claim
        return BatchItem(self.value, claim.id, claim.attempt, f"{claim.tenant}:{claim.kind}:{claim.id}", self.waits)


@dataclass(frozen=True, slots=True)
class Raised:
    """The error of a whole batch. It is raised once for each job, each time with the traceback of the handler only."""

    error: Exception
    trace: TracebackType | None


class Batching:
    """The open batches of one kind in one worker."""

    def __init__(self, function: Callable[..., Any], options: BatchOptions, kind: str, threads: Threads) -> None:
        self._function = function
        self._kind = kind
        self._threads = threads
        self._wrapped = any(
            get_origin(get_args(hint)[0]) is BatchItem
            for hint in typing.get_type_hints(function).values()
            if get_origin(hint) in (list, Sequence)
        )
        self._open: dict[str, list[Item]] = {}
        """By tenant."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.size = options.size
        self.within = options.within
        self.jobs = 0
        """Jobs in open and running batches."""
        self.changed: Callable[[], None] = lambda: None

    @property
    def calls(self) -> int:
        """Batches that run: each takes one slot. A batch that is being collected takes none."""
        return len(self._tasks)

    async def run(self, **arguments: Any) -> Any:
        """The handler of one job: wait for its batch."""
        run = current_run()
        assert run is not None
        (value,) = arguments.values()
        item = Item(run.claim, value, asyncio.get_running_loop().create_future())
        self.jobs += 1
        self.changed()
        try:
            self._add(item)
            result = await item.future
        finally:
            self.jobs -= 1
            item.future.cancel()  # no result is expected any more, if there is none yet
            self._leave(item)
        if isinstance(result, Raised):
            raise result.error.with_traceback(result.trace)
        if isinstance(result, Exception):
            raise result
        return result

    def _add(self, item: Item) -> None:
        tenant = item.claim.tenant
        if item.claim.crashes:
            self._start([item])
            return
        items = self._open.setdefault(tenant, [])
        items.append(item)
        if len(items) >= self.size:
            self._flush(tenant)
        elif len(items) == 1:
            self._timers[tenant] = asyncio.get_running_loop().call_later(self.within, self._flush, tenant)

    def _flush(self, tenant: str) -> None:
        if (timer := self._timers.pop(tenant, None)) is not None:
            timer.cancel()
        if items := self._open.pop(tenant, None):
            self._start(items)

    def _leave(self, item: Item) -> None:
        """Take a cancelled job out of the batch that is being collected."""
        items = self._open.get(item.claim.tenant, [])
        if item in items:
            items.remove(item)
            if not items:
                self._flush(item.claim.tenant)

    def _start(self, items: list[Item]) -> None:
        task = asyncio.get_running_loop().create_task(self._call(items))
        self._tasks.add(task)
        task.add_done_callback(self._over)
        for item in items:
            item.future.add_done_callback(partial(self._stop_if_unwanted, task, items))

    def _stop_if_unwanted(self, task: asyncio.Task[None], items: list[Item], _: object) -> None:
        """Cancel a batch when all of its jobs were cancelled."""
        if all(item.future.cancelled() for item in items):
            task.cancel()

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.changed()

    async def _call(self, items: list[Item]) -> None:
        leave()  # code that the handler calls must not take one of the jobs for its own
        values = [item.wrapped() if self._wrapped else item.value for item in items]
        results: Sequence[Any]
        try:
            results = _checked(await self._invoke(values), len(items), self._kind)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            results = [Raised(RuntimeError(f"the handler of {self._kind} has cancelled itself"), error.__traceback__)]
        except Exception as error:
            results = [Raised(error, error.__traceback__)]
        except BaseException as error:  # SystemExit and the like end a handler, not the worker
            results = [Raised(RuntimeError(f"{type(error).__name__}: {error}"), error.__traceback__)]
        for n, item in enumerate(items):
            if item.waits():
                item.future.set_result(results[n if len(results) == len(items) else 0])

    def _invoke(self, values: list[Any]) -> Coroutine[Any, Any, Any] | Awaitable[Any]:
        if inspect.iscoroutinefunction(self._function):
            return self._function(values)  # type: ignore[no-any-return]
        return self._threads.run(self._kind, partial(self._function, values))


def _checked(results: Any, count: int, kind: str) -> Sequence[Any]:
    if results is None:
        return [None] * count
    if not isinstance(results, list | tuple) or len(results) != count:
        got = f"{len(results)} results" if isinstance(results, list | tuple) else type(results).__name__
        raise HoldfastError(
            f"the batch handler of {kind} must return a result or an exception for each of {count} jobs, not {got}",
            code="batch_results",
            fix="Return a list in the order of the arguments, or None.",
        )
    return results

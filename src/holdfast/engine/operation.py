"""One definition for the sync and the async form of an operation.

An operation of a namespace (``app.limits``, ``client.jobs``) is written as a generator: it yields requests to the
outside (a transaction, an HTTP request) and is sent their results. The namespace performs them, blocking or awaited, so
the body contains neither I/O nor ``await``::

    class Limits(StoreNamespace):
        @operation
        def set(self, **options: Unpack[LimitOptions]) -> Program[Limit]:
            "Set a limit …"
            return (yield from run(self._store.limits.set(Rule.of(**options), …)))

        aset = awaited(set)

Each ``yield`` is one transaction or one request. If it fails, its error is raised at the ``yield``.
``stream`` and ``awaited_stream`` do the same for operations that are iterated over.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from dataclasses import dataclass
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

P = ParamSpec("P")
T = TypeVar("T")
Y = TypeVar("Y")
R = TypeVar("R")

Program = Generator[Any, Any, T]


@dataclass(frozen=True, slots=True)
class Emit(Generic[T]):
    """One item of a stream, for the caller that iterates over it."""

    item: T


Items = Generator[Emit[T] | Any, Any, None]


class Namespace(ABC):
    """Runs the programs of its operations. Subclasses perform one yielded item."""

    __slots__ = ()

    _sync_in_threads = True
    """Whether sync forms may be used in a thread of an async program."""

    @abstractmethod
    def _perform(self, item: Any) -> Any: ...

    @abstractmethod
    async def _aperform(self, item: Any) -> Any: ...

    def _begin(self, program: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Start the program of an operation. The client starts one that sends its inputs instead."""
        return program(self, *args, **kwargs)

    def _iterate(self, program: Items[T]) -> Iterator[T]:
        try:
            item = next(program)
            while True:
                if isinstance(item, Emit):
                    yield item.item
                    item = program.send(None)
                    continue
                try:
                    result = self._perform(item)
                except BaseException as error:
                    item = program.throw(error)
                else:
                    item = program.send(result)
        except StopIteration:
            return
        finally:
            program.close()

    async def _aiterate(self, program: Items[T]) -> AsyncIterator[T]:
        try:
            item = next(program)
            while True:
                if isinstance(item, Emit):
                    yield item.item
                    item = program.send(None)
                    continue
                try:
                    result = await self._aperform(item)
                except BaseException as error:
                    item = program.throw(error)
                else:
                    item = program.send(result)
        except StopIteration:
            return
        finally:
            program.close()


def drive(program: Generator[Y, Any, T], perform: Callable[[Y], Any], thrown: type[BaseException] = BaseException) -> T:
    """Run a generator to its end: perform each item that it yields, and send it the result. An error of type ``thrown``
    is raised at the ``yield``, so that the generator can undo its work; it propagates unless the generator handles it.
    """
    try:
        item = next(program)
        while True:
            try:
                result = perform(item)
            except thrown as error:
                item = program.throw(error)
            else:
                item = program.send(result)
    except StopIteration as end:
        value: T = end.value
        return value
    finally:
        program.close()


async def adrive(
    program: Generator[Y, Any, T],
    perform: Callable[[Y], Awaitable[Any]],
    thrown: type[BaseException] = BaseException,
) -> T:
    """``drive`` on an event loop."""
    try:
        item = next(program)
        while True:
            try:
                result = await perform(item)
            except thrown as error:
                item = program.throw(error)
            else:
                item = program.send(result)
    except StopIteration as end:
        value: T = end.value
        return value
    finally:
        program.close()


class _Form(Generic[P, R], ABC):
    """A descriptor that makes a method of a program."""

    def __init__(self, program: Callable[..., Any]) -> None:
        self.program = program
        self.__doc__ = program.__doc__

    def __set_name__(self, owner: type[Namespace], name: str) -> None:
        self.owner = owner

    @overload
    def __get__(self, namespace: None, owner: object = None) -> Self: ...
    @overload
    def __get__(self, namespace: Namespace, owner: object = None) -> Callable[P, R]: ...
    def __get__(self, namespace: Namespace | None, owner: object = None) -> Any:
        return self if namespace is None else self._bound(namespace)

    @abstractmethod
    def _bound(self, namespace: Namespace) -> Callable[P, R]: ...

    def _method(self, namespace: Namespace, run: Callable[[Any], R]) -> Callable[P, R]:
        @functools.wraps(MethodType(self.program, namespace))  # bound, so that help() leaves out self
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return run(namespace._begin(self.program, args, kwargs))

        return call


class operation(_Form[P, T]):
    """A method written as a program. Calling it blocks until the program has ended."""

    def __init__(self, program: Callable[Concatenate[Any, P], Program[T]]) -> None:
        super().__init__(program)

    def _bound(self, namespace: Namespace) -> Callable[P, T]:
        return self._method(namespace, lambda program: drive(program, namespace._perform))


class awaited(_Form[P, Coroutine[Any, Any, T]], Generic[P, T]):
    """The async form of an operation: ``aset = awaited(set)``."""

    def __init__(self, form: operation[P, T]) -> None:
        super().__init__(form.program)

    def _bound(self, namespace: Namespace) -> Callable[P, Coroutine[Any, Any, T]]:
        # Not ``_method``, because this has to be a coroutine function.
        @functools.wraps(MethodType(self.program, namespace))
        async def call(*args: P.args, **kwargs: P.kwargs) -> T:
            result: T = await adrive(namespace._begin(self.program, args, kwargs), namespace._aperform)
            return result

        return call


class stream(_Form[P, Iterator[T]], Generic[P, T]):
    """A method written as a program that emits items. Calling it gives an iterator."""

    def __init__(self, program: Callable[Concatenate[Any, P], Items[T]]) -> None:
        super().__init__(program)

    def _bound(self, namespace: Namespace) -> Callable[P, Iterator[T]]:
        return self._method(namespace, namespace._iterate)


class awaited_stream(_Form[P, AsyncIterator[T]], Generic[P, T]):
    """The async form of a stream: ``aread = awaited_stream(read)``, for ``async for``."""

    def __init__(self, form: stream[P, T]) -> None:
        super().__init__(form.program)

    def _bound(self, namespace: Namespace) -> Callable[P, AsyncIterator[T]]:
        return self._method(namespace, namespace._aiterate)

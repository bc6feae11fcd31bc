"""``RemoteNamespace``, paging helpers, the two runners, retries and redirects.

Namespaces of the remote client (``Jobs``, ``Approvals`` …) are written once, as methods that make flows. With a
``SyncRunner`` a method returns its result; with an ``AsyncRunner`` it is awaited. The type checker sees both forms.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from holdfast.remote.link import Link, Outgoing, answer_to
from holdfast.remote.requests import Emit, Open, Pause, Read, Reply, Request, Send, Step, Steps, Unreachable, get
from holdfast.remote.responses import checked, read, read_page, unreadable
from holdfast.remote.transport import AsyncStream, AsyncTransport, Stream, Transport

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")

Items = Generator[Step | Emit[T], Any, None]


class Runner:
    """Carries out the steps of flows, for one service."""

    def __init__(self, link: Link) -> None:
        self.link = link


class SyncRunner(Runner):
    """In the caller's thread. Several may use it at once."""

    def __init__(self, link: Link, transport: Transport) -> None:
        super().__init__(link)
        self.transport = transport

    def run(self, flow: Steps[T]) -> T:
        try:
            step = next(flow)
            while True:
                step = flow.send(self._carry_out(step))
        except StopIteration as end:
            found: T = end.value
            return found
        finally:
            flow.close()

    def iterate(self, flow: Items[T]) -> Iterator[T]:
        stream: Stream | None = None
        try:
            step = next(flow)
            while True:
                got: Any = None
                if isinstance(step, Emit):
                    yield step.item
                elif isinstance(step, Read):
                    got = _told(stream.read) if stream is not None else b""
                elif isinstance(step, Open):
                    if stream is not None:
                        stream.close()
                    opened = _told(functools.partial(self.transport.open, self._outgoing(step)))
                    stream = None if isinstance(opened, Unreachable) else opened
                    got = opened if isinstance(opened, Unreachable) else opened.reply
                else:
                    got = self._carry_out(step)
                step = flow.send(got)
        except StopIteration:
            return
        finally:
            if stream is not None:
                stream.close()
            flow.close()

    def _carry_out(self, step: Step) -> Reply | Unreachable | None:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        assert isinstance(step, Send)
        return _told(functools.partial(self.transport.send, self._outgoing(step)))

    def _outgoing(self, step: Send | Open) -> Outgoing:
        return self.link.outgoing(step.request)


class AsyncRunner(Runner):
    """On the event loop that is running."""

    def __init__(self, link: Link, transport: AsyncTransport) -> None:
        super().__init__(link)
        self.transport = transport

    async def run(self, flow: Steps[T]) -> T:
        try:
            step = next(flow)
            while True:
                step = flow.send(await self._carry_out(step))
        except StopIteration as end:
            found: T = end.value
            return found
        finally:
            flow.close()

    async def iterate(self, flow: Items[T]) -> AsyncIterator[T]:
        stream: AsyncStream | None = None
        try:
            step = next(flow)
            while True:
                got: Any = None
                if isinstance(step, Emit):
                    yield step.item
                elif isinstance(step, Read):
                    got = await _atold(stream.read()) if stream is not None else b""
                elif isinstance(step, Open):
                    if stream is not None:
                        await stream.aclose()
                    opened = await _atold(self.transport.open(self.link.outgoing(step.request)))
                    stream = None if isinstance(opened, Unreachable) else opened
                    got = opened if isinstance(opened, Unreachable) else opened.reply
                else:
                    got = await self._carry_out(step)
                step = flow.send(got)
        except StopIteration:
            return
        finally:
            if stream is not None:
                await stream.aclose()
            flow.close()

    async def _carry_out(self, step: Step) -> Reply | Unreachable | None:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        assert isinstance(step, Send)
        return await _atold(self.transport.send(self.link.outgoing(step.request)))


def _told(act: Callable[[], T]) -> T | Unreachable:
    """That nobody answered, as a value: the flow says what to make of it."""
    try:
        return act()
    except Unreachable as why:
        return why


async def _atold(act: Coroutine[Any, Any, T]) -> T | Unreachable:
    try:
        return await act
    except Unreachable as why:
        return why


MOST = 200
"""The service puts no more into a page."""
C = TypeVar("C", bound=Runner)


class RemoteNamespace(Generic[C]):
    """Something the service knows, with the runner that its calls go through."""

    def __init__(self, runner: C) -> None:
        self._runner = runner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._runner.link.base.url!r})"

    # --- the parts that flows are made of ---

    def _ask(self, request: Request) -> Steps[Any]:
        """The document of the answer."""
        link = self._runner.link
        reply = yield from answer_to(request, link.base, link.retrying)
        return checked(reply, link.token)

    def _read(self, kind: type[U], request: Request) -> Steps[U]:
        return read(kind, (yield from self._ask(request)))

    def _items(self, kind: type[U], request: Request) -> Steps[list[U]]:
        """Those of one page."""
        return read_page(kind, (yield from self._ask(request)))[0]

    def _every(self, record: type[U], path: str, /, **query: Any) -> Items[U]:
        """All there are, for whoever iterates: a page is asked for when the one before was used up."""
        place: str | None = None
        while True:
            last = place
            page, place = read_page(record, (yield from self._ask(get(path, after=place, limit=MOST, **query))))
            for each in page:
                yield Emit(each)
            if place is None:
                return
            if place == last:
                raise unreadable("page", "the next one is the same again")

    def _some(
        self, record: type[U], path: str, limit: int, after: str | None = None, /, **query: Any
    ) -> Steps[list[U]]:
        """As many as asked for, in pages if need be."""
        found: list[U] = []
        place = after
        while len(found) < limit:
            last, size = place, min(MOST, limit - len(found))
            page, place = read_page(record, (yield from self._ask(get(path, after=place, limit=size, **query))))
            found += page
            if place is None or place == last:
                break
        return found

    def _pages(self, record: type[U], path: str, /, **query: Any) -> Steps[list[U]]:
        """All of a list that is not long, page by page."""
        found: list[U] = []
        place: str | None = None
        while True:
            last = place
            page, place = read_page(record, (yield from self._ask(get(path, after=place, **query))))
            found += page
            if place is None:
                return found
            if place == last:
                raise unreadable("page", "the next one is the same again")


class verb(Generic[P, T]):  # it is used as a decorator
    """A method that makes a flow, as a call of either colour."""

    def __init__(self, flow: Callable[Concatenate[Any, P], Steps[T]]) -> None:
        self._flow = flow
        self.__doc__ = flow.__doc__

    @overload
    def __get__(self, noun: RemoteNamespace[SyncRunner], owner: object = None) -> Callable[P, T]: ...
    @overload
    def __get__(
        self, noun: RemoteNamespace[AsyncRunner], owner: object = None
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, noun: Any, owner: object = None) -> Any:
        if noun is None:
            return self

        @functools.wraps(self._flow)
        def call(*args: Any, **kwargs: Any) -> Any:
            return noun._runner.run(self._flow(noun, *args, **kwargs))

        return call


class many(Generic[P, T]):
    """The same for what is iterated over, page by page or as it comes."""

    def __init__(self, flow: Callable[Concatenate[Any, P], Items[T]]) -> None:
        self._flow = flow
        self.__doc__ = flow.__doc__

    @overload
    def __get__(self, noun: RemoteNamespace[SyncRunner], owner: object = None) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, noun: RemoteNamespace[AsyncRunner], owner: object = None) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, noun: Any, owner: object = None) -> Any:
        if noun is None:
            return self

        @functools.wraps(self._flow)
        def call(*args: Any, **kwargs: Any) -> Any:
            return noun._runner.iterate(self._flow(noun, *args, **kwargs))

        return call

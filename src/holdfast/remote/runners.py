"""``Runner`` carries out requests, blocking or awaited; ``RemoteNamespace`` is the base of the client's namespaces.

Operations are written once, as programs that yield requests (``engine/operation.py``). Errors of the connection are
results, not exceptions: the program decides whether to send a request again.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from holdfast.engine.operation import Emit, Items, Namespace
from holdfast.remote.http_requests import Open, Pause, Read, Reply, Request, Send, Step, Steps, Unreachable, get
from holdfast.remote.link import Link, answer_to
from holdfast.remote.responses import checked, read, read_page, unreadable
from holdfast.remote.transport import (
    AsyncHttpxTransport,
    AsyncStream,
    AsyncTransport,
    HttpxTransport,
    Stream,
    Transport,
    closed,
)

T = TypeVar("T")
U = TypeVar("U")


class Runner:
    """Carries out the steps of programs for one service, blocking or awaited. Threads and event loops may share one."""

    def __init__(
        self, link: Link, transport: Transport | None = None, async_transport: AsyncTransport | None = None
    ) -> None:
        self.link = link
        self._transport, self._async_transport = transport, async_transport
        self._creating = threading.Lock()
        self._closed = False

    @property
    def transport(self) -> Transport:
        with self._creating:
            self._check_open()
            if self._transport is None:
                self._transport = HttpxTransport()
            return self._transport

    @property
    def async_transport(self) -> AsyncTransport:
        with self._creating:
            self._check_open()
            if self._async_transport is None:
                self._async_transport = AsyncHttpxTransport()
            return self._async_transport

    def _check_open(self) -> None:
        if self._closed:
            raise closed()

    def close(self) -> None:
        with self._creating:
            self._closed = True
        if self._transport is not None:
            self._transport.close()

    async def aclose(self) -> None:
        self.close()
        if self._async_transport is not None:
            await self._async_transport.aclose()

    def iterate(self, program: Items[T]) -> Iterator[T]:
        stream: Stream | None = None
        try:
            step = next(program)
            while True:
                result: Any = None
                if isinstance(step, Emit):
                    yield step.item
                elif isinstance(step, Read):
                    result = _told(stream.read) if stream is not None else b""
                elif isinstance(step, Open):
                    if stream is not None:
                        stream.close()
                    opened = _told(functools.partial(self.transport.open, self.link.outgoing(step.request)))
                    stream = None if isinstance(opened, Unreachable) else opened
                    result = opened if isinstance(opened, Unreachable) else opened.reply
                else:
                    result = self.perform(step)
                step = program.send(result)
        except StopIteration:
            return
        finally:
            if stream is not None:
                stream.close()
            program.close()

    async def aiterate(self, program: Items[T]) -> AsyncIterator[T]:
        stream: AsyncStream | None = None
        try:
            step = next(program)
            while True:
                result: Any = None
                if isinstance(step, Emit):
                    yield step.item
                elif isinstance(step, Read):
                    result = await _atold(stream.read()) if stream is not None else b""
                elif isinstance(step, Open):
                    if stream is not None:
                        await stream.aclose()
                    opened = await _atold(self.async_transport.open(self.link.outgoing(step.request)))
                    stream = None if isinstance(opened, Unreachable) else opened
                    result = opened if isinstance(opened, Unreachable) else opened.reply
                else:
                    result = await self.aperform(step)
                step = program.send(result)
        except StopIteration:
            return
        finally:
            if stream is not None:
                await stream.aclose()
            program.close()

    def perform(self, step: Step) -> Reply | Unreachable | None:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        assert isinstance(step, Send)
        return _told(functools.partial(self.transport.send, self.link.outgoing(step.request)))

    async def aperform(self, step: Step) -> Reply | Unreachable | None:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        assert isinstance(step, Send)
        return await _atold(self.async_transport.send(self.link.outgoing(step.request)))


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


class RemoteNamespace(Namespace):
    """A noun of the service, with the runner that carries out its operations."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def _perform(self, item: Step) -> Any:
        return self._runner.perform(item)

    async def _aperform(self, item: Step) -> Any:
        return await self._runner.aperform(item)

    def _iterate(self, program: Items[T]) -> Iterator[T]:
        return self._runner.iterate(program)

    def _aiterate(self, program: Items[T]) -> AsyncIterator[T]:
        return self._runner.aiterate(program)

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

    def _bytes(self, request: Request) -> Steps[bytes]:
        """The body of the answer as it is."""
        link = self._runner.link
        reply = yield from answer_to(request, link.base, link.retrying)
        if reply.status != 200:
            checked(reply, link.token)
        return bytes(reply.body)

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

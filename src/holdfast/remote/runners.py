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
from holdfast.remote.link import Link, send_with_retries
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
                    result = _or_unreachable(stream.read) if stream is not None else b""
                elif isinstance(step, Open):
                    if stream is not None:
                        stream.close()
                    opened = _or_unreachable(functools.partial(self.transport.open, self.link.outgoing(step.request)))
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
                    result = await _aor_unreachable(stream.read()) if stream is not None else b""
                elif isinstance(step, Open):
                    if stream is not None:
                        await stream.aclose()
                    opened = await _aor_unreachable(self.async_transport.open(self.link.outgoing(step.request)))
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
        return _or_unreachable(functools.partial(self.transport.send, self.link.outgoing(step.request)))

    async def aperform(self, step: Step) -> Reply | Unreachable | None:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        assert isinstance(step, Send)
        return await _aor_unreachable(self.async_transport.send(self.link.outgoing(step.request)))


def _or_unreachable(send: Callable[[], T]) -> T | Unreachable:
    """A lost connection as a value: the program decides what to do."""
    try:
        return send()
    except Unreachable as why:
        return why


async def _aor_unreachable(send: Coroutine[Any, Any, T]) -> T | Unreachable:
    try:
        return await send
    except Unreachable as why:
        return why


MAX_PAGE = 200
"""The largest page of the service."""


class RemoteNamespace(Namespace):
    """A namespace of the client, with the runner that carries out its operations."""

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

    # --- the parts of operations ---

    def _request(self, request: Request) -> Steps[Any]:
        """The JSON of the response."""
        link = self._runner.link
        reply = yield from send_with_retries(request, link.base, link.retrying)
        return checked(reply, link.token)

    def _read(self, kind: type[U], request: Request) -> Steps[U]:
        return read(kind, (yield from self._request(request)))

    def _bytes(self, request: Request) -> Steps[bytes]:
        """The body of the response."""
        link = self._runner.link
        reply = yield from send_with_retries(request, link.base, link.retrying)
        if reply.status != 200:
            checked(reply, link.token)
        return bytes(reply.body)

    def _items(self, kind: type[U], request: Request) -> Steps[list[U]]:
        """The items of one page."""
        return read_page(kind, (yield from self._request(request)))[0]

    def _stream(self, record: type[U], path: str, /, **query: Any) -> Items[U]:
        """All items, for iteration: a page is read when the previous one is used up."""
        cursor: str | None = None
        while True:
            last, request = cursor, get(path, after=cursor, limit=MAX_PAGE, **query)
            page, cursor = read_page(record, (yield from self._request(request)))
            for item in page:
                yield Emit(item)
            if cursor is None:
                return
            if cursor == last:
                raise unreadable("page", "the next one is the same again")

    def _limited(
        self, record: type[U], path: str, limit: int, after: str | None = None, /, **query: Any
    ) -> Steps[list[U]]:
        """Up to ``limit`` items, in several pages if necessary."""
        items: list[U] = []
        cursor = after
        while len(items) < limit:
            last, size = cursor, min(MAX_PAGE, limit - len(items))
            page, cursor = read_page(record, (yield from self._request(get(path, after=cursor, limit=size, **query))))
            items += page
            if cursor is None or cursor == last:
                break
        return items

    def _all(self, record: type[U], path: str, /, **query: Any) -> Steps[list[U]]:
        """All items of a short list, page by page."""
        items: list[U] = []
        cursor: str | None = None
        while True:
            last = cursor
            page, cursor = read_page(record, (yield from self._request(get(path, after=cursor, **query))))
            items += page
            if cursor is None:
                return items
            if cursor == last:
                raise unreadable("page", "the next one is the same again")

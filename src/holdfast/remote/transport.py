"""What carries a request: a small protocol of our own, and httpx2 behind it.

Every answer is bounded in time and in size, whoever sends it. Redirects are not followed here, cookies are not kept,
and proxies of the environment are not used.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.errors import InvalidSetting
from holdfast.remote.http_requests import Reply, Unreachable
from holdfast.remote.link import Outgoing

if TYPE_CHECKING:
    import httpx2

LARGEST = 64 * 1024 * 1024
CONNECT = 10.0
IDLE = 3.0
"""Seconds for which an idle connection is kept: less than servers do (five, where nobody says otherwise), since what is
sent while they close it is lost, and may not be sent again."""


class Stream(Protocol):
    """An answer that is read as it comes. ``read`` answers no bytes at the end."""

    reply: Reply

    def read(self) -> bytes: ...
    def close(self) -> None: ...


class Transport(Protocol):
    """Both raise ``Unreachable`` when there is no answer."""

    def send(self, outgoing: Outgoing) -> Reply: ...
    def open(self, outgoing: Outgoing) -> Stream: ...
    def close(self) -> None: ...


class AsyncStream(Protocol):
    reply: Reply

    async def read(self) -> bytes: ...
    async def aclose(self) -> None: ...


class AsyncTransport(Protocol):
    async def send(self, outgoing: Outgoing) -> Reply: ...
    async def open(self, outgoing: Outgoing) -> AsyncStream: ...
    async def aclose(self) -> None: ...


def httpx() -> Any:
    try:
        import httpx2
    except ImportError:
        raise InvalidSetting(
            "the client of the service needs an extra that is not installed",
            code="missing_extra",
            fix="pip install 'holdfast[http]'",
        ) from None
    return httpx2


def _of_ours(kind: str) -> Any:
    """No limit to connections: whoever follows or waits keeps one, and must not keep others from asking."""
    limits = httpx().Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=IDLE)
    return getattr(httpx(), kind)(trust_env=False, follow_redirects=False, limits=limits)


def _timeout(outgoing: Outgoing) -> Any:
    """Between two bytes it may take as long as the whole; the whole is watched besides."""
    return httpx().Timeout(outgoing.within, connect=min(CONNECT, outgoing.within))


def _asked(outgoing: Outgoing) -> dict[str, Any]:
    return {
        "method": outgoing.method,
        "url": outgoing.url,
        "params": list(outgoing.query) or None,
        "headers": outgoing.headers,
        "content": outgoing.body,
        "timeout": _timeout(outgoing),
    }


def _head(response: httpx2.Response) -> Reply:
    return Reply(response.status_code, {name.lower(): value for name, value in response.headers.items()})


def _lost(error: Exception) -> Unreachable:
    """In our words: those of the library may be empty, and name what only it knows."""
    name = type(error).__name__
    if "Timeout" in name:
        return Unreachable("the time was up")
    if name == "ConnectError":
        return Unreachable(f"there is no connection ({str(error)[:200]})")
    if name == "DecodingError":
        return Unreachable("the answer cannot be decoded")
    return Unreachable("the connection was lost before the answer was whole")


def closed() -> InvalidSetting:
    return InvalidSetting("this client has been closed", code="client_closed")


def _elsewhere(what: str) -> InvalidSetting:
    return InvalidSetting(
        f"the given httpx2 client was first used in another {what} and holds its connections",
        code="client_elsewhere",
        fix=f"Create one per {what}.",
    )


class _Meter:
    """How much of an answer may still come, in bytes and in seconds."""

    def __init__(self, within: float) -> None:
        self._end, self._size = time.monotonic() + within, 0

    def count(self, chunk: bytes) -> bytes:
        self._size += len(chunk)
        if self._size > LARGEST:
            raise Unreachable(f"the answer is larger than {LARGEST:,} bytes")
        if time.monotonic() > self._end:
            raise Unreachable("the time was up")
        return chunk


class HttpxTransport:
    """``client`` is for those who need certificates, a proxy or a transport of their own.

    A fork has connections of its own: on those of its parent it would be given the parent's answers.
    """

    def __init__(self, client: httpx2.Client | None = None) -> None:
        self._given = client is not None
        self._client: httpx2.Client = client or _of_ours("Client")
        self._used_in: int | None = None
        self._under_way: set[_Incoming] = set()

    def send(self, outgoing: Outgoing) -> Reply:
        stream = self.open(outgoing)
        meter = _Meter(outgoing.within)
        try:
            body = b"".join(iter(lambda: meter.count(stream.read()), b""))
        finally:
            stream.close()
        return Reply(stream.reply.status, stream.reply.headers, body)

    def open(self, outgoing: Outgoing) -> _Incoming:
        client = self._here()
        try:
            response = client.send(client.build_request(**_asked(outgoing)), stream=True, follow_redirects=False)
        except (httpx().RequestError, httpx().InvalidURL) as error:
            raise _lost(error) from None
        except RuntimeError:
            if not client.is_closed:
                raise
            raise closed() from None
        client.cookies.clear()
        return _Incoming(response, self._under_way)

    def _here(self) -> httpx2.Client:
        if self._used_in not in (None, os.getpid()):
            if self._given:
                raise _elsewhere("process")
            self._client = _of_ours("Client")
        self._used_in = os.getpid()
        return self._client

    def close(self) -> None:
        """Whoever reads a stream in another thread is woken."""
        if self._used_in in (None, os.getpid()):
            for incoming in list(self._under_way):
                incoming.cut()
            self._client.close()


class _Incoming:
    def __init__(self, response: httpx2.Response, under_way: set[_Incoming]) -> None:
        self.reply = _head(response)
        self._response = response
        self._chunks: Iterator[bytes] = response.iter_bytes()
        self._under_way = under_way
        under_way.add(self)

    def read(self) -> bytes:
        try:
            return next((chunk for chunk in self._chunks if chunk), b"")
        except (httpx().RequestError, httpx().StreamError) as error:
            raise _lost(error) from None

    def cut(self) -> None:
        """Closing a socket does not wake who waits for it in another thread; ending the connection does."""
        stream = self._response.extensions.get("network_stream")
        connection = stream and stream.get_extra_info("socket")
        if isinstance(connection, socket.socket):
            with contextlib.suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)  # beneath any encryption, which its reader holds

    def close(self) -> None:
        self._under_way.discard(self)
        self._response.close()


class AsyncHttpxTransport:
    """Each event loop has connections of its own: those of another, or of one that has ended, never answer."""

    def __init__(self, client: httpx2.AsyncClient | None = None) -> None:
        self._given = client is not None
        self._first: httpx2.AsyncClient = client or _of_ours("AsyncClient")
        self._first_on: weakref.ref[asyncio.AbstractEventLoop] | None = None
        self._others: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx2.AsyncClient]
        self._others = weakref.WeakKeyDictionary()
        self._over = False

    async def send(self, outgoing: Outgoing) -> Reply:
        meter = _Meter(outgoing.within)
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(outgoing.within):
                stream = await self.open(outgoing)
                try:
                    while chunk := meter.count(await stream.read()):
                        parts.append(chunk)
                finally:
                    await stream.aclose()
        except TimeoutError:
            raise Unreachable("the time was up") from None
        return Reply(stream.reply.status, stream.reply.headers, b"".join(parts))

    async def open(self, outgoing: Outgoing) -> _AsyncIncoming:
        client = self._here()
        try:
            request = client.build_request(**_asked(outgoing))
            response = await client.send(request, stream=True, follow_redirects=False)
        except (httpx().RequestError, httpx().InvalidURL) as error:
            raise _lost(error) from None
        except RuntimeError:
            if not client.is_closed:
                raise
            raise closed() from None
        client.cookies.clear()
        return _AsyncIncoming(response)

    def _here(self) -> httpx2.AsyncClient:
        if self._over:
            raise closed()
        loop = asyncio.get_running_loop()
        if self._first_on is None:
            self._first_on = weakref.ref(loop)
        if self._first_on() is loop:
            return self._first
        if self._given:
            raise _elsewhere("event loop")
        if loop not in self._others:
            self._others[loop] = _of_ours("AsyncClient")
        return self._others[loop]

    async def aclose(self) -> None:
        """The connections of other loops end with these: nobody here can wait for that."""
        self._over = True
        loop = asyncio.get_running_loop()
        first = self._given or self._first_on is None or self._first_on() is loop
        client = self._first if first else self._others.pop(loop, None)
        if client is not None:
            await client.aclose()


class _AsyncIncoming:
    def __init__(self, response: httpx2.Response) -> None:
        self.reply = _head(response)
        self._response = response
        self._chunks: AsyncIterator[bytes] = response.aiter_bytes()

    async def read(self) -> bytes:
        try:
            async for chunk in self._chunks:
                if chunk:
                    return chunk
        except (httpx().RequestError, httpx().StreamError) as error:
            raise _lost(error) from None
        return b""

    async def aclose(self) -> None:
        await self._response.aclose()

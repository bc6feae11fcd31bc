"""The transport of requests: a small protocol, implemented with httpx2.

Every response is bounded in time and size. Redirects are not followed here, cookies are not stored, and proxies of the
environment are not used.
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
from holdfast.remote.http_requests import Outgoing, Reply, Unreachable

if TYPE_CHECKING:
    import httpx2

MAX_RESPONSE = 64 * 1024 * 1024
CONNECT_TIMEOUT = 10.0
KEEPALIVE = 3.0
"""Seconds for which an idle connection is kept: less than the default of servers (five), since a request that is sent
while the server closes the connection is lost and may not be repeatable."""


class Stream(Protocol):
    """A response that is read while it arrives. ``read`` returns no bytes at the end."""

    reply: Reply

    def read(self) -> bytes: ...
    def close(self) -> None: ...


class Transport(Protocol):
    """``send`` and ``open`` raise ``Unreachable`` if there is no response."""

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


def _new_client(kind: str) -> Any:
    """No limit on connections: a stream or a waiting request occupies one, and must not block others."""
    limits = httpx().Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=KEEPALIVE)
    return getattr(httpx(), kind)(trust_env=False, follow_redirects=False, limits=limits)


def _timeout(outgoing: Outgoing) -> Any:
    """The limit between two bytes is that of the whole response, which is checked separately."""
    return httpx().Timeout(outgoing.within, connect=min(CONNECT_TIMEOUT, outgoing.within))


def _request_arguments(outgoing: Outgoing) -> dict[str, Any]:
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


def _unreachable(error: Exception) -> Unreachable:
    """The error with a message of its own: those of the library may be empty or mention its internals."""
    name = type(error).__name__
    if "Timeout" in name:
        return Unreachable("timed out")
    if name == "ConnectError":
        return Unreachable(f"cannot connect ({str(error)[:200]})")
    if name == "DecodingError":
        return Unreachable("the response cannot be decoded")
    return Unreachable("the connection was lost before the response was complete")


def closed() -> InvalidSetting:
    return InvalidSetting("this client has been closed", code="client_closed")


def _used_elsewhere(what: str) -> InvalidSetting:
    return InvalidSetting(
        f"the given httpx2 client was first used in another {what} and holds its connections",
        code="client_elsewhere",
        fix=f"Create one per {what}.",
    )


class _Meter:
    """Limits the size and the time of one response."""

    def __init__(self, within: float) -> None:
        self._end, self._size = time.monotonic() + within, 0

    def count(self, chunk: bytes) -> bytes:
        self._size += len(chunk)
        if self._size > MAX_RESPONSE:
            raise Unreachable(f"the response is larger than {MAX_RESPONSE:,} bytes")
        if time.monotonic() > self._end:
            raise Unreachable("timed out")
        return chunk


class HttpxTransport:
    """``client`` is an httpx2 client with your own certificates, proxy or transport.

    A forked process opens its own connections: on those of its parent it would receive the parent's responses.
    """

    def __init__(self, client: httpx2.Client | None = None) -> None:
        self._given = client is not None
        self._client: httpx2.Client = client or _new_client("Client")
        self._used_in: int | None = None
        self._open_streams: set[_Incoming] = set()

    def send(self, outgoing: Outgoing) -> Reply:
        stream = self.open(outgoing)
        meter = _Meter(outgoing.within)
        try:
            body = b"".join(iter(lambda: meter.count(stream.read()), b""))
        finally:
            stream.close()
        return Reply(stream.reply.status, stream.reply.headers, body)

    def open(self, outgoing: Outgoing) -> _Incoming:
        client = self._client_here()
        try:
            request = client.build_request(**_request_arguments(outgoing))
            response = client.send(request, stream=True, follow_redirects=False)
        except (httpx().RequestError, httpx().InvalidURL) as error:
            raise _unreachable(error) from None
        except RuntimeError:
            if not client.is_closed:
                raise
            raise closed() from None
        client.cookies.clear()
        return _Incoming(response, self._open_streams)

    def _client_here(self) -> httpx2.Client:
        if self._used_in not in (None, os.getpid()):
            if self._given:
                raise _used_elsewhere("process")
            self._client = _new_client("Client")
        self._used_in = os.getpid()
        return self._client

    def close(self) -> None:
        """Close the connections. Threads that read a stream are woken."""
        if self._used_in in (None, os.getpid()):
            for incoming in list(self._open_streams):
                incoming.cut()
            self._client.close()


class _Incoming:
    def __init__(self, response: httpx2.Response, open_streams: set[_Incoming]) -> None:
        self.reply = _head(response)
        self._response = response
        self._chunks: Iterator[bytes] = response.iter_bytes()
        self._open_streams = open_streams
        open_streams.add(self)

    def read(self) -> bytes:
        try:
            return next((chunk for chunk in self._chunks if chunk), b"")
        except (httpx().RequestError, httpx().StreamError) as error:
            raise _unreachable(error) from None

    def cut(self) -> None:
        """Shut the connection down: closing a socket does not wake a thread that reads from it."""
        stream = self._response.extensions.get("network_stream")
        connection = stream and stream.get_extra_info("socket")
        if isinstance(connection, socket.socket):
            with contextlib.suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)  # below TLS, whose lock the reader holds

    def close(self) -> None:
        self._open_streams.discard(self)
        self._response.close()


class AsyncHttpxTransport:
    """Each event loop has its own connections: those of another loop, or of one that has ended, never respond."""

    def __init__(self, client: httpx2.AsyncClient | None = None) -> None:
        self._given = client is not None
        self._first: httpx2.AsyncClient = client or _new_client("AsyncClient")
        self._first_on: weakref.ref[asyncio.AbstractEventLoop] | None = None
        self._others: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx2.AsyncClient]
        self._others = weakref.WeakKeyDictionary()
        self._closed = False

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
            raise Unreachable("timed out") from None
        return Reply(stream.reply.status, stream.reply.headers, b"".join(parts))

    async def open(self, outgoing: Outgoing) -> _AsyncIncoming:
        client = self._client_here()
        try:
            request = client.build_request(**_request_arguments(outgoing))
            response = await client.send(request, stream=True, follow_redirects=False)
        except (httpx().RequestError, httpx().InvalidURL) as error:
            raise _unreachable(error) from None
        except RuntimeError:
            if not client.is_closed:
                raise
            raise closed() from None
        client.cookies.clear()
        return _AsyncIncoming(response)

    def _client_here(self) -> httpx2.AsyncClient:
        if self._closed:
            raise closed()
        loop = asyncio.get_running_loop()
        if self._first_on is None:
            self._first_on = weakref.ref(loop)
        if self._first_on() is loop:
            return self._first
        if self._given:
            raise _used_elsewhere("event loop")
        if loop not in self._others:
            self._others[loop] = _new_client("AsyncClient")
        return self._others[loop]

    async def aclose(self) -> None:
        """Close the connections of this event loop. Those of other loops end with their loop."""
        self._closed = True
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
            raise _unreachable(error) from None
        return b""

    async def aclose(self) -> None:
        await self._response.aclose()

"""One request over one connection to a checked address, and the bounded reading of its response.

The Host header and the name that TLS checks are those of the URL; only the address is ours. Each connection is used
once: a kept one would stay open to an address that was checked some time ago, for another caller.

The bytes of headers, body and decompressed body are limited. A compressed body is decompressed in pieces, none of which
can be larger than the rest of the limit: a zip bomb of a few kilobytes ends after the first megabyte, not after the
last gigabyte.

With a policy that cuts, only the status matters. It is valid once the head has been read; a body that is too long, too
slow, broken off or encoded otherwise is cut.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import zlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from holdfast.errors import EgressError, EgressTimeout, EgressTooLarge, EgressUnreachable, InvalidSetting
from holdfast.outgoing.policy import EgressPolicy, Target, missing_extra
from holdfast.outgoing.sender import Outgoing

try:
    import httpcore2
except ImportError as missing:
    raise missing_extra() from missing

MOST_ADDRESSES: Final = 4
DISCONNECTED: Final = "Server disconnected"
"""The beginning of httpcore's message when the connection was closed before the head of the response."""
_in_exchange: ContextVar[bool] = ContextVar("holdfast_egress", default=False)


def _outside_exchange(record: logging.LogRecord) -> bool:
    return not _in_exchange.get()


# At debug level httpcore logs the headers of responses, in which a server may repeat a secret. Records of other users
# of httpcore pass.
for _name in ("connection", "http11", "proxy"):
    logging.getLogger(f"httpcore2.{_name}").addFilter(_outside_exchange)


class Pinned(httpcore2.AsyncNetworkBackend):
    """Connects to the given addresses, one after another, whatever host is requested."""

    def __init__(self, addresses: list[str]) -> None:
        self._addresses = addresses[:MOST_ADDRESSES]
        self._plain = httpcore2.AnyIOBackend()
        self.used = ""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        left, last = timeout or 5.0, len(self._addresses) - 1
        clock = asyncio.get_running_loop().time
        for index, address in enumerate(self._addresses):
            # Half of the time left, so that an address that does not respond leaves time for the next.
            start, most = clock(), left if index == last else left / 2
            try:
                stream = await self._plain.connect_tcp(address, port, timeout=most, socket_options=socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                left = max(0.1, left - (clock() - start))
                if index == last:
                    raise
            else:
                self.used = address
                return stream
        raise httpcore2.ConnectError("no address")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@asynccontextmanager
async def exchange(
    request: Outgoing, target: Target, addresses: list[str], policy: EgressPolicy
) -> AsyncIterator[tuple[httpcore2.Response, str]]:
    """The response, whose body is still to be read, and the address it comes from."""
    backend: Any = Pinned(addresses) if policy.proxy is None else httpcore2.AnyIOBackend()
    secure = policy.tls or (await asyncio.to_thread(_trust) if target.scheme == "https" else None)
    host = f"[{target.host}]" if target.is_v6 and policy.proxy else target.host
    with _translated_errors(target), _quiet():
        async with httpcore2.AsyncConnectionPool(
            ssl_context=secure,
            proxy=None if policy.proxy is None else _proxy(policy.proxy),
            max_connections=1,
            network_backend=backend,
        ) as pool:
            times = {"connect": policy.connect, "read": policy.read, "write": policy.read, "pool": policy.connect}
            http_request = httpcore2.Request(
                request.method,
                httpcore2.URL(
                    scheme=target.scheme.encode(), host=host.encode(), port=target.port, target=target.path.encode()
                ),
                headers=request.lines(target),
                content=request.body,
                extensions={"timeout": times, "sni_hostname": target.host},
            )
            response = await pool.handle_async_request(http_request)
            try:
                yield response, getattr(backend, "used", "proxy")
            finally:
                await response.aclose()


async def pieces_of(response: httpcore2.Response, target: Target) -> AsyncGenerator[bytes, None]:
    """The pieces of the response's body, with Holdfast's errors."""
    with _translated_errors(target):
        async with aclosing(response.aiter_stream()) as pieces:
            async for piece in pieces:
                yield piece


@contextmanager
def _quiet() -> Iterator[None]:
    token = _in_exchange.set(True)
    try:
        yield
    finally:
        _in_exchange.reset(token)


class _translated_errors:
    """Translates errors of httpcore into Holdfast's errors, whose messages contain the origin and no other part of the
    URL."""

    def __init__(self, target: Target) -> None:
        self._origin = target.origin

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        match error:
            case httpcore2.TimeoutException():
                raise EgressTimeout(f"{self._origin} did not answer in time") from None
            case httpcore2.ProxyError():
                raise EgressUnreachable(f"the proxy refused the request to {self._origin}") from None
            case httpcore2.ConnectError() if (reason := _tls_reason(error)) is not None:
                raise EgressUnreachable(f"{self._origin}: TLS failed: {reason}") from None
            case httpcore2.NetworkError():
                raise EgressUnreachable(f"{self._origin} is unreachable or closed the connection") from None
            case httpcore2.LocalProtocolError():
                raise EgressError(f"{self._origin}: malformed request") from None
            case httpcore2.RemoteProtocolError() if str(error).startswith(DISCONNECTED):
                raise EgressUnreachable(f"{self._origin} closed the connection before it responded") from None
            case httpcore2.ProtocolError() | httpcore2.UnsupportedProtocol():
                raise EgressError(f"{self._origin} sent a response that is not HTTP") from None


def _tls_reason(error: BaseException) -> str | None:
    """The reason of a TLS error that httpcore has wrapped; None for any other error."""
    cause = error.args[0] if error.args else None
    if not isinstance(cause, ssl.SSLError):
        return None
    return str(getattr(cause, "verify_message", "") or cause.reason)


@cache
def _trust() -> ssl.SSLContext:
    """The trusted certificates; cached, because reading them takes a while."""
    return httpcore2.default_ssl_context()


def _proxy(url: str) -> httpcore2.Proxy:
    try:
        parts, port = urlsplit(url), urlsplit(url).port
    except ValueError:  # its message repeats a part of the URL, which may be the password
        raise _not_a_proxy() from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _not_a_proxy()
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    auth = None if parts.username is None else (unquote(parts.username), unquote(parts.password or ""))
    return httpcore2.Proxy(f"{parts.scheme}://{host}:{port or 3128}", auth=auth)


def _not_a_proxy() -> InvalidSetting:
    return InvalidSetting(
        "a proxy must be http(s)://[user:password@]host:port",
        code="invalid_egress",
        fix="Write special characters in the user and the password as %XX.",
    )


ENCODINGS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 47}
"""The accepted content encodings, with their ``wbits`` for zlib."""
BODY_TIME: Final = 2.0
"""Seconds to wait for the beginning of a body, with a policy that cuts."""
SPARE: Final = 0.05
"""Reading stops this many seconds before the time limit of the request, which would discard the status."""


def headers_of(raw: Sequence[tuple[bytes, bytes]], policy: EgressPolicy) -> tuple[tuple[str, str], ...]:
    size, headers = 0, []
    for name, value in raw:
        size += len(name) + len(value) + 4
        if size <= policy.max_header_bytes:
            headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))
    if size > policy.max_header_bytes and not policy.cut:
        raise EgressTooLarge(f"the response has {size:,} bytes of headers; the limit is {policy.max_header_bytes:,}")
    return tuple(headers)


async def body_of(
    pieces: AsyncIterable[bytes], headers: Sequence[tuple[str, str]], policy: EgressPolicy, until: float
) -> tuple[bytes, bool]:
    """The decompressed body, and whether it was cut. ``until`` is the time limit of the request by the loop's clock."""
    body = bytearray()
    if not policy.cut:
        await _read(pieces, headers, policy, body)
        return bytes(body), False
    try:
        async with asyncio.timeout_at(min(asyncio.get_running_loop().time() + BODY_TIME, until - SPARE)):
            truncated = await _read(pieces, headers, policy, body)
    except (EgressError, TimeoutError):
        truncated = True
    return bytes(body[: policy.max_bytes]), truncated


async def _read(
    pieces: AsyncIterable[bytes], headers: Sequence[tuple[str, str]], policy: EgressPolicy, body: bytearray
) -> bool:
    """Read into ``body``, which keeps what was received if reading fails. Returns whether the body was over the
    limit."""
    fields = dict(headers)
    length = fields.get("content-length", "")
    if not policy.cut and length.isdecimal() and len(length) < 20 and int(length) > policy.max_bytes:
        raise _too_large(policy)
    decompressor = _decompressor(fields.get("content-encoding", ""))
    received = 0
    async for piece in pieces:
        received += len(piece)
        body += piece if decompressor is None else decompressor.feed(piece, policy.max_bytes + 1 - len(body))
        if received > policy.max_bytes or len(body) > policy.max_bytes:
            if not policy.cut:
                raise _too_large(policy)
            return True
    if decompressor is not None and received and not decompressor.complete:
        raise EgressError("the compressed response is truncated")
    return False


class Decompressor:
    """Decompresses one member after another: gzip allows several."""

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._member = zlib.decompressobj(bits)

    @property
    def complete(self) -> bool:
        return self._member.eof

    def feed(self, piece: bytes, most: int) -> bytes:
        """The decompressed piece, or its first ``most`` bytes."""
        output = b""
        try:
            while piece and len(output) < most:
                if self._member.eof:
                    self._member = zlib.decompressobj(self._bits)
                output += self._member.decompress(piece, most - len(output))
                piece = self._member.unused_data
        except zlib.error:
            raise EgressError("the response does not match its content encoding") from None
        return output


def _decompressor(encoding: str) -> Decompressor | None:
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return None
    if encoding not in ENCODINGS:  # nested encodings were not requested either, and are typical of zip bombs
        raise EgressError("the response has a content encoding that was not requested")
    return Decompressor(ENCODINGS[encoding])


def _too_large(policy: EgressPolicy) -> EgressTooLarge:
    return EgressTooLarge(f"the response is larger than {policy.max_bytes:,} bytes")

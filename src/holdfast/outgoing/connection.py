"""One request over one checked connection; bounded reading.

One request over one connection, to an address that has been judged.

Host and the name that TLS checks stay those of the URL; only where the packets go is ours. Each connection is used
once: a kept one would be open to an address that was judged some time ago, for somebody else.

Reading an answer without trusting it: so many bytes of headers, of body, and of what the body is when unpacked.

What is packed is unpacked in pieces, and none of them can be larger than what is still allowed: a bomb of a few
kilobytes ends after the first megabyte, not after the last gigabyte (rule 5).

Where the policy cuts, the status is what counts: it stands when the head is there, and whatever is wrong behind it (too
much, too slow, broken off, packed in some other way) is left out.
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

TRIED: Final = 4
BROKE_OFF: Final = "Server disconnected"
"""How the layer below begins to say that the connection was closed where the head of an answer should be."""
_ours: ContextVar[bool] = ContextVar("holdfast_egress", default=False)


def _not_ours(record: logging.LogRecord) -> bool:
    return not _ours.get()


# The layer below logs headers of answers as it gets them, where debugging is on; a server may repeat a secret in one.
# Other people's use of it is not our business.
for _name in ("connection", "http11", "proxy"):
    logging.getLogger(f"httpcore2.{_name}").addFilter(_not_ours)


class Pinned(httpcore2.AsyncNetworkBackend):
    """Connects to the addresses it was given, in turn, whatever it is asked for."""

    def __init__(self, addresses: list[str]) -> None:
        self._addresses = addresses[:TRIED]
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
        for place, address in enumerate(self._addresses):
            # Half of what is left, so that one that does not answer leaves time for the next.
            start, most = clock(), left if place == last else left / 2
            try:
                stream = await self._plain.connect_tcp(address, port, timeout=most, socket_options=socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                left = max(0.1, left - (clock() - start))
                if place == last:
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
    """The answer with its body still to be read, and the address it comes from."""
    backend: Any = Pinned(addresses) if policy.proxy is None else httpcore2.AnyIOBackend()
    secure = policy.tls or (await asyncio.to_thread(_trust) if target.scheme == "https" else None)
    host = f"[{target.host}]" if target.is_v6 and policy.proxy else target.host
    with _named(target), _quiet():
        async with httpcore2.AsyncConnectionPool(
            ssl_context=secure,
            proxy=None if policy.proxy is None else _proxy(policy.proxy),
            max_connections=1,
            network_backend=backend,
        ) as pool:
            times = {"connect": policy.connect, "read": policy.read, "write": policy.read, "pool": policy.connect}
            asked = httpcore2.Request(
                request.method,
                httpcore2.URL(
                    scheme=target.scheme.encode(), host=host.encode(), port=target.port, target=target.path.encode()
                ),
                headers=request.lines(target),
                content=request.body,
                extensions={"timeout": times, "sni_hostname": target.host},
            )
            response = await pool.handle_async_request(asked)
            try:
                yield response, getattr(backend, "used", "proxy")
            finally:
                await response.aclose()


async def pieces_of(response: httpcore2.Response, target: Target) -> AsyncGenerator[bytes, None]:
    """Of its body, with errors of ours."""
    with _named(target):
        async with aclosing(response.aiter_stream()) as pieces:
            async for piece in pieces:
                yield piece


@contextmanager
def _quiet() -> Iterator[None]:
    token = _ours.set(True)
    try:
        yield
    finally:
        _ours.reset(token)


class _named:
    """Turns what the layer below raises into our errors, with a message that shows the origin and nothing else."""

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
            case httpcore2.RemoteProtocolError() if str(error).startswith(BROKE_OFF):
                raise EgressUnreachable(f"{self._origin} closed the connection before it responded") from None
            case httpcore2.ProtocolError() | httpcore2.UnsupportedProtocol():
                raise EgressError(f"{self._origin} sent a response that is not HTTP") from None


def _tls_reason(error: BaseException) -> str | None:
    """What the layer below has wrapped, if that was TLS."""
    below = error.args[0] if error.args else None
    if not isinstance(below, ssl.SSLError):
        return None
    return str(getattr(below, "verify_message", "") or below.reason)


@cache
def _trust() -> ssl.SSLContext:
    """Read once: it takes a while."""
    return httpcore2.default_ssl_context()


def _proxy(url: str) -> httpcore2.Proxy:
    try:
        parts, port = urlsplit(url), urlsplit(url).port
    except ValueError:  # which repeats a part of the URL: that may be the password
        raise _not_a_proxy() from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _not_a_proxy()
    place = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    auth = None if parts.username is None else (unquote(parts.username), unquote(parts.password or ""))
    return httpcore2.Proxy(f"{parts.scheme}://{place}:{port or 3128}", auth=auth)


def _not_a_proxy() -> InvalidSetting:
    return InvalidSetting(
        "a proxy must be http(s)://[user:password@]host:port",
        code="invalid_egress",
        fix="Write special characters in the user and the password as %XX.",
    )


PACKED: Final = {"gzip": 31, "x-gzip": 31, "deflate": 47}
"""What zlib is told for each."""
BEGINNING: Final = 2.0
"""How many seconds the beginning of a body is waited for, where no more than that is wanted."""
SPARE: Final = 0.05
"""So much earlier than the time for everything is over, which would take the status along."""


def headers_of(raw: Sequence[tuple[bytes, bytes]], policy: EgressPolicy) -> tuple[tuple[str, str], ...]:
    size, taken = 0, []
    for name, value in raw:
        size += len(name) + len(value) + 4
        if size <= policy.max_header_bytes:
            taken.append((name.decode("latin-1").lower(), value.decode("latin-1")))
    if size > policy.max_header_bytes and not policy.cut:
        raise EgressTooLarge(f"the response has {size:,} bytes of headers; the limit is {policy.max_header_bytes:,}")
    return tuple(taken)


async def body_of(
    pieces: AsyncIterable[bytes], headers: Sequence[tuple[str, str]], policy: EgressPolicy, until: float
) -> tuple[bytes, bool]:
    """The body, unpacked, and whether something of it was left out. ``until`` is when the loop's clock says that all is
    over."""
    made = bytearray()
    if not policy.cut:
        await _read(pieces, headers, policy, made)
        return bytes(made), False
    try:
        async with asyncio.timeout_at(min(asyncio.get_running_loop().time() + BEGINNING, until - SPARE)):
            left_out = await _read(pieces, headers, policy, made)
    except (EgressError, TimeoutError):
        left_out = True
    return bytes(made[: policy.max_bytes]), left_out


async def _read(
    pieces: AsyncIterable[bytes], headers: Sequence[tuple[str, str]], policy: EgressPolicy, made: bytearray
) -> bool:
    """Into ``made``, so that what has come is there also when the rest does not; whether it was more than is taken."""
    named = dict(headers)
    length = named.get("content-length", "")
    if not policy.cut and length.isdecimal() and len(length) < 20 and int(length) > policy.max_bytes:
        raise _too_large(policy)
    unpack = _unpacker(named.get("content-encoding", ""))
    received = 0
    async for piece in pieces:
        received += len(piece)
        made += piece if unpack is None else unpack.some(piece, policy.max_bytes + 1 - len(made))
        if received > policy.max_bytes or len(made) > policy.max_bytes:
            if not policy.cut:
                raise _too_large(policy)
            return True
    if unpack is not None and received and not unpack.whole:
        raise EgressError("the compressed response is truncated")
    return False


class Unpacker:
    """One member after the other: gzip allows several."""

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._member = zlib.decompressobj(bits)

    @property
    def whole(self) -> bool:
        return self._member.eof

    def some(self, piece: bytes, most: int) -> bytes:
        """What the piece is when unpacked, or its first ``most`` bytes."""
        made = b""
        try:
            while piece and len(made) < most:
                if self._member.eof:
                    self._member = zlib.decompressobj(self._bits)
                made += self._member.decompress(piece, most - len(made))
                piece = self._member.unused_data
        except zlib.error:
            raise EgressError("the response does not match its content encoding") from None
        return made


def _unpacker(coding: str) -> Unpacker | None:
    coding = coding.strip().lower()
    if coding in ("", "identity"):
        return None
    if coding not in PACKED:  # not asked for; several, one in the other, are a bomb's manner
        raise EgressError("the response has a content encoding that was not requested")
    return Unpacker(PACKED[coding])


def _too_large(policy: EgressPolicy) -> EgressTooLarge:
    return EgressTooLarge(f"the response is larger than {policy.max_bytes:,} bytes")

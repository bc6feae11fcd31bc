"""``Link`` is the connection to a service: its URL, token and timeouts; retries and redirects. ``Runner`` carries out
requests, blocking or awaited; ``RemoteNamespace`` is the base of the namespaces of the client.

The token is added last, only to requests for the origin of the service, and appears in no representation. Only
repeatable requests are sent again: reads, settings, and requests with an Idempotency-Key. The number of attempts, each
pause and the accepted ``Retry-After`` are bounded.

Operations are written once, as programs that yield requests (``engine/operation.py``). Errors of the connection are
results, not exceptions: the program decides whether to send a request again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urljoin, urlsplit

from holdfast.engine.operation import Emit, Items, Namespace
from holdfast.engine.retry import http_date, retry_after_delay
from holdfast.engine.version import __version__
from holdfast.errors import InvalidSetting, StoreError, StoreUnavailable
from holdfast.remote.http_requests import (
    Open,
    Outgoing,
    Pause,
    Read,
    Reply,
    Request,
    Send,
    Step,
    Steps,
    Unreachable,
    get,
)
from holdfast.remote.responses import checked, is_temporary, read, read_page, unreadable
from holdfast.remote.transport import (
    AsyncHttpxTransport,
    AsyncStream,
    AsyncTransport,
    HttpxTransport,
    Stream,
    Transport,
    closed,
)

# The service is busy, or a proxy cannot reach it. A 500 is a bug of the service, which a retry would repeat.
RETRIED = frozenset({429, 502, 503, 504})
API = "/api/v1"
REDIRECTS = frozenset({301, 302, 303, 307, 308})
SAME_METHOD = frozenset({307, 308})
MAX_REDIRECTS = 5


@dataclass(frozen=True, slots=True)
class Base:
    """The URL of a service: its origin, and the path prefix under which it is mounted."""

    origin: str
    prefix: str

    @classmethod
    def of(cls, url: str) -> Base:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise _not_a_service() from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise _not_a_service()
        if parts.username is not None or parts.password is not None:
            raise InvalidSetting("a service URL must not contain a password", code="invalid_url", fix="Pass token=….")
        return cls(_origin(parts.scheme, parts.hostname, port), parts.path.rstrip("/"))

    @property
    def url(self) -> str:
        return self.origin + self.prefix

    @property
    def api(self) -> str:
        return self.prefix + API

    def at(self, path: str) -> str:
        return self.origin + self.api + path


@dataclass(frozen=True, slots=True)
class Retrying:
    """How requests are retried. ``tries`` is the total number of times a request is sent. The pause starts at ``first``
    seconds, doubles each time up to ``longest``, and is reduced by up to half at random. A ``Retry-After`` of up to
    ``obeyed`` seconds is respected."""

    tries: int = 5
    first: float = 0.25
    longest: float = 8.0
    obeyed: float = 60.0
    draw: Callable[[], float] = random.random

    def pause(self, request: Request, result: Reply | Unreachable, tried: int) -> float | None:
        """Seconds to wait before the request is sent again; None if it is not."""
        if not request.repeatable or tried >= self.tries:
            return None
        backoff = min(self.longest, self.first * 2.0 ** (tried - 1)) * (0.5 + self.draw() / 2)
        if isinstance(result, Unreachable):
            return backoff
        if result.status not in RETRIED or not is_temporary(result):
            return None
        now = http_date(result.headers.get("date")) or datetime.now(UTC)
        requested = retry_after_delay(result.headers.get("retry-after"), now, float("inf"))
        if requested is None:
            return backoff
        # For a longer delay the caller gets the error.
        return None if requested > self.obeyed else max(requested, backoff)


def send_with_retries(request: Request, base: Base, retrying: Retrying, *, stream: bool = False) -> Steps[Reply]:
    """The reply of the service, also an error; ``StoreUnavailable`` if there is none."""
    tried = redirects = 0
    while True:
        tried += 1
        result: Reply | Unreachable = yield (Open(request) if stream else Send(request))
        if isinstance(result, Reply) and result.status in REDIRECTS:
            redirects += 1
            request = _redirected(request, result, base, redirects)
            continue
        pause = retrying.pause(request, result, tried)
        if pause is not None and time.monotonic() + pause < request.until:
            yield Pause(pause)
        elif isinstance(result, Reply):
            return result
        else:
            raise no_response(request, base, result, tried)


def _redirected(request: Request, reply: Reply, base: Base, redirects: int) -> Request:
    """The request to the target of a redirect. Another origin is never contacted: the token is not for it."""
    origin, path, query = _target(base.at(request.path), reply.headers.get("location", ""))
    if origin != base.origin or not path.startswith(base.api + "/"):
        raise StoreError(
            f"{base.url} redirects to another server; the token is not sent there",
            code="redirected",
            fix="Pass the URL of the service itself.",
        )
    if redirects > MAX_REDIRECTS or (request.method != "GET" and reply.status not in SAME_METHOD):
        raise StoreError(f"{base.url} redirects too often", code="redirected")
    pairs = tuple(parse_qsl(query, keep_blank_values=True))
    return dataclasses.replace(request, path=path.removeprefix(base.api), query=pairs)


def _target(url: str, location: str) -> tuple[str, str, str]:
    """Origin, path and query of a redirect; empty if it is not a URL."""
    try:
        parts = urlsplit(urljoin(url, location))
        return _origin(parts.scheme, parts.hostname or "", parts.port), parts.path, parts.query
    except ValueError:
        return "", "", ""


def no_response(request: Request, base: Base, why: Unreachable, tried: int) -> StoreUnavailable:
    unknown = "" if request.repeatable else "; it is unknown whether it was carried out"
    attempts = f" after {tried} attempts" if tried > 1 else ""
    return StoreUnavailable(
        f"no response from {base.url} to {request.method} {request.path}{attempts}: {why}{unknown}",
        fix="Check the URL of the service and that it runs (holdfast serve).",
    )


def _origin(scheme: str, host: str, port: int | None) -> str:
    """The normalized origin, for comparison."""
    name = f"[{host}]" if ":" in host else host
    default = {"http": 80, "https": 443}.get(scheme)
    return f"{scheme}://{name}" if port is None or port == default else f"{scheme}://{name}:{port}"


def _not_a_service() -> InvalidSetting:
    return InvalidSetting(
        "this is not the URL of a service", code="invalid_url", fix="Use for example https://jobs.example.com/holdfast."
    )


@dataclass(frozen=True, slots=True)
class Link:
    base: Base
    token: str = field(default="", repr=False)
    tenant: str | None = None
    timeout: float = 30.0
    retrying: Retrying = field(default_factory=Retrying)

    def __post_init__(self) -> None:
        for name, value in (("token", self.token), ("tenant", self.tenant or "")):
            if not value.isascii() or not value.isprintable() or " " in value:
                raise InvalidSetting(f"the {name} contains characters that a header cannot carry", code="invalid_name")

    def outgoing(self, request: Request) -> Outgoing:
        headers = {"Accept": "application/json", "User-Agent": f"holdfast-python/{__version__}", **request.headers}
        if request.body is not None:
            headers["Content-Type"] = "application/json"
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        if self.tenant is not None:
            headers["Holdfast-Tenant"] = self.tenant
        url = self.base.at(request.path)
        within = min(self.timeout + request.extra_timeout, max(0.0, request.until - time.monotonic()))
        return Outgoing(request.method, url, within, request.query, headers, request.body)


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

    _sync_in_threads = False  # a client may have an async transport only

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

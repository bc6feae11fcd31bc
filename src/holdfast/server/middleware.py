"""Middleware: limits on request bodies, readable cookies, security headers, HEAD requests, the request log.

The limits are enforced before a route reads any of the body:

- Size: 8 MiB, and 64 KiB on paths that need no credentials. A body that declares more is refused unread; one that does
  not declare its length is read up to the limit and no further.
- Time: a body has ``timeout`` seconds, and as many more as its bytes take at ``MIN_RATE`` bytes per second.
- Type: the API takes JSON only, which a form on another site's page cannot send.

Credentials are checked inside this middleware and before the body is read (``server/auth.py``), so the larger limit
applies to known callers only.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import CoroutineType
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.server.auth import SAFE, Identity, Paths, path_below
from holdfast.server.problems import problem
from holdfast.stores.flow import PAGE, ReadRequest, read_request, reading_at_most
from holdfast.telemetry.observers import trace_from

log = logging.getLogger("holdfast.http")

MAX_BODY = 8 * 1024 * 1024
MAX_BODY_OPEN = 64 * 1024
TIMEOUT = 10.0
MIN_RATE = 32 * 1024
"""Bytes per second."""
MAX_DIGITS = 19
"""Maximum digits of a Content-Length that is parsed; a longer one is too large."""


class ReadableCookies:
    """Drop cookies with a backslash, which RFC 6265 does not allow, before anything parses them.

    ``http.cookies`` takes quadratic time for them in older Python releases (5 s for 60 KiB with 3.11.7), FastAPI parses
    the cookies of every request, and a caller needs no credentials to send them.
    """

    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and any(
            name == b"cookie" and b"\\" in value for name, value in scope["headers"]
        ):
            headers = [(n, _without_backslashes(v) if n == b"cookie" else v) for n, v in scope["headers"]]
            scope = {**scope, "headers": headers}
        await self._inner(scope, receive, send)


def _without_backslashes(cookies: bytes) -> bytes:
    return b";".join(cookie for cookie in cookies.split(b";") if b"\\" not in cookie)


class BodyLimit:
    def __init__(self, inner: ASGIApp, *, open_to_all: Paths, timeout: float = TIMEOUT) -> None:
        self._inner, self._open, self._timeout = inner, open_to_all, timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        declared = content_type = b""
        for name, value in scope["headers"]:
            if name == b"content-length":
                declared = value
            elif name == b"content-type":
                content_type = value
        if content_type and not _is_json(content_type) and declared != b"0" and _is_for_the_api(scope):
            await _not_json()(scope, receive, send)
            return
        size = -1  # not declared
        if declared.isdigit():
            size = int(declared) if len(declared) <= MAX_DIGITS else sys.maxsize
        # A body that is declared to be small needs no check of its path: the small limit applies to it anyway.
        limit = MAX_BODY_OPEN if 0 <= size <= MAX_BODY_OPEN or path_below(scope) in self._open else MAX_BODY
        if size > limit:
            await _too_large(limit)(scope, receive, send)
            return
        reading = _Reading(receive, send, limit, self._timeout)
        try:
            await self._inner(scope, reading.receive, reading.send)
        except ClientDisconnect:
            if reading.refusal is None:
                raise
        if reading.refusal is not None:
            await reading.refusal(scope, receive, send)


class _Reading:
    """The body of one request. When it breaks a limit, the inner application sees a disconnected client, and
    ``refusal`` becomes the response unless the inner application has already started one."""

    __slots__ = ("_began", "_begun", "_cut", "_limit", "_over", "_receive", "_seen", "_send", "_timeout", "refusal")

    def __init__(self, receive: Receive, send: Send, limit: int, timeout: float) -> None:
        self._receive, self._send, self._limit, self._timeout = receive, send, limit, timeout
        self._seen, self._began = 0, 0.0
        self._begun = self._over = self._cut = False
        self.refusal: Response | None = None

    async def receive(self) -> Message:
        if self._cut:
            return {"type": "http.disconnect"}
        if self._over:  # the only message that can follow is a disconnect
            return await self._receive()
        receiving = self._receive()
        # A timer costs a fifth of the time of an enqueue request, and nearly every body arrives with its head. So the
        # coroutine is started without one, and the timer begins only if it has to wait.
        try:
            message = await self._receive_in_time(
                receiving if type(receiving) is not CoroutineType else _resume(receiving, receiving.send(None))
            )
        except StopIteration as returned:
            message = returned.value
        except TimeoutError:
            return self._refuse(_too_slow())
        self._seen += len(message.get("body", b""))
        if self._seen > self._limit:
            return self._refuse(_too_large(self._limit))
        self._over = not message.get("more_body", False)
        return message

    async def _receive_in_time(self, receiving: Awaitable[Message]) -> Message:
        self._began = self._began or asyncio.get_running_loop().time()
        async with asyncio.timeout_at(self._began + self._timeout + self._seen / MIN_RATE):
            return await receiving

    async def send(self, message: Message) -> None:
        if self.refusal is None:
            self._begun = True
            await self._send(message)

    def _refuse(self, refusal: Response) -> Message:
        self._cut = True
        if not self._begun:
            self.refusal = refusal
        return {"type": "http.disconnect"}


@types.coroutine
def _resume(started: Coroutine[Any, Any, Message], pending: Any) -> Generator[Any, Any, Message]:
    """Await a coroutine that was started with ``send(None)`` and waits for ``pending``."""
    try:
        while True:
            try:
                sent = yield pending
            except BaseException as error:  # including cancellation, by which the timeout ends the wait
                pending = started.throw(error)
            else:
                pending = started.send(sent)
    except StopIteration as returned:
        return returned.value  # type: ignore[no-any-return]


def _too_large(limit: int) -> Response:
    return problem(413, "body_too_large", f"The request body is larger than {limit:,} bytes.")


def _too_slow() -> Response:
    response = problem(
        408,
        "body_too_slow",
        "The request body did not arrive in time.",
        fix="Send the whole body without pauses, or raise the limit (holdfast serve --body-timeout).",
    )
    response.headers["connection"] = "close"
    return response


def _not_json() -> Response:
    return problem(415, "not_json", "The API takes JSON only.", fix="Send the header Content-Type: application/json.")


def _is_for_the_api(scope: Scope) -> bool:
    return scope["method"] not in SAFE and path_below(scope).startswith("/api/")


def _is_json(content_type: bytes) -> bool:
    media = content_type.partition(b";")[0].strip().lower()
    return media == b"application/json" or (media.startswith(b"application/") and media.endswith(b"+json"))


POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
READ_FROM_STANDBY = (b"holdfast-read-from", b"standby")
CACHED, NOT_CACHED = (b"cache-control", b"public, max-age=3600"), (b"cache-control", b"no-store")


class BoundedReads:
    """Bounds what one GET request may read at once, keeps its reads off the event loop, and lets a standby serve
    them."""

    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in SAFE:
            await self._inner(scope, receive, send)
            return
        request = ReadRequest()

        async def with_source(message: Message) -> None:
            if request.standby and message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), READ_FROM_STANDBY]
            await send(message)

        token = read_request.set(request)
        try:
            with reading_at_most(PAGE):
                await self._inner(scope, receive, with_source)
        finally:
            read_request.reset(token)


class PageHeaders:
    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        # Only at the start of the path: names of jobs and queues may contain /static/, too.
        is_file = path_below(scope).startswith("/static/")

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                defaults = (*HEADERS, CACHED if is_file and message["status"] < 400 else NOT_CACHED)
                names = {name.lower() for name, _ in headers}
                message["headers"] = [*headers, *(pair for pair in defaults if pair[0] not in names)]
            await send(message)

        await self._inner(scope, receive, with_headers)


class HeadRequests:
    """Answers HEAD with the headers of GET. A stream ends after its headers, as if the client had disconnected."""

    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._inner(scope, receive, send)
            return
        received, answered = False, asyncio.Event()

        async def empty_body() -> Message:
            nonlocal received
            if not received:
                received = True
                return {"type": "http.request", "body": b"", "more_body": False}
            await answered.wait()
            return {"type": "http.disconnect"}

        async def headers_only(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                answered.set()

        await self._inner({**scope, "method": "GET"}, empty_body, headers_only)


UNMATCHED = "unmatched"
STATIC = "/static/{path}"
LOGGED_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
PREFIXES = ("/api/v1", "/api")
FREQUENT = frozenset({"/static", STATIC, "/live"})
"""Routes that every page of the dashboard requests: logged at the level ``debug``."""
CLOSED = 499
"""The client disconnected before the response."""

Measure = Callable[[str, str, int, float], None]


class RequestLog:
    """The request log: one line per request, its trace context from the headers, and its duration for the metrics.

    Outside of authentication, so that it also logs requests that are refused there. It records the pattern of the path
    (``/api/v1/jobs/{id}``) and no query, since both may contain confidential values. ``measures`` are called with
    method, route, status and seconds.
    """

    def __init__(self, inner: ASGIApp, measures: list[Measure]) -> None:
        self._inner, self._measures = inner, measures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        began, status = time.perf_counter(), CLOSED

        async def send_and_note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        headers = scope["headers"]
        with trace_from(_header(headers, b"traceparent"), _header(headers, b"tracestate")):
            try:
                await self._inner(scope, receive, send_and_note_status)
            except ClientDisconnect:  # while sending the body; not an error of the service
                pass
            except Exception:
                status = 500 if status == CLOSED else status
                raise
            finally:
                self._record(scope, status, time.perf_counter() - began)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in LOGGED_METHODS else "OTHER"
        route = pattern_of(scope)
        for measure in self._measures:
            measure(method, route, status, seconds)
        level = logging.WARNING if status >= 500 else logging.DEBUG if route in FREQUENT else logging.INFO
        if not log.isEnabledFor(level):
            return
        identity = scope.get("state", {}).get("identity")
        fields: dict[str, Any] = {"method": method, "route": route, "status": status, "duration": round(seconds, 6)}
        if isinstance(identity, Identity):
            fields |= {"actor": identity.actor, "tenant": identity.tenant}
        log.log(level, "%s %s %s", method, route, status, extra=fields)


def pattern_of(scope: Scope) -> str:
    """The pattern of the route without parameter values; ``unmatched`` if no route matches."""
    path, root = str(scope["path"]), str(scope.get("app_root_path", scope.get("root_path", "")))
    pattern = getattr(scope.get("route"), "path", None)
    below = path.removeprefix(root) if root else path
    if isinstance(pattern, str):
        # Newer releases of FastAPI leave out the prefix under which a router was included.
        prefixes = () if pattern.startswith("/api/") else (each for each in PREFIXES if below.startswith(f"{each}/"))
        return next(iter(prefixes), "") + pattern
    if scope.get("endpoint") is None:
        return UNMATCHED
    for name, value in (scope.get("path_params") or {}).items():
        if name == "path":  # files below a mount
            return STATIC
        below = below.replace(str(value), f"{{{name}}}", 1) if str(value) else below
    return below or "/"


def _header(headers: list[tuple[bytes, bytes]], name: bytes) -> str | None:
    """The value of a header, repeated ones joined. A repeated ``traceparent`` is invalid and ignored."""
    values = [value for key, value in headers if key == name]
    if len(values) != 1 and name == b"traceparent":
        return None
    return b",".join(values).decode("latin-1") if values else None

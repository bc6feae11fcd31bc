"""Body limit, HEAD, security headers.

Limits on request bodies, enforced before a route sees a byte of them.

- Size: 8 MiB, and 64 KiB on paths that need no credentials. A body that declares more is refused unread; one that does
  not declare its length is read up to the limit and no further.
- Time: a body has ``timeout`` seconds, and as many more as its bytes take at ``SLOWEST`` bytes per second.
- Type: the API takes JSON only, which a form on another site's page cannot send.

Credentials are checked inside this middleware and before the body is read (``server/auth.py``), so the larger limit
applies to known callers only.
"""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Awaitable, Coroutine, Generator
from types import CoroutineType
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.server.auth import SAFE, Paths, path_below
from holdfast.server.problems import problem

LARGEST = 8 * 1024 * 1024
LARGEST_OPEN = 64 * 1024
TIMEOUT = 10.0
SLOWEST = 32 * 1024
"""Bytes per second."""
LONGEST_NUMBER = 19
"""Digits of a Content-Length that is converted: a longer one is too large, whatever it says."""


class BodyLimit:
    def __init__(self, inner: ASGIApp, *, open_to_all: Paths, timeout: float = TIMEOUT) -> None:
        self._inner, self._open, self._timeout = inner, open_to_all, timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        declared = said = b""
        for name, value in scope["headers"]:
            if name == b"content-length":
                declared = value
            elif name == b"content-type":
                said = value
        if said and not _is_json(said) and declared != b"0" and _is_for_the_api(scope):
            await _not_json()(scope, receive, send)
            return
        size = -1  # not declared
        if declared.isdigit():
            size = int(declared) if len(declared) <= LONGEST_NUMBER else sys.maxsize
        # What is declared to be small needs no look at its path: no more of it is taken than is small.
        limit = LARGEST_OPEN if 0 <= size <= LARGEST_OPEN or path_below(scope) in self._open else LARGEST
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
    """One request. A body that breaks a limit ends for the inner application as if the client had gone, and once
    ``refusal`` is set that is the answer, whatever the inner application makes of it."""

    __slots__ = ("_began", "_begun", "_cut", "_limit", "_over", "_receive", "_seen", "_send", "_timeout", "refusal")

    def __init__(self, receive: Receive, send: Send, limit: int, timeout: float) -> None:
        self._receive, self._send, self._limit, self._timeout = receive, send, limit, timeout
        self._seen, self._began = 0, 0.0
        self._begun = self._over = self._cut = False
        self.refusal: Response | None = None

    async def receive(self) -> Message:
        if self._cut:
            return {"type": "http.disconnect"}
        if self._over:  # what follows is only ever that the client has gone
            return await self._receive()
        asked = self._receive()
        # A timer costs a fifth of all that the service does for an enqueue, and nearly every body has arrived with its
        # head: so the server is asked first, and the clock only if there is something to wait for.
        try:
            message = await self._in_time(
                asked if type(asked) is not CoroutineType else _go_on(asked, asked.send(None))
            )
        except StopIteration as answered:
            message = answered.value
        except TimeoutError:
            return self._cut_off(_too_slow())
        self._seen += len(message.get("body", b""))
        if self._seen > self._limit:
            return self._cut_off(_too_large(self._limit))
        self._over = not message.get("more_body", False)
        return message

    async def _in_time(self, asked: Awaitable[Message]) -> Message:
        self._began = self._began or asyncio.get_running_loop().time()
        async with asyncio.timeout_at(self._began + self._timeout + self._seen / SLOWEST):
            return await asked

    async def send(self, message: Message) -> None:
        if self.refusal is None:
            self._begun = True
            await self._send(message)

    def _cut_off(self, refusal: Response) -> Message:
        self._cut = True
        if not self._begun:
            self.refusal = refusal
        return {"type": "http.disconnect"}


@types.coroutine
def _go_on(begun: Coroutine[Any, Any, Message], pending: Any) -> Generator[Any, Any, Message]:
    """Await a coroutine that was begun by hand and waits for ``pending``."""
    try:
        while True:
            try:
                sent = yield pending
            except BaseException as error:  # also a cancellation, which is how a time limit ends the wait
                pending = begun.throw(error)
            else:
                pending = begun.send(sent)
    except StopIteration as answered:
        return answered.value  # type: ignore[no-any-return]


def _too_large(limit: int) -> Response:
    return problem(413, "body_too_large", f"The request body is larger than {limit:,} bytes.")


def _too_slow() -> Response:
    answer = problem(
        408,
        "body_too_slow",
        "The request body did not arrive in time.",
        fix="Send the whole body without pauses, or raise the limit (holdfast serve --body-timeout).",
    )
    answer.headers["connection"] = "close"
    return answer


def _not_json() -> Response:
    return problem(415, "not_json", "The API takes JSON only.", fix="Send the header Content-Type: application/json.")


def _is_for_the_api(scope: Scope) -> bool:
    return scope["method"] not in SAFE and path_below(scope).startswith("/api/")


def _is_json(said: bytes) -> bool:
    kind = said.partition(b";")[0].strip().lower()
    return kind == b"application/json" or (kind.startswith(b"application/") and kind.endswith(b"+json"))


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
KEPT, NOT_KEPT = (b"cache-control", b"public, max-age=3600"), (b"cache-control", b"no-store")


class PageHeaders:
    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        # Ours alone, by where it lies: names that people choose have /static/ in them, too.
        file = path_below(scope).startswith("/static/")

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                said = list(message.get("headers", ()))
                ours = (*HEADERS, KEPT if file and message["status"] < 400 else NOT_KEPT)
                names = {name.lower() for name, _ in said}
                message["headers"] = [*said, *(pair for pair in ours if pair[0] not in names)]
            await send(message)

        await self._inner(scope, receive, with_headers)


class HeadRequests:
    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._inner(scope, receive, send)
            return
        heard, answered = False, asyncio.Event()

        async def nothing() -> Message:
            """No body; then, for streams, which would go on for ever, that nobody listens any more."""
            nonlocal heard
            if not heard:
                heard = True
                return {"type": "http.request", "body": b"", "more_body": False}
            await answered.wait()
            return {"type": "http.disconnect"}

        async def headers_only(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                answered.set()

        await self._inner({**scope, "method": "GET"}, nothing, headers_only)

"""A request larger than any payload may be is refused before it is read (rule 23)."""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.access.problems import problem

LARGEST = 8 * 1024 * 1024


class _TooLarge(Exception):
    pass


class BodyLimit:
    def __init__(self, inner: ASGIApp, limit: int = LARGEST) -> None:
        self._inner, self._limit = inner, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if declared.isdigit() and int(declared) > self._limit:
            await self._refusal()(scope, receive, send)
            return
        seen, begun = 0, False

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._limit:
                raise _TooLarge
            return message

        async def noticed(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._inner(scope, counted, noticed)
        except _TooLarge:
            if not begun:
                await self._refusal()(scope, receive, send)

    def _refusal(self) -> Response:
        return problem(413, "body_too_large", f"a request has at most {self._limit:,} bytes")

"""A request larger than any payload may be is refused before it is read (rule 23), and so is one to the API that says
that it is no JSON: a form of another site's page can say nothing else (rule 22)."""

from __future__ import annotations

from contextlib import suppress

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.access.gate import SAFE, path_below
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
        declared = said = b""
        for name, value in scope["headers"]:
            if name == b"content-length":
                declared = value
            elif name == b"content-type":
                said = value
        if said and not _is_json(said) and declared != b"0" and _is_for_the_api(scope):
            await _NOT_JSON(scope, receive, send)
            return
        if declared.isdigit() and int(declared) > self._limit:
            await self._refusal()(scope, receive, send)
            return
        seen, begun, over = 0, False, False

        async def counted() -> Message:
            nonlocal seen, over
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._limit:
                over = not begun
                raise _TooLarge
            return message

        async def noticed(message: Message) -> None:
            nonlocal begun
            if not over:  # else somebody has made an answer of their own of what was raised
                begun = True
                await send(message)

        with suppress(_TooLarge):
            await self._inner(scope, counted, noticed)
        if over:
            await self._refusal()(scope, receive, send)

    def _refusal(self) -> Response:
        return problem(413, "body_too_large", f"a request has at most {self._limit:,} bytes")


_NOT_JSON = problem(
    415, "not_json", "the API takes JSON and nothing else", fix="Send the header Content-Type: application/json."
)


def _is_for_the_api(scope: Scope) -> bool:
    return scope["method"] not in SAFE and path_below(scope).startswith("/api/")


def _is_json(said: bytes) -> bool:
    kind = said.partition(b";")[0].strip().lower()
    return kind == b"application/json" or (kind.startswith(b"application/") and kind.endswith(b"+json"))

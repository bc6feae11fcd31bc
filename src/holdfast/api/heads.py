"""HEAD wherever GET is: those who watch a service ask so whether it lives. The answer of GET, without what is in it."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Heads:
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

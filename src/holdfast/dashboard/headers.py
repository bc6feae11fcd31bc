"""What every answer says about itself: no foreign script, no frame around it, no guessing of its type (rule 21)."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.access.gate import path_below

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

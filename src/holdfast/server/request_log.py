"""One line a request in the log (JF-13), its trace bound from the header, and its time told to whoever measures.

The outermost middleware: requests that authentication refuses are logged too. Of the path only the pattern is kept
(``/api/v1/jobs/{id}``), of the query nothing: both may hold what must not be written down.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.server.auth import Identity
from holdfast.telemetry.tracing import trace_from

log = logging.getLogger("holdfast.http")

UNMATCHED = "unmatched"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
PREFIXES = ("/api/v1", "/api")
CLOSED = 499
"""Whoever asked went away before there was an answer."""

Measure = Callable[[str, str, int, float], None]


class RequestLog:
    """``measures`` are called with method, route, status and seconds."""

    def __init__(self, inner: ASGIApp, measures: list[Measure]) -> None:
        self._inner, self._measures = inner, measures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        began, status = time.perf_counter(), CLOSED

        async def noticed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        headers = scope["headers"]
        with trace_from(_header(headers, b"traceparent"), _header(headers, b"tracestate")):
            try:
                await self._inner(scope, receive, noticed)
            except ClientDisconnect:  # in the midst of what they said: nobody waits for an answer, and nothing broke
                pass
            except Exception:
                status = 500 if status == CLOSED else status
                raise
            finally:
                self._tell(scope, status, time.perf_counter() - began)

    def _tell(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in METHODS else "OTHER"
        route = pattern_of(scope)
        for measure in self._measures:
            measure(method, route, status, seconds)
        level = logging.WARNING if status >= 500 else logging.INFO
        if not log.isEnabledFor(level):
            return
        identity = scope.get("state", {}).get("identity")
        said: dict[str, Any] = {"method": method, "route": route, "status": status, "duration": round(seconds, 6)}
        if isinstance(identity, Identity):
            said |= {"actor": identity.actor, "tenant": identity.tenant}
        log.log(level, "%s %s %s", method, route, status, extra=said)


def pattern_of(scope: Scope) -> str:
    """The route without the values in it; what fits none is all the same."""
    path, root = str(scope["path"]), str(scope.get("app_root_path", scope.get("root_path", "")))
    found = getattr(scope.get("route"), "path", None)
    below = path.removeprefix(root) if root else path
    if isinstance(found, str):
        # Newer releases of FastAPI keep to themselves what a router was included under.
        cut = () if found.startswith("/api/") else (under for under in PREFIXES if below.startswith(f"{under}/"))
        return next(iter(cut), "") + found
    if scope.get("endpoint") is None:
        return UNMATCHED
    for name, value in (scope.get("path_params") or {}).items():
        if name == "path":  # files below a mount
            return "/static/{path}"
        below = below.replace(str(value), f"{{{name}}}", 1) if str(value) else below
    return below or "/"


def _header(headers: list[tuple[bytes, bytes]], name: bytes) -> str | None:
    """Only where it is there once: two of them are a mistake, or an attempt."""
    found = [value for key, value in headers if key == name]
    if len(found) != 1 and name == b"traceparent":
        return None
    return b",".join(found).decode("latin-1") if found else None

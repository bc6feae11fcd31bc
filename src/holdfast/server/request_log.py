"""The request log: one line per request, its trace context from the headers, and its duration for the metrics.

This is the outermost middleware, so it also logs requests that authentication refuses. It records the pattern of the
path (``/api/v1/jobs/{id}``) and no query, since both may contain confidential values.
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
STATIC = "/static/{path}"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
PREFIXES = ("/api/v1", "/api")
FREQUENT = frozenset({"/static", STATIC, "/live"})
"""Routes that every page of the dashboard requests: logged at the level ``debug``."""
CLOSED = 499
"""The client disconnected before the response."""

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
        method = scope["method"] if scope["method"] in METHODS else "OTHER"
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

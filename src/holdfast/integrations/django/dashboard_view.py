"""The dashboard below a URL of the project, for users of Django.

The dashboard is an ASGI application. A thread of the process runs it on a separate event loop, and this view forwards
requests to it, so it works under WSGI and ASGI. Live updates need a connection that stays open. Under ASGI they are
streamed. Under WSGI they would occupy a worker of the web server, so the stream is answered with 204, and pages refresh
themselves periodically.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import Future
from http.cookies import SimpleCookie
from typing import TYPE_CHECKING, Any, Final

from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.urls import reverse
from django.views.decorators.csrf import csrf_exempt

from holdfast.features.tokens.model import EVERY_SCOPE, ROLES, Role, Scope
from holdfast.integrations.django.application import DjangoApp, get_app

if TYPE_CHECKING:
    from holdfast.server.auth import Identity

VIEW, CHANGE = "holdfast.view_dashboard", "holdfast.change_dashboard"
TIMEOUT: Final = 60.0
STREAM_SECONDS: Final = 300.0
"""A stream ends after this time. The page opens another one, for which Django checks the user again."""
KEY: Final = "holdfast.identity"
# Paths without login. The links to approvals, which people get by e-mail, contain a token.
OPEN: Final = ("decide/", "static/", "api/v1/approvals/by-token/")
# Headers that Django or the web server sets.
_SKIPPED: Final = frozenset({b"content-length", b"connection", b"transfer-encoding"})


def scopes_for(user: Any) -> frozenset[Scope]:
    """``view_dashboard`` reads, ``change_dashboard`` operates and decides, a superuser administers.

    A user model without ``PermissionsMixin`` may lack ``is_superuser`` and ``has_perm``: its users have no permission.
    """
    if getattr(user, "is_superuser", False):
        return EVERY_SCOPE
    has_permission = getattr(user, "has_perm", lambda _: False)
    if has_permission(CHANGE):
        return ROLES[Role.OPERATOR] | ROLES[Role.APPROVER]
    return ROLES[Role.VIEWER] if has_permission(VIEW) else frozenset()


# Instead of Django's CSRF token, Holdfast compares the origin of unsafe requests with the host.
@csrf_exempt
def dashboard(request: HttpRequest, path: str = "") -> HttpResponseBase:
    """Serve the dashboard to users who have the permission. ``holdfast.integrations.django.urls`` mounts it."""
    identity = None
    if not path.startswith(OPEN):
        user = request.user
        if not user.is_active or not user.is_authenticated:
            if path.startswith("api/"):  # a program: without an identity the service answers 401
                return bridge().respond(request, None)
            return redirect_to_login(request.get_full_path())
        scopes = scopes_for(user)
        if not scopes:
            raise PermissionDenied(f"The dashboard needs the permission {VIEW}.")
        identity = _identity(str(user.get_username()), scopes)
    live = "text/event-stream" in request.headers.get("accept", "")
    if live and not isinstance(request, ASGIRequest):
        return HttpResponse(status=204)
    return bridge().respond(request, identity, live=live)


def _identity(actor: str, scopes: frozenset[Scope]) -> Identity:
    from holdfast.server.auth import Identity

    tenant = get_app().session.scope
    return Identity(actor, tenant, scopes, ambient=True, whole=scopes == EVERY_SCOPE)


class _Response:
    """A response of the service, on the loop of the bridge."""

    def __init__(self, service: Callable[..., Awaitable[None]], scope: dict[str, Any], body: bytes) -> None:
        self.status = 500
        self.headers: list[tuple[bytes, bytes]] = []
        self.started = asyncio.Event()
        """Set when there are a status and headers."""
        self._ended = asyncio.Event()
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue(100)
        self.task = asyncio.create_task(self._run(service, scope, body))

    async def _run(self, service: Callable[..., Awaitable[None]], scope: dict[str, Any], body: bytes) -> None:
        sent = False

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if sent:
                await self._ended.wait()
                return {"type": "http.disconnect"}
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.status, self.headers = message["status"], list(message.get("headers", ()))
                self.started.set()
            elif message["type"] == "http.response.body" and message.get("body"):
                await self._chunks.put(message["body"])

        try:
            await service(scope, receive, send)
        finally:
            self.started.set()
            self._ended.set()

    async def next(self) -> bytes:
        """Return the next bytes; none at the end."""
        chunk, ended = asyncio.ensure_future(self._chunks.get()), asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait({chunk, ended}, return_when=asyncio.FIRST_COMPLETED)
            return chunk.result() if chunk.done() else b""
        finally:
            chunk.cancel()
            ended.cancel()

    def end(self) -> None:
        self._ended.set()
        self.task.cancel()


class _LiveResponse(StreamingHttpResponse):
    """Ends its stream when Django closes the response."""

    def __init__(self, bridge: Bridge, stream: _Response) -> None:
        self._bridge, self._stream = bridge, stream
        super().__init__(self._content(), status=stream.status)

    async def _content(self) -> AsyncIterator[bytes]:
        end = time.monotonic() + STREAM_SECONDS
        while (left := end - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(left):
                    chunk = await self._bridge.run(self._stream.next())
            except TimeoutError:
                return
            if not chunk:
                return
            yield chunk

    def close(self) -> None:
        self._bridge.end(self._stream)
        super().close()


class Bridge:
    """Runs the service of an app on an event loop in a thread."""

    def __init__(self, app: DjangoApp) -> None:
        from holdfast.server.app import make_service

        self.pid = os.getpid()
        self._service = make_service(app, authenticate=lambda request: request.scope.get(KEY))
        self._loop = asyncio.new_event_loop()
        self._ready: Future[None] = Future()
        self._ending: asyncio.Event | None = None
        self._streams: set[_Response] = set()
        self._thread = threading.Thread(target=self._serve, name="holdfast-dashboard", daemon=True)
        self._thread.start()
        self._ready.result(TIMEOUT)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._live())
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
        finally:
            self._loop.close()

    async def _live(self) -> None:
        self._ending = asyncio.Event()
        async with self._service.router.lifespan_context(self._service):
            self._ready.set_result(None)
            await self._ending.wait()
            await self._end_streams()

    async def _end_streams(self) -> None:
        tasks = [stream.task for stream in self._streams]
        for stream in tuple(self._streams):
            stream.end()
        await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        if self.pid != os.getpid() or self._ending is None:
            return
        with contextlib.suppress(RuntimeError):  # closed already
            self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join(5.0)

    def respond(self, request: HttpRequest, identity: Identity | None, *, live: bool = False) -> HttpResponseBase:
        """Return the response of the service: complete, or a ``live`` one that stays open, for an ASGI server."""
        answer = self._answer(_scope(request, identity), request.body, live)
        work = asyncio.run_coroutine_threadsafe(answer, self._loop)
        try:
            answered, content = work.result(TIMEOUT)
        except TimeoutError:
            work.cancel()
            return HttpResponse("The dashboard did not respond in time.", status=504, content_type="text/plain")
        response = _LiveResponse(self, answered) if live else HttpResponse(content, status=answered.status)
        _set_headers(response, answered.headers)
        return response

    async def _answer(self, scope: dict[str, Any], body: bytes, live: bool) -> tuple[_Response, bytes]:
        response, content = _Response(self._service, scope, body), bytearray()
        try:
            await response.started.wait()
            if live:
                self._streams.add(response)
                response.task.add_done_callback(lambda _: self._streams.discard(response))
            else:
                while chunk := await response.next():
                    content += chunk
                await response.task
        except BaseException:
            response.end()
            raise
        return response, bytes(content)

    async def run(self, work: Coroutine[Any, Any, bytes]) -> bytes:
        """Run a coroutine on the bridge's loop and await it on Django's. Returns nothing once the bridge is closed."""
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            return b""
        return await asyncio.wrap_future(future)

    def end(self, stream: _Response) -> None:
        with contextlib.suppress(RuntimeError):  # the bridge is closed
            self._loop.call_soon_threadsafe(stream.end)


def _set_headers(response: HttpResponseBase, headers: list[tuple[bytes, bytes]]) -> None:
    del response.headers["Content-Type"]
    for name, value in headers:
        if name.lower() == b"set-cookie":
            response.cookies.load(SimpleCookie(value.decode("latin-1")).output(header="").strip())
        elif name.lower() not in _SKIPPED:
            response.headers[name.decode("latin-1")] = value.decode("latin-1")


def _scope(request: HttpRequest, identity: Identity | None) -> dict[str, Any]:
    headers = [
        (name.lower().encode("latin-1"), value.encode("latin-1", "replace"))
        for name, value in request.headers.items()
        if name.lower() != "accept-encoding"  # Django and the web server compress responses
    ]
    host, port = request.get_host(), request.get_port()
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "raw_path": request.path.encode(),
        "root_path": reverse("holdfast:dashboard")[:-1],
        "query_string": request.META.get("QUERY_STRING", "").encode(),
        "headers": headers,
        "client": (request.META.get("REMOTE_ADDR") or "", 0),
        "server": (host.rpartition(":")[0] or host, int(port)),
        "state": {},
        KEY: identity,
    }


_lock = threading.Lock()
_bridge: Bridge | None = None


def bridge() -> Bridge:
    """Return the bridge of this process; after a fork, a new one."""
    global _bridge
    with _lock:
        if _bridge is None or _bridge.pid != os.getpid():
            _bridge = Bridge(get_app())
        return _bridge


def close_bridge() -> None:
    """End the thread of the dashboard. It need not be called at exit."""
    global _bridge
    with _lock:
        closing, _bridge = _bridge, None
    if closing is not None:
        closing.close()

"""The dashboard below a URL of the project, for people whom Django knows.

The dashboard is an ASGI application. One thread of the process runs it on an event loop of its own, and this view hands
requests to it, so it works the same under WSGI and ASGI. Live updates need a connection that stays open, which would
hold a WSGI worker: the stream is answered with 204 there, and pages are as fresh as their last load.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.urls import reverse
from django.views.decorators.csrf import csrf_exempt

from holdfast.features.tokens.model import EVERY_SCOPE, ROLES, Role, Scope
from holdfast.integrations.django.application import DjangoApp, get_app

if TYPE_CHECKING:
    from holdfast.server.auth import Identity

VIEW, CHANGE = "holdfast.view_dashboard", "holdfast.change_dashboard"
TIMEOUT: Final = 60.0
KEY: Final = "holdfast.identity"
# These carry a credential of their own: a person may decide an approval by a link in an e-mail.
OPEN: Final = ("decide/", "static/", "api/v1/decide/")
# Django has said these for itself, or will.
_SKIPPED: Final = frozenset({b"content-length", b"connection", b"transfer-encoding"})


def scopes_for(user: Any) -> frozenset[Scope]:
    """``view_dashboard`` reads, ``change_dashboard`` operates and decides, a superuser administers."""
    if user.is_superuser:
        return EVERY_SCOPE
    if user.has_perm(CHANGE):
        return ROLES[Role.OPERATOR] | ROLES[Role.APPROVER]
    return ROLES[Role.VIEWER] if user.has_perm(VIEW) else frozenset()


# Holdfast compares the origin of unsafe requests with the host, and pages have no token of Django's.
@csrf_exempt
def dashboard(request: HttpRequest, path: str = "") -> HttpResponseBase:
    """``path("jobs/", include("holdfast.integrations.django.urls"))``"""
    identity = None
    if not path.startswith(OPEN):
        user = request.user
        if not user.is_active or not user.is_authenticated:
            return redirect_to_login(request.get_full_path())
        scopes = scopes_for(user)
        if not scopes:
            raise PermissionDenied(f"The dashboard needs the permission {VIEW}.")
        identity = _identity(str(user.get_username()), scopes)
    if "text/event-stream" in request.headers.get("accept", ""):
        return HttpResponse(status=204)
    root = reverse("holdfast:dashboard")[:-1]
    return bridge().answer(request, root, identity)


def _identity(actor: str, scopes: frozenset[Scope]) -> Identity:
    from holdfast.server.auth import Identity

    tenant = get_app().session.scope
    return Identity(actor, tenant, scopes, ambient=True, whole=scopes == EVERY_SCOPE)


@dataclass(slots=True)
class _Answer:
    status: int = 500
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)


class Bridge:
    """The service of an app on a loop of its own."""

    def __init__(self, app: DjangoApp) -> None:
        from holdfast.server.app import make_service

        self.pid = os.getpid()
        self._service = make_service(app, authenticate=lambda request: request.scope.get(KEY))
        self._loop = asyncio.new_event_loop()
        self._ready: Future[None] = Future()
        self._ending: asyncio.Event | None = None
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

    def close(self) -> None:
        if self.pid != os.getpid() or self._ending is None:
            return
        with contextlib.suppress(RuntimeError):  # closed already
            self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join(5.0)

    def answer(self, request: HttpRequest, root: str, identity: Identity | None) -> HttpResponse:
        scope, body = _scope(request, root), request.body
        scope[KEY] = identity
        work = asyncio.run_coroutine_threadsafe(self._call(scope, body), self._loop)
        try:
            answer = work.result(TIMEOUT)
        except TimeoutError:
            work.cancel()
            return HttpResponse("The dashboard did not answer in time.", status=504, content_type="text/plain")
        response = HttpResponse(bytes(answer.body), status=answer.status)
        del response.headers["Content-Type"]
        for name, value in answer.headers:
            if name.lower() == b"set-cookie":
                _set_cookie(response, value.decode("latin-1"))
            elif name.lower() not in _SKIPPED:
                response.headers[name.decode("latin-1")] = value.decode("latin-1")
        return response

    async def _call(self, scope: dict[str, Any], body: bytes) -> _Answer:
        answer, sent = _Answer(), False

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if sent:
                await asyncio.Event().wait()  # the caller stays until the answer is complete
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                answer.status, answer.headers = message["status"], list(message.get("headers", ()))
            elif message["type"] == "http.response.body":
                answer.body += message.get("body", b"")

        call: Callable[..., Awaitable[None]] = self._service
        await call(scope, receive, send)
        return answer


def _set_cookie(response: HttpResponse, header: str) -> None:
    from http.cookies import SimpleCookie

    response.cookies.load(SimpleCookie(header).output(header="").strip())


def _scope(request: HttpRequest, root: str) -> dict[str, Any]:
    headers = [
        (name.lower().encode("latin-1"), value.encode("latin-1", "replace"))
        for name, value in request.headers.items()
        if name.lower() != "accept-encoding"  # compressing is left to Django and the web server
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
        "root_path": root,
        "query_string": request.META.get("QUERY_STRING", "").encode(),
        "headers": headers,
        "client": (request.META.get("REMOTE_ADDR") or "", 0),
        "server": (host.rpartition(":")[0] or host, int(port)),
        "state": {},
    }


_guard = threading.Lock()
_bridge: Bridge | None = None


def bridge() -> Bridge:
    """The bridge of this process: another one after a fork."""
    global _bridge
    with _guard:
        if _bridge is None or _bridge.pid != os.getpid():
            _bridge = Bridge(get_app())
        return _bridge


def close_bridge() -> None:
    """End the thread of the dashboard. A process that exits need not."""
    global _bridge
    with _guard:
        left, _bridge = _bridge, None
    if left is not None:
        left.close()

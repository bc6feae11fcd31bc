"""The gate: every request that is not for everybody passes here, and is worked for in the name of whoever asks.

A pure ASGI middleware around API and pages alike. It asks ``authenticate`` who calls, refuses who is not known,
refuses unsafe requests that another site's page could have made, and binds tenant and actor for the length of the
request (``Client.serving``), so that no route can forget to.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from urllib.parse import quote

from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.access.identity import Identity
from holdfast.access.identity import Scope as Allowed
from holdfast.access.origin import comes_from_elsewhere, comes_from_here
from holdfast.access.problems import problem, refusal_of
from holdfast.errors import HoldfastError, Refused
from holdfast.stores.session import Client

Authenticate = Callable[[Request], Identity | Awaitable[Identity | None] | None]

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class Paths:
    """A set of paths below the mount; a path that ends in / stands for all below it."""

    def __init__(self, paths: frozenset[str]) -> None:
        self._exact = frozenset(path for path in paths if not path.endswith("/"))
        self._below = tuple(path for path in paths if path.endswith("/"))

    def __contains__(self, path: str) -> bool:
        return path in self._exact or path.startswith(self._below)


class Gate:
    """``open_to_all`` are the paths that need no credentials.
    ``login`` is where a browser that nobody knows is sent, if there is such a page."""

    def __init__(
        self,
        inner: ASGIApp,
        client: Client,
        authenticate: Authenticate,
        *,
        open_to_all: Paths,
        login: str | None = None,
    ) -> None:
        self._inner, self._client, self._authenticate = inner, client, authenticate
        self._open = open_to_all
        self._login = login

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        request = Request(scope, receive)
        path = path_below(scope)
        if path in self._open:
            await self._inner(scope, receive, send)
            return
        try:
            identity = await self.who(request)
        except HoldfastError as error:  # a tenant that is none, a database that is away
            await refusal_of(error)(scope, receive, send)
            return
        if identity is None:
            await self._turn_away(request, path)(scope, receive, send)
            return
        if request.method not in SAFE and _is_forged(request, identity):
            await problem(403, "cross_site", "this request did not come from a page of this service")(
                scope, receive, send
            )
            return
        scope.setdefault("state", {}).update(identity=identity, holdfast_gate=self)
        with self._client.serving(identity.tenant, identity.actor):
            await self._inner(scope, receive, send)

    async def who(self, request: Request) -> Identity | None:
        found = self._authenticate(request)
        return await found if inspect.isawaitable(found) else found

    def _turn_away(self, request: Request, path: str) -> Response:
        wants_page = "text/html" in request.headers.get("accept", "")
        if self._login is not None and wants_page and not path.startswith("/api/"):
            login = request.scope.get("root_path", "") + self._login
            if request.headers.get("hx-request"):
                return Response(status_code=401, headers={"HX-Redirect": login})
            there = quote(f"{path}?{request.url.query}" if request.url.query else path, safe="/")
            known = request.method == "GET" and path != "/"
            return RedirectResponse(f"{login}?next={there}" if known else login, status_code=303)
        answer = problem(401, "unauthenticated", "who asks is not known", fix="Send Authorization: Bearer hf_…")
        answer.headers["WWW-Authenticate"] = "Bearer"
        return answer


def _is_forged(request: Request, identity: Identity) -> bool:
    """Whether another site's page may have made this request (rule 22). A program that lets people in by its cookies
    and does not say so (``ambient``) is guarded as well: no page can add the header of a token."""
    if identity.ambient:
        return not comes_from_here(request)
    return "authorization" not in request.headers and comes_from_elsewhere(request)


def path_below(scope: Scope) -> str:
    """The path without what we are mounted under."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if root else path


def identity_of(request: HTTPConnection) -> Identity:
    """Whoever passed the gate."""
    identity = request.scope.get("state", {}).get("identity")
    if not isinstance(identity, Identity):
        raise Refused("who asks is not known", code="unauthenticated")
    return identity


def require(request: HTTPConnection, scope: Allowed) -> Identity:
    """Who asks, if they may; every route and action begins with this."""
    identity = identity_of(request)
    if not identity.may(scope):
        raise Refused(
            f"{identity.actor} may not {scope}", code="missing_scope", fix=f"It takes a token with the scope {scope}."
        )
    return identity


def require_whole(request: HTTPConnection, scope: Allowed) -> Identity:
    """The same for what concerns every tenant: no single one's credentials are enough."""
    identity = require(request, scope)
    if not identity.runs_all:
        raise Refused(
            "this concerns every tenant",
            code="not_for_a_tenant",
            fix="It takes a token of tenant *, for those who run the whole.",
        )
    return identity


def require_one(request: HTTPConnection, scope: Allowed) -> Identity:
    """The same for what belongs to one tenant, which has to be named."""
    identity = require(request, scope)
    if identity.everywhere:
        raise Refused(
            "this is done for one tenant, and none is named", code="tenant_required", fix="Send Holdfast-Tenant: name"
        )
    return identity

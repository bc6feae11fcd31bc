"""Authentication and authorization: the identity of the caller, scopes, origin checks, limits on issued tokens.

``AuthMiddleware`` is a pure ASGI middleware around the API and the pages. It calls ``authenticate``, refuses unknown
callers and unsafe requests that another site's page could have made, and binds tenant and actor for the duration of
the request (``Session.serving``), so that no route can forget to.

Streams outlive the check of their request. ``Lasting`` repeats it, so that a revoked or expired token or an ended
session also ends the streams that it opened.
"""

from __future__ import annotations

import inspect
import ipaddress
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlsplit

from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as ASGIScope

from holdfast.app import App
from holdfast.app.internals import session_of
from holdfast.engine.job import DEFAULT_TENANT, EVERY_TENANT
from holdfast.engine.names import check_name
from holdfast.errors import HoldfastError, InvalidSetting, Refused
from holdfast.features.approvals.store import may_decide
from holdfast.features.tokens.model import EVERY_SCOPE, Scope, is_token, scopes_of
from holdfast.server.problems import problem, refusal_of
from holdfast.stores.session import Session

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})


def is_same_origin(request: Request) -> bool:
    """Decide by Sec-Fetch-Site, which pages cannot forge, or else by Origin. A request with neither is not from a
    current browser; it counts as same-origin if it has no cookie."""
    same_origin = _declared_origin(request)
    return "cookie" not in request.headers if same_origin is None else same_origin


def is_cross_site(request: Request) -> bool:
    """Whether the headers of the browser name another site."""
    return _declared_origin(request) is False


def _declared_origin(request: Request) -> bool | None:
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = request.headers.get("origin")
    return None if origin is None else urlsplit(origin).netloc == request.headers.get("host")


def is_local(request: Request) -> bool:
    """Whether the request is from this machine and addresses it by a local name. Another site's name that resolves to
    this machine (DNS rebinding) does not count."""
    host = request.headers.get("host", "")
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    if name.lower() not in LOCAL_NAMES:
        return False
    client = request.client
    if client is None:
        return True
    try:
        return ipaddress.ip_address(client.host).is_loopback
    except ValueError:
        return client.host == "testclient"


@dataclass(frozen=True, slots=True)
class Identity:
    """The caller of a request. ``tenant`` is ``*`` for operators of all tenants. ``ambient``: the browser authenticates
    by itself (a cookie, the local machine), so unsafe requests must come from this service's own pages."""

    actor: str
    tenant: str
    scopes: frozenset[Scope]
    ambient: bool = False
    credential: str | None = None
    """The id of the token; None if the caller did not authenticate with one."""
    whole: bool = False
    """Operates all tenants, also while ``tenant`` names one."""

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes

    @property
    def is_every_tenant(self) -> bool:
        return self.tenant == EVERY_TENANT

    @property
    def operates_all(self) -> bool:
        """Whether it may perform operations that affect every tenant: tenants, executors, the seals of the ledger."""
        return self.whole or self.is_every_tenant


Authenticate = Callable[[Request], Identity | Awaitable[Identity | None] | None]

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class TenantNames:
    """The names of the tenants, at most ``MOST``, for operators of all tenants; read every few seconds."""

    MOST, SECONDS = 200, 5.0

    def __init__(self, client: Session) -> None:
        self._client = client
        self._names: Sequence[str] = ()
        self._read_at = -math.inf

    async def get(self) -> Sequence[str]:
        """None or one if the database login is for one tenant, and none while the database is unreachable."""
        if time.monotonic() - self._read_at > self.SECONDS:
            tenants = self._client.store.tenants
            with suppress(HoldfastError):
                scope = await self._client.arun(tenants.pinned()) or EVERY_TENANT
                self._names = [each.name for each in await self._client.arun(tenants.list(scope, 1, self.MOST))]
            self._read_at = time.monotonic()
        return self._names


class Paths:
    """A set of paths relative to the mount. A path that ends in / includes everything below it."""

    def __init__(self, paths: frozenset[str]) -> None:
        self._exact = frozenset(path for path in paths if not path.endswith("/"))
        self._below = tuple(path for path in paths if path.endswith("/"))

    def __contains__(self, path: str) -> bool:
        return path in self._exact or path.startswith(self._below)


class AuthMiddleware:
    """``open_to_all`` are the paths that need no credentials. Unauthenticated browsers are redirected to ``login``, if
    there is such a page. ``tokens`` checks an API token that a caller presents where ``authenticate`` identifies
    callers otherwise."""

    def __init__(
        self,
        inner: ASGIApp,
        client: Session,
        authenticate: Authenticate,
        *,
        open_to_all: Paths,
        login: str | None = None,
        tokens: Authenticate | None = None,
    ) -> None:
        self._tokens = tokens
        self._inner, self._client, self._authenticate = inner, client, authenticate
        self._open = open_to_all
        self._names = TenantNames(client)
        self._login = login

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        request = Request(scope, receive)
        path = path_below(scope)
        if path in self._open:
            await self._inner(scope, receive, send)
            return
        try:
            identity = await self.identify(request)
        except HoldfastError as error:  # an invalid tenant name, an unreachable database
            await refusal_of(error)(scope, receive, send)
            return
        if identity is None:
            await self._unauthenticated(request, path)(scope, receive, send)
            return
        if not isinstance(identity, Identity):  # a mistake of the program, not of the caller
            raise InvalidSetting(
                f"authenticate returned {type(identity).__name__}, not an Identity or None",
                code="invalid_identity",
                fix='Return identity(name, "operator") of the integration, or Identity of holdfast.server.auth.',
            )
        if request.method not in SAFE and _is_forged(request, identity):
            refusal = problem(403, "cross_site", "this request did not come from a page of this service")
            await refusal(scope, receive, send)
            return
        scope.setdefault("state", {}).update(identity=identity, holdfast_auth=self)
        token = may_decide.set(identity.may(Scope.DECIDE))
        try:
            with self._client.serving(identity.tenant, identity.actor):
                await self._inner(scope, receive, send)
        finally:
            may_decide.reset(token)

    async def identify(self, request: Request) -> Identity | None:
        identity = await self._caller_of(request)
        if not isinstance(identity, Identity) or not identity.operates_all:
            return identity
        tenant = chosen_tenant(request, identity)
        if tenant is None and not path_below(request.scope).startswith("/api/"):
            tenant = await self._page_tenant(request, identity)
        return identity if tenant is None else replace(identity, tenant=tenant, whole=True)

    async def _caller_of(self, request: Request) -> Identity | None:
        identity = await _awaited(self._authenticate(request))
        if self._tokens is None or not isinstance(identity, Identity) or identity.credential is not None:
            return identity
        if presents_token(request):
            return await _awaited(self._tokens(request))  # the caller is who the token names, or nobody
        return identity

    async def _page_tenant(self, request: Request, identity: Identity) -> str | None:
        """What pages show an operator of all tenants who has chosen none: all tenants, or the only one there is. A
        program for a named tenant, and a database login for one tenant, keep their own."""
        own = self._client.scope if identity.tenant == self._client.scope else EVERY_TENANT
        if TENANT_HEADER in request.headers or own not in (EVERY_TENANT, DEFAULT_TENANT):
            return None
        names = await self._names.get()
        return EVERY_TENANT if len(names) > 1 else names[0] if names else None

    def _unauthenticated(self, request: Request, path: str) -> Response:
        wants_page = "text/html" in request.headers.get("accept", "")
        if self._login is not None and wants_page and not path.startswith("/api/"):
            login = request.scope.get("root_path", "") + self._login
            if request.headers.get("hx-request"):
                return Response(status_code=401, headers={"HX-Redirect": login})
            target = quote(f"{path}?{request.url.query}" if request.url.query else path, safe="/")
            returns = request.method == "GET" and path != "/"
            return RedirectResponse(f"{login}?next={target}" if returns else login, status_code=303)
        if request.headers.get("authorization", "").lower().startswith("bearer "):
            message, fix = "the token is unknown, expired or revoked", "Issue another one: holdfast tokens issue NAME"
        else:
            message, fix = "authentication required", "Send the header Authorization: Bearer hf_…."
        response = problem(401, "unauthenticated", message, fix=fix)
        response.headers["WWW-Authenticate"] = "Bearer"
        return response


async def _awaited(identity: Identity | Awaitable[Identity | None] | None) -> Identity | None:
    return await identity if inspect.isawaitable(identity) else identity


def presents_token(request: Request) -> bool:
    """Whether the request has a well-formed API token. Other credentials may be those of an application that mounts
    the service."""
    kind, _, text = request.headers.get("authorization", "").partition(" ")
    return kind.lower() == "bearer" and is_token(text.strip())


def _is_forged(request: Request, identity: Identity) -> bool:
    """Whether another site's page may have made this request. An application that authenticates by cookie without
    setting ``ambient`` is protected as well: no page can add the Authorization header."""
    if identity.ambient:
        return not is_same_origin(request)
    return "authorization" not in request.headers and is_cross_site(request)


def path_below(scope: ASGIScope) -> str:
    """The path relative to the mount."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if root else path


def chosen_tenant(request: HTTPConnection, identity: Identity | None) -> str | None:
    """The tenant that an operator of all tenants names with ``?tenant=``; ``*`` is all of them. The parameter has no
    meaning for other callers: their credentials decide."""
    named = request.query_params.get("tenant")
    if not named or not isinstance(identity, Identity) or not identity.operates_all:
        return None
    return named if named == EVERY_TENANT else check_name(named, "tenant")


def identity_of(request: HTTPConnection) -> Identity:
    """The identity of an authenticated request."""
    identity = request.scope.get("state", {}).get("identity")
    if not isinstance(identity, Identity):
        raise Refused("authentication required", code="unauthenticated")
    return identity


def require(request: HTTPConnection, scope: Scope) -> Identity:
    """Return the caller if it has the scope. Every route and action starts with this check."""
    identity = identity_of(request)
    if not identity.may(scope):
        raise Refused(
            f"{identity.actor} may not {scope}", code="missing_scope", fix=f"Use a token with the scope {scope}."
        )
    return identity


def require_all_tenants(request: HTTPConnection, scope: Scope) -> Identity:
    """``require``, for operations that affect every tenant: credentials of one tenant are not enough."""
    identity = require(request, scope)
    if not identity.operates_all:
        raise Refused(
            "this operation affects every tenant",
            code="not_for_a_tenant",
            fix="Use a token of tenant *, which is for operators of the whole system.",
        )
    return identity


def require_one_tenant(request: HTTPConnection, scope: Scope) -> Identity:
    """``require``, for operations on one tenant, which the caller has to name."""
    identity = require(request, scope)
    if identity.is_every_tenant:
        raise Refused(
            "this operation needs one tenant, and none is named",
            code="tenant_required",
            fix="Name it with ?tenant=name or the header Holdfast-Tenant: name.",
        )
    return identity


AGAIN = 5.0
"""Seconds for which an authentication is trusted."""


class StreamAccess:
    """``if not await access.holds(): return``, before each message of a stream."""

    def __init__(self, request: Request, scope: Scope, again: float = AGAIN) -> None:
        self._request, self._scope, self._again = request, scope, again
        self._checked_at = time.monotonic()

    async def holds(self) -> bool:
        """Authenticate the request again, at most every ``again`` seconds. If that fails the stream ends; the client
        reconnects and misses nothing."""
        if time.monotonic() - self._checked_at < self._again:
            return True
        auth, then = self._request.scope["state"].get("holdfast_auth"), identity_of(self._request)
        if not isinstance(auth, AuthMiddleware):  # the embedding application set the identity
            return True
        try:
            now = await auth.identify(self._request)
        except HoldfastError:
            return False
        self._checked_at = time.monotonic()
        return now is not None and now.tenant == then.tenant and now.may(self._scope)


TENANT_HEADER = "holdfast-tenant"


def at_this_machine(app: App, person: str | None = None) -> Authenticate:
    """Allow everything to callers from this machine, as ``person`` or else the program's own user. A caller that
    presents a token acts in its name, with its rights; other credentials are refused.
    ``Holdfast-Tenant`` names another tenant than the program's, or ``*`` to read all of them."""
    client = session_of(app)
    identity = Identity(person or client.actor, client.scope, EVERY_SCOPE, ambient=True, whole=True)

    def authenticate(request: Request) -> Identity | None:
        if not is_local(request) or ("authorization" in request.headers and not presents_token(request)):
            return None
        named = request.headers.get(TENANT_HEADER)
        if named is None:
            return identity
        return replace(identity, tenant=named if named == EVERY_TENANT else check_name(named, "tenant"))

    return authenticate


def refuse_beyond(identity: Identity, roles: Sequence[str], scopes: Sequence[str] = ()) -> None:
    """Refuse to issue scopes that the issuer lacks: a token with only ``admin`` must not issue one with ``decide``."""
    excess = scopes_of(roles, scopes) - identity.scopes
    if excess:
        raise Refused(
            f"a token cannot grant more than its issuer has: {', '.join(sorted(excess))}",
            code="missing_scope",
            fix="Request fewer rights.",
        )


def refuse_excess(identity: Identity, inputs: Mapping[str, Any]) -> None:
    """The same, for the inputs of ``Tokens.issue``."""
    refuse_beyond(identity, inputs["roles"], inputs.get("scopes", ()))

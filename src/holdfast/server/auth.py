"""Who asks and what they may: identity, scopes, origin checks, limits on issuing, streams that outlive a token.

Authentication: every request that is not for everybody passes here, and is worked for in the name of whoever asks.

A pure ASGI middleware around API and pages alike. It asks ``authenticate`` who calls, refuses who is not known,
refuses unsafe requests that another site's page could have made, and binds tenant and actor for the length of the
request (``Session.serving``), so that no route can forget to.

Answers that go on for long, such as streams: whoever asked must still be let in while they are told something.

A token that was revoked or is over, a session that was ended, opens nothing any more; neither does what it had opened.
"""

from __future__ import annotations

import inspect
import ipaddress
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote, urlsplit

from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as ASGIScope

from holdfast.app import App
from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.names import check_name
from holdfast.errors import HoldfastError, Refused
from holdfast.features.tokens.model import EVERY_SCOPE, ROLES, Role, Scope, scopes_of
from holdfast.server.problems import problem, refusal_of
from holdfast.stores.session import Session

__all__ = [
    "AGAIN",
    "Authenticate",
    "EVERY_SCOPE",
    "AuthMiddleware",
    "Identity",
    "LOCAL_NAMES",
    "Lasting",
    "Paths",
    "ROLES",
    "Role",
    "SAFE",
    "Scope",
    "TENANT_HEADER",
    "at_this_machine",
    "comes_from_elsewhere",
    "comes_from_here",
    "identity_of",
    "is_local",
    "path_below",
    "refuse_beyond",
    "require",
    "require_one",
    "require_whole",
    "scopes_of",
]


LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})


def comes_from_here(request: Request) -> bool:
    """By Sec-Fetch-Site, which pages cannot forge, or else by Origin. A program that sends neither is no browser, and
    is believed only on the local machine, where no cookie was needed."""
    said = _said(request)
    return "cookie" not in request.headers if said is None else said


def comes_from_elsewhere(request: Request) -> bool:
    """Whether a browser says so itself."""
    return _said(request) is False


def _said(request: Request) -> bool | None:
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = request.headers.get("origin")
    return None if origin is None else urlsplit(origin).netloc == request.headers.get("host")


def is_local(request: Request) -> bool:
    """From this machine, and by one of its own names: another site's name that leads here (rebinding) is none."""
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
    """``tenant`` is ``*`` for those who look after everybody's. ``ambient`` is one whom the browser vouches for by
    itself (a cookie, the local machine), so that what it asks for must come from our own pages (rule 22)."""

    actor: str
    tenant: str
    scopes: frozenset[Scope]
    ambient: bool = False
    credential: str | None = None
    """The id of the token, for the ledger of its use; None for those who came otherwise."""
    whole: bool = False
    """Looks after everybody's, also while working for one tenant: the person at this machine."""

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes

    @property
    def everywhere(self) -> bool:
        return self.tenant == EVERY_TENANT

    @property
    def runs_all(self) -> bool:
        """Whether it may do what concerns every tenant: tenants, executors, the seals of the ledger."""
        return self.whole or self.everywhere


Authenticate = Callable[[Request], Identity | Awaitable[Identity | None] | None]

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class Paths:
    """A set of paths below the mount; a path that ends in / stands for all below it."""

    def __init__(self, paths: frozenset[str]) -> None:
        self._exact = frozenset(path for path in paths if not path.endswith("/"))
        self._below = tuple(path for path in paths if path.endswith("/"))

    def __contains__(self, path: str) -> bool:
        return path in self._exact or path.startswith(self._below)


class AuthMiddleware:
    """``open_to_all`` are the paths that need no credentials.
    ``login`` is where a browser that nobody knows is sent, if there is such a page."""

    def __init__(
        self,
        inner: ASGIApp,
        client: Session,
        authenticate: Authenticate,
        *,
        open_to_all: Paths,
        login: str | None = None,
    ) -> None:
        self._inner, self._client, self._authenticate = inner, client, authenticate
        self._open = open_to_all
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
        scope.setdefault("state", {}).update(identity=identity, holdfast_auth=self)
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
        answer = problem(
            401, "unauthenticated", "authentication required", fix="Send the header Authorization: Bearer hf_…."
        )
        answer.headers["WWW-Authenticate"] = "Bearer"
        return answer


def _is_forged(request: Request, identity: Identity) -> bool:
    """Whether another site's page may have made this request (rule 22). A program that lets people in by its cookies
    and does not say so (``ambient``) is guarded as well: no page can add the header of a token."""
    if identity.ambient:
        return not comes_from_here(request)
    return "authorization" not in request.headers and comes_from_elsewhere(request)


def path_below(scope: ASGIScope) -> str:
    """The path without what we are mounted under."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if root else path


def identity_of(request: HTTPConnection) -> Identity:
    """The identity of an authenticated request."""
    identity = request.scope.get("state", {}).get("identity")
    if not isinstance(identity, Identity):
        raise Refused("authentication required", code="unauthenticated")
    return identity


def require(request: HTTPConnection, scope: Scope) -> Identity:
    """Who asks, if they may; every route and action begins with this."""
    identity = identity_of(request)
    if not identity.may(scope):
        raise Refused(
            f"{identity.actor} may not {scope}", code="missing_scope", fix=f"Use a token with the scope {scope}."
        )
    return identity


def require_whole(request: HTTPConnection, scope: Scope) -> Identity:
    """The same for what concerns every tenant: no single one's credentials are enough."""
    identity = require(request, scope)
    if not identity.runs_all:
        raise Refused(
            "this operation affects every tenant",
            code="not_for_a_tenant",
            fix="Use a token of tenant *, which is for operators of the whole system.",
        )
    return identity


def require_one(request: HTTPConnection, scope: Scope) -> Identity:
    """The same for what belongs to one tenant, which has to be named."""
    identity = require(request, scope)
    if identity.everywhere:
        raise Refused(
            "this operation needs one tenant, and none is named",
            code="tenant_required",
            fix="Send the header Holdfast-Tenant: name.",
        )
    return identity


AGAIN = 5.0
"""Seconds for which an answer is believed."""


class Lasting:
    """``if not await lasting.holds(): return``, before each thing that is told."""

    def __init__(self, request: Request, scope: Scope, again: float = AGAIN) -> None:
        self._request, self._scope, self._again = request, scope, again
        self._asked = time.monotonic()

    async def holds(self) -> bool:
        """By the same look as when it began. Who cannot be looked for is not believed: they come again, and miss
        nothing."""
        if time.monotonic() - self._asked < self._again:
            return True
        auth, then = self._request.scope["state"].get("holdfast_auth"), identity_of(self._request)
        if not isinstance(auth, AuthMiddleware):  # whoever let them in did so without us
            return True
        try:
            now = await auth.who(self._request)
        except HoldfastError:
            return False
        self._asked = time.monotonic()
        return now is not None and now.tenant == then.tenant and now.may(self._scope)


TENANT_HEADER = "holdfast-tenant"


def at_this_machine(app: App) -> Authenticate:
    """Allow everything to callers from this machine, as the program's own user. ``Holdfast-Tenant`` names another
    tenant than the program's, or ``*`` to read all of them."""
    client = app._session
    identity = Identity(client.actor, client.scope, EVERY_SCOPE, ambient=True, whole=True)

    def authenticate(request: Request) -> Identity | None:
        if not is_local(request):
            return None
        named = request.headers.get(TENANT_HEADER)
        return identity if named is None else replace(identity, tenant=_whose(named))

    return authenticate


def _whose(named: str) -> str:
    return named if named == EVERY_TENANT else check_name(named, "tenant")


def refuse_beyond(identity: Identity, roles: Sequence[str], scopes: Sequence[str] = ()) -> None:
    """A token with the scope admin alone must not make itself one that decides, or works."""
    beyond = scopes_of(roles, scopes) - identity.scopes
    if beyond:
        raise Refused(
            f"a token cannot grant more than its issuer has: {', '.join(sorted(beyond))}",
            code="missing_scope",
            fix="Request fewer rights.",
        )

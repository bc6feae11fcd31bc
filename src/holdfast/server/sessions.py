"""Authentication by API token or browser session; the login page, its throttle, and the theme.

A token comes in ``Authorization: Bearer``, a session in a cookie, and neither is accepted in place of the other. An
authentication is cached for ``CACHE_SECONDS``, so that a busy client costs one read of the database in that time; a
revoked token is refused after that. The last use of a token is recorded at most once per minute, in the background.

To log in, the user submits a token once, and the browser receives a session in a cookie. Scripts cannot read the cookie
(HttpOnly), and other sites' pages do not send it (SameSite=Strict). The session ends with its token. An application
that mounts the service with its own authentication has no login page.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from dataclasses import dataclass, replace

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.app import App
from holdfast.app.internals import session_of
from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.names import check_name
from holdfast.errors import HoldfastError, NotFound, Refused
from holdfast.features.tokens.model import SESSION_PREFIX, Scope, hash_of, is_token, new_token, shown_of
from holdfast.server.auth import TENANT_HEADER, Identity, is_same_origin, require
from holdfast.server.pages import field, local_path, redirect
from holdfast.server.rendering import THEME, THEMES, render
from holdfast.stores.requests import new_id
from holdfast.stores.session import Session

log = logging.getLogger("holdfast.access")

COOKIE = "holdfast_session"
CACHE_SECONDS = 2.0
RECORD_EVERY = 60.0
CLOSE_TIMEOUT = 3.0
MAX_CACHED = 10_000
SESSION_SECONDS = 12 * 3600.0


@dataclass(slots=True)
class _Cached:
    identity: Identity
    until: float
    recorded_at: float = float("-inf")


class Tokens:
    """An ``Authenticate`` for tokens and sessions; also opens and ends sessions for the login page."""

    def __init__(self, client: Session, remember: float = CACHE_SECONDS) -> None:
        self._client, self._remember = client, remember
        self._cache: OrderedDict[str, _Cached] = OrderedDict()
        self._recording: set[asyncio.Task[None]] = set()

    async def __call__(self, request: Request) -> Identity | None:
        credential = credential_of(request)
        if credential is None:
            return None
        cached = await self._find(hash_of(credential))
        if cached is None:
            return None
        identity = cached.identity
        if identity.tenant == EVERY_TENANT and (named := request.headers.get(TENANT_HEADER)) is not None:
            return replace(identity, tenant=check_name(named, "tenant"))
        return identity

    async def open(self, text: str) -> str | None:
        """Open a session for this token and return it, for the cookie; None if the token is not valid."""
        if not is_token(text):
            return None
        session = new_token(SESSION_PREFIX)
        opening = self._client.store.tokens.open_session(
            hash_of(text), new_id(), hash_of(session), shown_of(session), SESSION_SECONDS
        )
        return None if await self._client.arun(opening) is None else session

    async def end(self, request: Request) -> None:
        """End the session of the request."""
        session = request.cookies.get(COOKIE)
        if session is not None and is_token(session, SESSION_PREFIX):
            self._cache.pop(hash_of(session), None)
            await self._client.arun(self._client.store.tokens.end_session(hash_of(session)))

    async def _find(self, hashed: str) -> _Cached | None:
        now = time.monotonic()
        cached = self._cache.get(hashed)
        if cached is None or cached.until <= now:
            token = await self._client.arun(self._client.store.tokens.find(hashed))
            if token is None:
                self._cache.pop(hashed, None)
                return None
            ambient = token.is_session
            identity = Identity(token.name, token.tenant, token.allows, ambient=ambient, credential=token.id)
            recorded_at = float("-inf") if cached is None else cached.recorded_at
            cached = self._cache[hashed] = _Cached(identity, now + self._remember, recorded_at)
            if len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)
        if cached.recorded_at + RECORD_EVERY <= now:
            cached.recorded_at = now
            task = asyncio.create_task(self._record_use(hashed))
            self._recording.add(task)
            task.add_done_callback(self._recording.discard)
        return cached

    async def _record_use(self, hashed: str) -> None:
        try:
            await self._client.arun(self._client.store.tokens.used(hashed))
        except HoldfastError as error:  # not a reason to delay or refuse a request
            log.warning("The last use of a token could not be recorded: %s", error)

    async def aclose(self) -> None:
        """Finish recording uses, or cancel it if the database does not respond in time."""
        if self._recording:
            _, late = await asyncio.wait(self._recording, timeout=CLOSE_TIMEOUT)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


def tokens_of(app: App, *, remember: float = CACHE_SECONDS) -> Tokens:
    """For ``make_service(app, authenticate=tokens_of(app))``."""
    return Tokens(session_of(app), remember)


def credential_of(request: Request) -> str | None:
    """The token or session of the request if it is well-formed; a malformed one causes no read of the database."""
    kind, _, text = request.headers.get("authorization", "").partition(" ")
    if kind:
        text = text.strip()
        return text if kind.lower() == "bearer" and is_token(text) else None
    session = request.cookies.get(COOKIE)
    return session if session is not None and is_token(session, SESSION_PREFIX) else None


FIRST_DELAY, MAX_DELAY = 0.25, 5.0
FORGET_AFTER = 900.0
MAX_ADDRESSES = 10_000
MAX_WAITING = 64


class LoginThrottle:
    """Delays logins from an address after failures. Tokens cannot be guessed; this limits the cost of the attempts."""

    def __init__(self, first: float = FIRST_DELAY) -> None:
        self._first = first
        self._failed: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._waiting = 0

    async def wait(self, address: str) -> bool:
        """Wait as long as the failures of this address require; False when too many requests are waiting already."""
        failures, at = self._failed.get(address, (0, 0.0))
        if failures == 0 or time.monotonic() - at > FORGET_AFTER:
            return True
        if self._waiting >= MAX_WAITING:
            return False
        self._waiting += 1
        try:
            await asyncio.sleep(self.delay(failures))
        finally:
            self._waiting -= 1
        return True

    def delay(self, failures: int) -> float:
        return min(MAX_DELAY, self._first * 2.0 ** min(failures - 1, 16))

    def failed(self, address: str) -> None:
        failures, _ = self._failed.pop(address, (0, 0.0))
        self._failed[address] = (failures + 1, time.monotonic())
        if len(self._failed) > MAX_ADDRESSES:
            self._failed.popitem(last=False)

    def succeeded(self, address: str) -> None:
        self._failed.pop(address, None)


throttle = LoginThrottle()


def sessions_of(request: Request) -> Tokens:
    tokens = getattr(request.app.state, "authenticate", None)
    if not isinstance(tokens, Tokens):
        raise NotFound("this service has no login: the application that embeds it authenticates you", code="no_login")
    return tokens


async def show_login(request: Request) -> Response:
    sessions_of(request)
    return await render(request, "login.html", wrong=None, next=redirect_target(request.query_params.get("next")))


async def log_in(request: Request) -> Response:
    sessions = sessions_of(request)
    if not is_same_origin(request):
        raise Refused("Cross-site request refused: it did not come from a page of this service.", code="cross_site")
    address = request.client.host if request.client else ""
    target = redirect_target(await field(request, "next"))
    if not await throttle.wait(address):
        return await render(request, "login.html", status=429, wrong="Too many attempts. Try again later.", next=target)
    session = await sessions.open(await field(request, "token"))
    if session is None:
        throttle.failed(address)
        return await render(request, "login.html", status=401, wrong="Unknown or expired token.", next=target)
    throttle.succeeded(address)
    response = redirect(request, target)
    response.set_cookie(
        COOKIE,
        session,
        max_age=int(SESSION_SECONDS),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
        path=request.scope.get("root_path", "") or "/",
    )
    return response


async def log_out(request: Request) -> Response:
    await sessions_of(request).end(request)
    response = redirect(request, "/login")
    response.delete_cookie(COOKIE, path=request.scope.get("root_path", "") or "/", httponly=True, samesite="strict")
    return response


def redirect_target(path: str | None) -> str:
    """The page after login: always a path of this service, whatever the link contains."""
    target = local_path(path or "/")
    return "/" if target.startswith(("/login", "/logout")) else target


routes = [
    Route("/login", show_login, methods=["GET"]),
    Route("/login", log_in, methods=["POST"]),
    Route("/logout", log_out, methods=["POST"]),
]


A_YEAR = 365 * 86_400


async def set_theme(request: Request) -> Response:
    require(request, Scope.READ)
    chosen = await field(request, "theme")
    response = redirect(request, local_path(await field(request, "back", "/")))
    if chosen in THEMES:
        path = request.scope.get("root_path", "") or "/"
        response.set_cookie(THEME, chosen, max_age=A_YEAR, httponly=True, samesite="lax", path=path)
    return response


theme_routes = [Route("/theme", set_theme, methods=["POST"])]

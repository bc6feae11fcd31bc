"""Token and browser-session authentication, login page, login throttle, theme.

Who calls, by an API token or by the session of a browser that was logged in with one (rule 25).

A token comes in ``Authorization: Bearer``, a session in a cookie, and neither is taken for the other. What was found
is believed for ``REMEMBERED`` seconds, so that a busy client costs one look at the database in that time: a token that
is revoked opens nothing after that. When one was last used is noted at most once a minute, beside the request.

Logging in: a token is shown once, the browser is given a session for it, and keeps that in a cookie.

The cookie is no use to scripts (HttpOnly) and is not sent along from other sites (SameSite=Strict); the session ends
with the token. Where somebody else says who calls (a program that mounts us) there is nothing to log in to here.
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
from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.names import check_name
from holdfast.errors import HoldfastError, NotFound, Refused
from holdfast.features.tokens.model import SESSION_PREFIX, Scope, hash_of, is_token, new_token, shown_of
from holdfast.server.auth import Identity, comes_from_here, require
from holdfast.server.pages import below, field, go
from holdfast.server.rendering import THEME, THEMES, render
from holdfast.stores.ids import new_id
from holdfast.stores.session import Session

log = logging.getLogger("holdfast.access")

COOKIE = "holdfast_session"
TENANT_HEADER = "holdfast-tenant"
REMEMBERED = 2.0
NOTED_EVERY = 60.0
LAST_NOTE = 3.0
MOST_REMEMBERED = 10_000
SESSION = 12 * 3600.0


@dataclass(slots=True)
class _Known:
    identity: Identity
    until: float
    noted: float = float("-inf")


class Tokens:
    """An ``Authenticate``; also opens and ends sessions, for the page to log in at."""

    def __init__(self, client: Session, remember: float = REMEMBERED) -> None:
        self._client, self._remember = client, remember
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._noting: set[asyncio.Task[None]] = set()

    async def __call__(self, request: Request) -> Identity | None:
        presented = presented_by(request)
        if presented is None:
            return None
        known = await self._find(hash_of(presented))
        if known is None:
            return None
        identity = known.identity
        if identity.tenant == EVERY_TENANT and (named := request.headers.get(TENANT_HEADER)) is not None:
            return replace(identity, tenant=check_name(named, "tenant"))
        return identity

    async def open(self, text: str) -> str | None:
        """A session for whoever holds this token; None if it is not good. The caller puts it into the cookie."""
        if not is_token(text):
            return None
        session = new_token(SESSION_PREFIX)
        opening = self._client.store.tokens.open_session(
            hash_of(text), new_id(), hash_of(session), shown_of(session), SESSION
        )
        return None if await self._client.arun(opening) is None else session

    async def end(self, request: Request) -> None:
        """Log out: this session opens nothing any more."""
        session = request.cookies.get(COOKIE)
        if session is not None and is_token(session, SESSION_PREFIX):
            self._known.pop(hash_of(session), None)
            await self._client.arun(self._client.store.tokens.end_session(hash_of(session)))

    async def _find(self, hashed: str) -> _Known | None:
        now = time.monotonic()
        known = self._known.get(hashed)
        if known is None or known.until <= now:
            token = await self._client.arun(self._client.store.tokens.find(hashed))
            if token is None:
                self._known.pop(hashed, None)
                return None
            ambient = token.is_session
            identity = Identity(token.name, token.tenant, token.allows, ambient=ambient, credential=token.id)
            noted = float("-inf") if known is None else known.noted
            known = self._known[hashed] = _Known(identity, now + self._remember, noted)
            if len(self._known) > MOST_REMEMBERED:
                self._known.popitem(last=False)
        if known.noted + NOTED_EVERY <= now:
            known.noted = now
            task = asyncio.create_task(self._note(hashed))
            self._noting.add(task)
            task.add_done_callback(self._noting.discard)
        return known

    async def _note(self, hashed: str) -> None:
        try:
            await self._client.arun(self._client.store.tokens.used(hashed))
        except HoldfastError as error:  # nobody is kept waiting, or refused, for the sake of this
            log.warning("The last use of a token could not be recorded: %s", error)

    async def aclose(self) -> None:
        """With the service: what is being noted comes to its end, unless the database lets it wait for long."""
        if self._noting:
            _, late = await asyncio.wait(self._noting, timeout=LAST_NOTE)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


def tokens_of(app: App, *, remember: float = REMEMBERED) -> Tokens:
    """For ``make_service(app, authenticate=tokens_of(app))``."""
    return Tokens(app._session, remember)


def presented_by(request: Request) -> str | None:
    """What the request shows, if it can be one of ours at all: a typing error does not get as far as the database."""
    kind, _, text = request.headers.get("authorization", "").partition(" ")
    if kind:
        text = text.strip()
        return text if kind.lower() == "bearer" and is_token(text) else None
    session = request.cookies.get(COOKIE)
    return session if session is not None and is_token(session, SESSION_PREFIX) else None


FIRST, LONGEST = 0.25, 5.0
FORGOTTEN = 900.0
MOST_ADDRESSES = 10_000
MOST_WAITING = 64


class Attempts:
    """A token cannot be guessed, so this is not what keeps people out; it keeps guessing from costing us anything."""

    def __init__(self, first: float = FIRST) -> None:
        self._first = first
        self._failed: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._waiting = 0

    async def wait(self, address: str) -> bool:
        """False when too many are waiting already: come back later."""
        failures, at = self._failed.get(address, (0, 0.0))
        if failures == 0 or time.monotonic() - at > FORGOTTEN:
            return True
        if self._waiting >= MOST_WAITING:
            return False
        self._waiting += 1
        try:
            await asyncio.sleep(self.delay(failures))
        finally:
            self._waiting -= 1
        return True

    def delay(self, failures: int) -> float:
        return min(LONGEST, self._first * 2.0 ** min(failures - 1, 16))

    def failed(self, address: str) -> None:
        failures, _ = self._failed.pop(address, (0, 0.0))
        self._failed[address] = (failures + 1, time.monotonic())
        if len(self._failed) > MOST_ADDRESSES:
            self._failed.popitem(last=False)

    def succeeded(self, address: str) -> None:
        self._failed.pop(address, None)


attempts = Attempts()


def sessions_of(request: Request) -> Tokens:
    found = getattr(request.app.state, "authenticate", None)
    if not isinstance(found, Tokens):
        raise NotFound("this service has no login: the application that embeds it authenticates you", code="no_login")
    return found


async def show(request: Request) -> Response:
    sessions_of(request)
    return await render(request, "login.html", wrong=None, next=onward(request.query_params.get("next")))


async def log_in(request: Request) -> Response:
    sessions = sessions_of(request)
    if not comes_from_here(request):
        raise Refused("Cross-site request refused: it did not come from a page of this service.", code="cross_site")
    address = request.client.host if request.client else ""
    target = onward(await field(request, "next"))
    if not await attempts.wait(address):
        return await render(request, "login.html", status=429, wrong="Too many attempts. Try again later.", next=target)
    session = await sessions.open(await field(request, "token"))
    if session is None:
        attempts.failed(address)
        return await render(request, "login.html", status=401, wrong="Unknown or expired token.", next=target)
    attempts.succeeded(address)
    answer = go(request, target)
    answer.set_cookie(
        COOKIE,
        session,
        max_age=int(SESSION),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
        path=request.scope.get("root_path", "") or "/",
    )
    return answer


async def log_out(request: Request) -> Response:
    await sessions_of(request).end(request)
    answer = go(request, "/login")
    answer.delete_cookie(COOKIE, path=request.scope.get("root_path", "") or "/", httponly=True, samesite="strict")
    return answer


def onward(path: str | None) -> str:
    """Where to go after: a path of ours and nothing else, whatever the link said."""
    there = below(path or "/")
    return "/" if there.startswith(("/login", "/logout")) else there


routes = [
    Route("/login", show, methods=["GET"]),
    Route("/login", log_in, methods=["POST"]),
    Route("/logout", log_out, methods=["POST"]),
]


A_YEAR = 365 * 86_400


async def choose(request: Request) -> Response:
    require(request, Scope.READ)
    chosen = await field(request, "theme")
    answer = go(request, below(await field(request, "back", "/")))
    if chosen in THEMES:
        path = request.scope.get("root_path", "") or "/"
        answer.set_cookie(THEME, chosen, max_age=A_YEAR, httponly=True, samesite="lax", path=path)
    return answer


theme_routes = [Route("/theme", choose, methods=["POST"])]
